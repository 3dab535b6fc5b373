//! The engine's view of the [`Store`].

use std::fmt::Debug;
use std::io;
use std::ops::RangeBounds;

use openraft::storage::{IOFlushed, LogState, RaftLogStorage};
use openraft::type_config::alias::{EntryOf, LogIdOf, VoteOf};
use openraft::{AsyncRuntime, OptionalSend, RaftLogReader};
use tokio::sync::oneshot;

use super::convert;
use super::network::MESSAGE_BYTES;
use super::types::Types;
use crate::log::LogGap;
use crate::store::Store;

/// The engine ends then, and says nothing that people could read.
fn contradiction(gap: LogGap) -> io::Error {
    tracing::error!(
        "this node's log contradicts what its cluster asks of it ({gap}), so this node stops; nothing in its directory has \
         changed. Keep the directory: `palisade cluster recover --look` shows what is in it"
    );
    io::Error::other(gap)
}

#[derive(Clone)]
pub(super) struct LogStorage {
    store: Store,
}

impl LogStorage {
    pub(super) fn new(store: Store) -> LogStorage {
        LogStorage { store }
    }

    /// Waits until the records that `write` submits are durable.
    async fn durable(
        &self,
        write: impl FnOnce(Box<dyn FnOnce(io::Result<()>) + Send>) -> Result<(), LogGap>,
    ) -> io::Result<()> {
        let (done, is_done) = oneshot::channel();
        write(Box::new(|result| drop(done.send(result)))).map_err(contradiction)?;
        let gone = |_| io::Error::other("the log has ended");
        is_done.await.map_err(gone)?
    }
}

impl<R: AsyncRuntime> RaftLogStorage<Types<R>> for LogStorage {
    type LogReader = LogStorage;

    async fn get_log_state(&mut self) -> io::Result<LogState<Types<R>>> {
        Ok(self.store.look(|log| LogState {
            last_purged_log_id: log.purged().map(convert::raft_log_id),
            last_log_id: log.last().map(convert::raft_log_id),
        }))
    }

    async fn get_log_reader(&mut self) -> LogStorage {
        self.clone()
    }

    async fn save_vote(&mut self, vote: &VoteOf<Types<R>>) -> io::Result<()> {
        let vote = convert::vote(*vote);
        self.durable(|done| self.store.save_vote(vote, done)).await
    }

    async fn save_committed(&mut self, committed: Option<LogIdOf<Types<R>>>) -> io::Result<()> {
        let commit = |id| self.store.commit(convert::log_id(id));
        committed.map_or(Ok(()), commit).map_err(contradiction)
    }

    async fn read_committed(&mut self) -> io::Result<Option<LogIdOf<Types<R>>>> {
        Ok(self
            .store
            .look(|log| log.committed().map(convert::raft_log_id)))
    }

    async fn append<I>(&mut self, entries: I, callback: IOFlushed<Types<R>>) -> io::Result<()>
    where
        I: IntoIterator<Item = EntryOf<Types<R>>> + OptionalSend,
        I::IntoIter: OptionalSend,
    {
        let entries = entries.into_iter().map(convert::entry::<R>).collect();
        let appended = self
            .store
            .append(entries, |result| callback.io_completed(result));
        appended.map_err(contradiction)
    }

    async fn truncate_after(&mut self, last: Option<LogIdOf<Types<R>>>) -> io::Result<()> {
        let last = last.map(convert::log_id);
        self.durable(|done| self.store.truncate_after(last, done))
            .await
    }

    async fn purge(&mut self, to: LogIdOf<Types<R>>) -> io::Result<()> {
        self.store.purge(convert::log_id(to));
        Ok(())
    }
}

impl<R: AsyncRuntime> RaftLogReader<Types<R>> for LogStorage {
    async fn try_get_log_entries<RB: RangeBounds<u64> + Clone + Debug + OptionalSend>(
        &mut self,
        range: RB,
    ) -> io::Result<Vec<EntryOf<Types<R>>>> {
        let entry = |entry: &crate::Entry| convert::raft_entry::<R>(entry.clone());
        Ok(self.store.look(|log| log.range(range).map(entry).collect()))
    }

    /// The first entries of a range, as many as one message takes.
    async fn limited_get_log_entries(
        &mut self,
        start: u64,
        end: u64,
    ) -> io::Result<Vec<EntryOf<Types<R>>>> {
        let mut bytes = 0;
        let fits = |entry: &&crate::Entry| {
            let is_first = bytes == 0;
            bytes += entry.payload.bytes();
            is_first || bytes <= MESSAGE_BYTES
        };
        let entry = |entry: &crate::Entry| convert::raft_entry::<R>(entry.clone());
        let first = |log: &crate::Log| log.range(start..end).take_while(fits).map(entry).collect();
        Ok(self.store.look(first))
    }

    async fn read_vote(&mut self) -> io::Result<Option<VoteOf<Types<R>>>> {
        Ok(self.store.look(|log| log.vote().map(convert::raft_vote)))
    }
}
