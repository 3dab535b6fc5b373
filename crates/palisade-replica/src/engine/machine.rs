//! The engine's view of the [`Applier`], and of snapshots.

use std::io;
use std::sync::Arc;

use futures_util::{Stream, StreamExt as _};
use openraft::storage::{EntryResponder, RaftStateMachine};
use openraft::type_config::alias::{LogIdOf, SnapshotMetaOf, SnapshotOf, StoredMembershipOf};
use openraft::{AsyncRuntime, OptionalSend, RaftSnapshotBuilder, Snapshot, SnapshotMeta};
use tokio::sync::oneshot;

use super::convert;
use super::types::Types;
use crate::applier::Applier;
use crate::state::{SnapshotHead, StateError};
use crate::store::Store;

/// A snapshot as it is on disk, with the metadata that the engine needs.
type EngineSnapshot<R> = SnapshotOf<Types<R>, Arc<[u8]>>;

/// The engine ends then, and says nothing that people could read.
fn unreadable(error: StateError) -> io::Error {
    tracing::error!(
        "this node cannot read what its cluster has committed ({error}), so it stops, and skips nothing. If the other nodes run \
         a newer version of Palisade, start this node with that version; its directory is as it should be"
    );
    io::Error::other(error)
}

/// See the module.
#[derive(Clone)]
pub(super) struct ReplicatedMachine {
    applier: Arc<Applier>,
    store: Store,
}

impl ReplicatedMachine {
    pub(super) fn new(applier: Arc<Applier>, store: Store) -> ReplicatedMachine {
        ReplicatedMachine { applier, store }
    }

    fn current<R: AsyncRuntime>(&self) -> io::Result<Option<EngineSnapshot<R>>> {
        let Some(bytes) = self.store.snapshot()? else {
            return Ok(None);
        };
        let (SnapshotHead { log, members }, _) =
            SnapshotHead::take(&bytes).map_err(io::Error::other)?;
        Ok(Some(Snapshot {
            meta: SnapshotMeta {
                last_log_id: log.purged().map(convert::raft_log_id),
                last_membership: convert::stored(members),
            },
            snapshot: bytes.into(),
        }))
    }
}

impl<R: AsyncRuntime> RaftStateMachine<Types<R>> for ReplicatedMachine {
    /// A snapshot as it is on disk.
    type SnapshotData = Arc<[u8]>;
    type SnapshotBuilder = Builder;

    async fn applied_state(
        &mut self,
    ) -> io::Result<(Option<LogIdOf<Types<R>>>, StoredMembershipOf<Types<R>>)> {
        let (applied, members) = self.applier.applied();
        Ok((applied.map(convert::raft_log_id), convert::stored(members)))
    }

    async fn apply<S>(&mut self, mut entries: S) -> io::Result<()>
    where
        S: Stream<Item = io::Result<EntryResponder<Types<R>>>> + Unpin + OptionalSend,
    {
        while let Some(next) = entries.next().await {
            let (entry, responder) = next?;
            let entry = convert::entry::<R>(entry);
            self.applier.apply(entry).await.map_err(unreadable)?;
            if let Some(responder) = responder {
                responder.send(());
            }
        }
        Ok(())
    }

    /// The engine forces a snapshot where it must have one; otherwise it gets the one that the log made by
    /// itself.
    async fn try_create_snapshot_builder(&mut self, force: bool) -> Option<Builder> {
        Some(Builder {
            of: self.clone(),
            force,
        })
    }

    async fn get_snapshot_builder(&mut self) -> Builder {
        Builder {
            of: self.clone(),
            force: false,
        }
    }

    async fn install_snapshot(
        &mut self,
        _: &SnapshotMetaOf<Types<R>>,
        snapshot: Arc<[u8]>,
    ) -> io::Result<()> {
        let (done, is_done) = oneshot::channel();
        let installed = self
            .store
            .install(&snapshot, |result| drop(done.send(result)));
        let state = installed.map_err(unreadable)?;
        is_done
            .await
            .map_err(|_| io::Error::other("the log has ended"))??;
        self.applier.replace(state).await;
        Ok(())
    }

    async fn get_current_snapshot(&mut self) -> io::Result<Option<EngineSnapshot<R>>> {
        self.current::<R>()
    }
}

/// Gives a snapshot to the engine.
pub(super) struct Builder {
    of: ReplicatedMachine,
    /// Whether it must contain all that is applied now.
    force: bool,
}

impl<R: AsyncRuntime> RaftSnapshotBuilder<Types<R>> for Builder {
    type SnapshotData = Arc<[u8]>;

    async fn build_snapshot(&mut self) -> io::Result<EngineSnapshot<R>> {
        let Builder { of, force } = self;
        if !*force && let Some(current) = of.current::<R>()? {
            return Ok(current);
        }
        let bytes = of.applier.snapshot().map_err(io::Error::other)?;
        let (done, is_done) = oneshot::channel();
        let put = of
            .store
            .put_snapshot(&bytes, |result| drop(done.send(result)));
        put.map_err(io::Error::other)?;
        is_done
            .await
            .map_err(|_| io::Error::other("the log has ended"))??;
        let none = || io::Error::other("the snapshot that was made is gone");
        of.current::<R>()?.ok_or_else(none)
    }
}
