//! A node's directory: its contents, and how it becomes a member's.
//!
//! ```text
//!   blank ──form──► member of a new cluster, whose log begins with its members
//!         ──join──► member of a cluster that is there, with an empty log
//!   a single server's ──seed──► only member of a cluster, with all that the server knew
//!   member ──recover (recovery.rs)──► a single server's
//! ```
//!
//! Each step takes effect at one instant, the rename of the identity. Before it the directory is as it was, with the
//! same node id; after it the directory is a member's and complete. So a new cluster has no state in between, and
//! nothing has to be repeated after a crash.

use std::collections::BTreeMap;
use std::io::{self, Read as _, Write as _};
use std::num::NonZeroU64;
use std::path::Path;
use std::sync::Arc;

use palisade_pipeline::durable;
use palisade_pipeline::replay::Replay;
use palisade_wal::{
    Conversion, DirStorage, Id, OpenError, Opened, Options, Purpose, ReadError, ReplayError,
    SnapshotWriter, Storage, Wal,
};

use crate::entry::{LogId, Members, NodeId};
use crate::state::{State, StateError};

/// Why a directory could not be used.
#[derive(Debug, thiserror::Error)]
pub enum DirectoryError {
    /// The log refused.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Reading it back failed.
    #[error("the log cannot be read: {0}")]
    Read(#[from] ReadError),
    /// The content is not of the kind that this version writes.
    #[error("the log's content cannot be taken over: {0}")]
    State(#[from] StateError),
    /// A recovery could not begin the new life.
    #[error(transparent)]
    Restore(#[from] durable::Error),
}

/// The facts that the nodes of a new cluster agree on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Founding {
    /// The authority's id, which is the cluster's (rule R13).
    pub authority: Id,
    /// The first life of its log.
    pub incarnation: Id,
    /// Its members, all of which vote.
    pub members: Members,
}

impl Founding {
    /// That of these nodes, at their peer addresses.
    #[must_use]
    pub fn new(authority: Id, incarnation: Id, nodes: BTreeMap<NodeId, String>) -> Founding {
        let voters = vec![nodes.keys().copied().collect()];
        Founding {
            authority,
            incarnation,
            members: Members { voters, nodes },
        }
    }
}

/// See the module. Its lock is held until it is dropped, and by the log that is opened in it.
#[derive(Clone)]
pub struct Directory {
    storage: Arc<dyn Storage>,
    node: NodeId,
}

impl Directory {
    /// Takes the directory's lock, and makes sure that it has a node id, durably. Makes the directory if there is none.
    ///
    /// # Errors
    /// [`OpenError`]: in use, a backup, damaged, I/O.
    pub fn lock(path: &Path) -> Result<Directory, OpenError> {
        Directory::on(Arc::new(DirStorage::create(path)?))
    }

    /// [`lock`](Directory::lock) on any storage.
    ///
    /// # Errors
    /// As [`lock`](Directory::lock).
    pub fn on(storage: Arc<dyn Storage>) -> Result<Directory, OpenError> {
        palisade_wal::purpose(&*storage)?;
        let node = palisade_wal::promise_node(&*storage)?;
        let node = NodeId(NonZeroU64::get(node));
        Ok(Directory { storage, node })
    }

    /// The node that owns this directory, or will.
    #[must_use]
    pub fn node(&self) -> NodeId {
        self.node
    }

    /// The purpose of the directory.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn purpose(&self) -> Result<Purpose, OpenError> {
        palisade_wal::purpose(&*self.storage)
    }

    /// Opens the log of a member.
    ///
    /// # Errors
    /// [`OpenError`].
    pub fn open(&self, options: &Options) -> Result<Opened, OpenError> {
        Wal::open_member_on(Arc::clone(&self.storage), options)
    }

    /// Makes a blank directory that of a member of a new cluster. Every member does so with the same founding; the
    /// engine elects a leader among those that have, and needs no further word.
    ///
    /// # Errors
    /// [`OpenError`]; the directory is as it was.
    pub fn form(&self, founding: &Founding, options: &Options) -> Result<Opened, OpenError> {
        let state = first_state(Replay::from_nothing(0), founding.members.clone());
        let cluster = (founding.authority, founding.incarnation);
        let save = |out: &mut SnapshotWriter| save(&state, out);
        Wal::create_member_on(Arc::clone(&self.storage), cluster, options, Some(save))
    }

    /// Makes a blank directory that of a member of a cluster that is there: its leader sends the log.
    ///
    /// # Errors
    /// [`OpenError`]; the directory is as it was.
    pub fn join(
        &self,
        authority: Id,
        incarnation: Id,
        options: &Options,
    ) -> Result<Opened, OpenError> {
        let nothing = None::<fn(&mut SnapshotWriter) -> io::Result<()>>;
        let storage = Arc::clone(&self.storage);
        Wal::create_member_on(storage, (authority, incarnation), options, nothing)
    }

    /// Turns a single server's directory into that of the only member of a new cluster, which its peers reach at
    /// `address`. All leases, queues and remembered answers stay, the token counter does not leap, and the authority
    /// stays. The new incarnation distinguishes the result from the remains of an interrupted conversion.
    ///
    /// # Errors
    /// [`DirectoryError`]; the directory is as it was.
    pub fn seed(&self, address: &str, options: &Options) -> Result<Opened, DirectoryError> {
        let conversion = Conversion::begin_on(Arc::clone(&self.storage))?;
        let mut machine = match conversion.snapshot()? {
            Some(mut snapshot) => {
                let mut bytes = Vec::new();
                snapshot.read_to_end(&mut bytes).map_err(StateError::Io)?;
                Replay::from_snapshot(0, &bytes).map_err(StateError::Replay)?
            }
            None => Replay::from_nothing(0),
        };
        let replayed = conversion.replay(|_, batch| machine.batch(batch));
        replayed.map_err(not_replayed)?;
        let alone = Members {
            voters: vec![[self.node].into()],
            nodes: [(self.node, address.to_owned())].into(),
        };
        let state = first_state(machine, alone);
        Ok(conversion.finish(options, |out| save(&state, out))?)
    }
}

pub(crate) fn not_replayed(error: ReplayError<impl Into<StateError>>) -> DirectoryError {
    match error {
        ReplayError::Apply { source, .. } => DirectoryError::State(source.into()),
        ReplayError::Read(error) => DirectoryError::Read(error),
    }
}

/// The state behind the first entry of a log. That entry names the members, and exists only in this snapshot: a node
/// that is added later gets the snapshot, with the machine in it.
fn first_state(machine: Replay, members: Members) -> State {
    let first = LogId::default();
    let mut state = State::new(0, true);
    state.applied = Some(first);
    state.members = (Some(first), members);
    state.machine = machine;
    state
}

fn save(state: &State, out: &mut SnapshotWriter) -> io::Result<()> {
    state.save(|bytes| out.write_all(bytes))
}
