//! A new incarnation of a log in its own directory, after files in it were touched or replaced.
//!
//! ```text
//!   opening-…8 ──► identity.tmp (new incarnation) ──► snap-(last + 1) ──► log-(last + 2) ──► identity
//!                                                                                  the step that counts ┘
//! ```
//!
//! The snapshot contains everything that was there, and has the number of one frame more: the caller's own entry about
//! the leap. So no new file has the name of an old one, and the next open removes the old ones. Before the last step
//! the old incarnation counts, and `identity.tmp` names the incarnation of the files that an interrupted attempt has
//! left.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::Seq;
use crate::error::{OpenError, ReadError, ReplayError};
use crate::frame::Seed;
use crate::id::Id;
use crate::identity::{self, As, Current, DirectoryKind, Identity, IdentityOnDisk};
use crate::options::Options;
use crate::prepare;
use crate::promise::forget_promise;
use crate::recover::{self, Scan};
use crate::segment::{self, replay};
use crate::snapshot::{self, SnapshotReader, SnapshotWriter};
use crate::storage::{DirStorage, File, OpenMode, Storage};
use crate::writer::{Active, name_segment};

/// A directory that is about to begin a new incarnation: first rebuild the state from it, then write that down.
///
/// ```text
/// snapshot() → load it · replay(…) → apply each frame · finish(…) → the state with the caller's own entry in it
/// ```
pub struct InPlace {
    storage: Arc<dyn Storage>,
    found: IdentityOnDisk,
    scan: Scan,
    _lock: Box<dyn File>,
}

impl InPlace {
    /// Takes the lock and reads the log in `dir`, even if its files were touched.
    ///
    /// # Errors
    /// As [`Wal::open`](crate::Wal::open), but never [`OpenError::Copied`]. Nothing of the log was changed.
    pub fn begin(dir: &Path) -> Result<InPlace, OpenError> {
        InPlace::begin_on(Arc::new(DirStorage::lock_log(dir)?))
    }

    /// [`begin`](InPlace::begin) on any storage.
    ///
    /// # Errors
    /// As [`begin`](InPlace::begin).
    pub fn begin_on(storage: Arc<dyn Storage>) -> Result<InPlace, OpenError> {
        InPlace::begin_as(storage, As::Single)
    }

    /// [`begin_on`](InPlace::begin_on) for the directory of a member, which [`finish`](InPlace::finish) makes a single
    /// server's. The node's id ends with it.
    ///
    /// # Errors
    /// As [`begin`](InPlace::begin); [`OpenError::NotMember`].
    pub fn begin_member_on(storage: Arc<dyn Storage>) -> Result<InPlace, OpenError> {
        let begun = InPlace::begin_as(storage, As::Member)?;
        // The identity has the id. If the file of it stayed, the next cluster would get the same one.
        let what = format!("clear {}", begun.storage.path().display());
        forget_promise(&*begun.storage).map_err(OpenError::io(what))?;
        Ok(begun)
    }

    fn begin_as(storage: Arc<dyn Storage>, kind: As) -> Result<InPlace, OpenError> {
        let dir = storage.path();
        let Some(found) = identity::read(&*storage)? else {
            return Err(OpenError::Missing { dir });
        };
        kind.check(&*storage, found.identity.kind)?;
        let lock = identity::lock(&*storage)?;
        clear_attempt(&*storage, Some(&found.identity.incarnation))?;
        let scan = recover::scan(&*storage, &found.identity.incarnation)?;
        Ok(InPlace {
            storage,
            found,
            scan,
            _lock: lock,
        })
    }

    /// The newest snapshot, if there is one.
    ///
    /// # Errors
    /// [`ReadError`].
    pub fn snapshot(&self) -> Result<Option<SnapshotReader>, ReadError> {
        let incarnation = &self.found.identity.incarnation;
        let open = |seq| SnapshotReader::open(&*self.storage, incarnation, seq);
        self.scan.snapshot.map(open).transpose()
    }

    /// Hands out the frames behind the snapshot, in order.
    ///
    /// # Errors
    /// [`ReplayError::Apply`] with the first error of `each`; [`ReplayError::Read`].
    pub fn replay<E>(
        &self,
        each: impl FnMut(Seq, &[u8]) -> Result<(), E>,
    ) -> Result<(), ReplayError<E>> {
        replay(
            &*self.storage,
            &self.found.identity.incarnation,
            &self.scan.segments,
            self.scan.snapshot,
            each,
        )
    }

    /// Begins the new incarnation, a single server's, with the state that `save` writes. The owner stays. Durable on
    /// return; a crash before that leaves the old incarnation, and this can be done again.
    ///
    /// # Errors
    /// [`OpenError::Io`].
    pub fn finish(
        self,
        options: &Options,
        save: impl FnOnce(&mut SnapshotWriter) -> io::Result<()>,
    ) -> Result<Identity, OpenError> {
        let dir = self.storage.path();
        let done = self.try_finish(options, save);
        done.map_err(OpenError::io(format!("restore {} in place", dir.display())))
    }

    fn try_finish(
        self,
        options: &Options,
        save: impl FnOnce(&mut SnapshotWriter) -> io::Result<()>,
    ) -> io::Result<Identity> {
        let storage = &*self.storage;
        let identity = Identity {
            incarnation: Id::random(storage)?,
            kind: DirectoryKind::Live,
            ..self.found.identity
        };
        self.begin_life(&identity, options, save)?;
        Ok(identity)
    }

    /// Begins the life of this identity with the state that `save` writes; durable on return.
    pub(crate) fn begin_life(
        &self,
        identity: &Identity,
        options: &Options,
        save: impl FnOnce(&mut SnapshotWriter) -> io::Result<()>,
    ) -> io::Result<Current> {
        let storage = &*self.storage;
        let current = self.found.prepare_life(storage, identity)?;
        let seq = self.scan.tail.next_seq;
        write_life(storage, identity, &current, seq, options, save)?;
        Ok(current)
    }

    /// Refuses a directory that is not as its last run left it.
    pub(crate) fn check_untouched(&self) -> Result<(), OpenError> {
        self.found.check_live(&*self.storage, As::Single)?;
        self.found.check_log(&*self.storage, &self.scan)
    }

    /// The storage that it works on.
    pub(crate) fn storage(&self) -> &Arc<dyn Storage> {
        &self.storage
    }

    /// The identity as it is now.
    pub fn identity(&self) -> &Identity {
        &self.found.identity
    }
}

/// Writes the files of a life that begins with a snapshot, and last puts its prepared identity in place, which is the
/// step that counts.
pub(crate) fn write_life(
    storage: &dyn Storage,
    identity: &Identity,
    current: &Current,
    seq: u64,
    options: &Options,
    save: impl FnOnce(&mut SnapshotWriter) -> io::Result<()>,
) -> io::Result<()> {
    if let Some(last) = Seq::new(seq) {
        write_snapshot(storage, identity, last, save)?;
    }
    write_segment(
        storage,
        identity,
        current,
        seq + 1,
        options.first_segment_bytes,
    )?;
    identity::install(storage)
}

fn write_snapshot(
    storage: &dyn Storage,
    identity: &Identity,
    seq: Seq,
    save: impl FnOnce(&mut SnapshotWriter) -> io::Result<()>,
) -> io::Result<()> {
    let tmp = snapshot::tmp_name(seq);
    let mut writer = SnapshotWriter::create(storage, &tmp, &identity.incarnation, seq)?;
    save(&mut writer)?;
    writer.finish()?;
    storage.rename(&tmp, &snapshot::name(seq))
}

fn write_segment(
    storage: &dyn Storage,
    identity: &Identity,
    current: &Current,
    first: u64,
    len: u64,
) -> io::Result<()> {
    let file = prepare::fill(storage, len, &AtomicBool::new(false))?;
    name_segment(storage, &*file, &identity.incarnation, first, len)?;
    let mut active = Active {
        file,
        first,
        len,
        end: segment::HEADER as u64,
        seed: Seed::new(&identity.incarnation, first),
        settled: true,
    };
    active.open(&current.opening, first, &mut Vec::new())
}

/// Removes the files of an interrupted attempt: those of the incarnation that `identity.tmp` names, and then that file.
/// Nothing is removed of the incarnation that counts.
pub(crate) fn clear_attempt(
    storage: &dyn Storage,
    that_counts: Option<&Id>,
) -> Result<(), OpenError> {
    let what = || OpenError::io(format!("clear {}", storage.path().display()));
    // It is durable and whole before any other file of the attempt is made.
    let attempt = match identity::read_as(storage, identity::TMP) {
        Ok(Some(found)) => found.identity,
        Ok(None) | Err(ReadError::Damaged(_) | ReadError::Unsupported { .. }) => return Ok(()),
        Err(error) => return Err(error.into()),
    };
    if Some(&attempt.incarnation) == that_counts {
        return Ok(());
    }
    let clear = || {
        for name in storage.list()? {
            let ours =
                segment::parse_name(&name).is_some() || snapshot::parse_name(&name).is_some();
            if ours && incarnation_of(storage, &name)? == attempt.incarnation {
                storage.remove(&name)?;
            }
        }
        storage.sync_dir()?;
        storage.remove(identity::TMP)
    };
    clear().map_err(what())
}

/// The incarnation in the header of a segment or a snapshot; zeros when it is too short to have one.
fn incarnation_of(storage: &dyn Storage, name: &str) -> io::Result<Id> {
    let mut bytes = [0; 16];
    storage
        .open(name, OpenMode::Read)?
        .read_at(segment::INCARNATION, &mut bytes)?;
    Ok(Id::from_bytes(bytes))
}
