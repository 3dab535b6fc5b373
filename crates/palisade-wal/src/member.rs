//! The directory of a node of a cluster.
//!
//! ```text
//!   empty ──promise_node──► node ──────────────────create_member──► identity (kind member)
//!   a single server's directory ──promise_node──► node beside it ──Conversion──┘
//! ```
//!
//! A life that begins with a state (a new cluster's members, or all that a single server knew) is written as a restore
//! in place writes one: its files count when the identity is renamed.

use std::io;
use std::num::NonZeroU64;
use std::sync::Arc;

use crate::Seq;
use crate::error::{OpenError, ReadError, ReplayError};
use crate::id::Id;
use crate::identity::{self, As, DirectoryKind, Identity};
use crate::open::{Opened, make, open_holding, refuse_orphans};
use crate::options::Options;
use crate::promise::promise_node;
use crate::restore_in_place::{InPlace, clear_attempt, write_life};
use crate::snapshot::{SnapshotReader, SnapshotWriter};
use crate::storage::Storage;
use crate::writer::Wal;

/// The purpose of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Purpose {
    /// There is no log in it.
    Blank,
    /// A single server's, or a store's.
    Single(Identity),
    /// Node `node`'s.
    Member {
        /// The cluster, and the life of its log.
        identity: Identity,
        /// The node.
        node: NonZeroU64,
    },
}

/// Looks at a directory. Nothing is changed.
///
/// # Errors
/// [`OpenError::Backup`]; damage; I/O.
pub fn purpose(storage: &dyn Storage) -> Result<Purpose, OpenError> {
    let Some(found) = identity::read(storage)? else {
        return Ok(Purpose::Blank);
    };
    let identity = found.identity;
    match identity.kind {
        DirectoryKind::Live => Ok(Purpose::Single(identity)),
        DirectoryKind::Member(node) => Ok(Purpose::Member { identity, node }),
        DirectoryKind::Backup => Err(OpenError::Backup {
            dir: storage.path(),
        }),
    }
}

impl Wal {
    /// Opens the directory of a member.
    ///
    /// # Errors
    /// As [`open`](Wal::open); [`OpenError::NotMember`].
    pub fn open_member_on(
        storage: Arc<dyn Storage>,
        options: &Options,
    ) -> Result<Opened, OpenError> {
        open_holding(storage, options, As::Member, None)
    }

    /// Makes the log of a member in a directory that has none, for the node id that [promise_node] made durable there.
    /// It begins with the state that `first` writes, as its first snapshot, or with nothing. Durable on return. A crash
    /// before that leaves a directory without a log, and this can be repeated, also for another cluster.
    ///
    /// # Errors
    /// [`OpenError::Exists`]; as [`open_member_on`](Wal::open_member_on).
    pub fn create_member_on<S>(
        storage: Arc<dyn Storage>,
        (owner, incarnation): (Id, Id),
        options: &Options,
        first: Option<S>,
    ) -> Result<Opened, OpenError>
    where
        S: FnOnce(&mut SnapshotWriter) -> io::Result<()>,
    {
        options.check()?;
        let dir = storage.path();
        if identity::read(&*storage)?.is_some() {
            return Err(OpenError::Exists { dir });
        }
        let node = promise_node(&*storage)?;
        clear_attempt(&*storage, None)?;
        refuse_orphans(&*storage)?;
        let identity = Identity {
            owner,
            incarnation,
            kind: DirectoryKind::Member(node),
        };
        let made = match first {
            None => make(&*storage, &identity, options.first_segment_bytes),
            Some(save) => identity::prepare_live(&*storage, &identity, 1, None).and_then(|made| {
                write_life(&*storage, &identity, &made, 1, options, save)?;
                Ok(made)
            }),
        };
        let what = format!("create the log in {}", dir.display());
        let made = made.map_err(OpenError::io(what))?;
        open_holding(storage, options, As::Member, Some(made.file))
    }
}

/// A single server's directory that is about to become a member's: first rebuild the state from it, then write that
/// down in the form that a member's log has.
///
/// ```text
/// snapshot() → load it · replay(…) → apply each frame · finish(…) → the whole state
/// ```
///
/// The member's life is a new incarnation. This alone distinguishes the log from the remains of an interrupted
/// conversion, and means that a copy of the single server's directory is no copy of a member's.
pub struct Conversion(InPlace);

impl Conversion {
    /// Takes the lock and reads the log.
    ///
    /// # Errors
    /// As [`Wal::open`], also for a copy: it would issue the same tokens again. Nothing of the log was changed.
    pub fn begin_on(storage: Arc<dyn Storage>) -> Result<Conversion, OpenError> {
        let in_place = InPlace::begin_on(storage)?;
        in_place.check_untouched()?;
        Ok(Conversion(in_place))
    }

    /// The newest snapshot, if there is one.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn snapshot(&self) -> Result<Option<SnapshotReader>, ReadError> {
        self.0.snapshot()
    }

    /// Hands out the frames behind the snapshot, in order.
    ///
    /// # Errors
    /// [`ReplayError::Apply`] with the first error of `each`; [`ReplayError::Read`].
    pub fn replay<E>(
        &self,
        each: impl FnMut(Seq, &[u8]) -> Result<(), E>,
    ) -> Result<(), ReplayError<E>> {
        self.0.replay(each)
    }

    /// Begins the member's life with the state that `save` writes, under the id that [promise_node] made durable
    /// in the directory. The owner stays. Durable on return; a crash before that leaves the single server's directory,
    /// and this can be done again.
    ///
    /// # Errors
    /// [`OpenError::Io`].
    pub fn finish(
        self,
        options: &Options,
        save: impl FnOnce(&mut SnapshotWriter) -> io::Result<()>,
    ) -> Result<Opened, OpenError> {
        options.check()?;
        let storage = Arc::clone(self.0.storage());
        let node = promise_node(&*storage)?;
        let what = format!("convert {}", storage.path().display());
        let begin = || {
            let identity = Identity {
                incarnation: Id::random(&*storage)?,
                kind: DirectoryKind::Member(node),
                ..*self.0.identity()
            };
            self.0.begin_life(&identity, options, save)
        };
        let current = begin().map_err(OpenError::io(what))?;
        drop(self);
        open_holding(storage, options, As::Member, Some(current.file))
    }
}
