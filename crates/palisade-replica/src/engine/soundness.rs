//! Whether a leader is one to be followed: it has a quorum, and it has everything that is committed (rules R5, R24).

use std::time::Duration;

use openraft::AsyncRuntime;
use openraft::async_runtime::watch::WatchReceiver as _;
use tokio::sync::watch;

use super::{Engine, Role, heard, role};
use crate::entry::{Leader, LogId};
use crate::message::Request;

/// A leader that has heard no quorum for this long, and serves nobody any more (rule R5), reports it.
const UNHEARD: Duration = Duration::from_millis(1_500);

/// The leader lacks committed entries: it lost them, or the nodes that elected it did.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Unsound {
    /// The leadership.
    pub leader: Leader,
    /// The committed entry of this node that it wanted dropped or replaced.
    pub committed: LogId,
}

impl<R: AsyncRuntime> Engine<R> {
    /// Whether this node leads, and has heard a quorum lately.
    pub(super) fn has_quorum(&self) -> bool {
        let metrics = self.raft.metrics();
        let metrics = metrics.borrow_watched();
        let unheard = self.timers.patience().max(UNHEARD);
        role(&metrics) == Role::Leader && heard(&metrics).is_none_or(|heard| heard < unheard)
    }

    /// Whether a leader asks this node to drop or replace an entry that it knows to be committed. Every elected node has
    /// all committed entries, so this node, or a majority, lost some. Nothing is dropped: this log may be the only one
    /// that has the entry.
    pub(super) fn is_unsound(&self, request: &Request) -> bool {
        let (vote, first, entries) = match request {
            Request::Append {
                vote,
                previous,
                entries,
                ..
            } => (vote, previous, &entries[..]),
            Request::Snapshot { vote, applied, .. } => (vote, applied, &[][..]),
            Request::Vote(_) | Request::PreVote(_) | Request::Transfer { .. } => return false,
        };
        let Some(store) = self.store.upgrade() else {
            return false;
        };
        let dropped = store.look(|log| {
            let committed = log.committed()?;
            // The engine refuses requests of an old leader.
            let is_old = log.vote().is_some_and(|own| vote.leader < own.leader);
            let differs = |id: &LogId| {
                let ours = || log.at(id.index).is_some_and(|ours| ours != *id);
                id.index <= committed.index && ours()
            };
            let ids = first
                .iter()
                .copied()
                .chain(entries.iter().map(|entry| entry.id));
            let mut ids = ids.filter(|_| !is_old);
            ids.find(differs).map(|_| committed)
        });
        let Some(committed) = dropped else {
            return false;
        };
        let leader = vote.leader;
        let unsound = Some(Unsound { leader, committed });
        self.unsound.send_if_modified(|before| {
            let is_new = *before != unsound;
            *before = unsound;
            is_new
        });
        true
    }

    /// Reports a leader that lacks entries which are committed here.
    #[must_use]
    pub fn unsound(&self) -> watch::Receiver<Option<Unsound>> {
        self.unsound.subscribe()
    }
}
