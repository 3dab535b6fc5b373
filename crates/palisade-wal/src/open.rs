//! Creating and opening a log.

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use crate::Seq;
use crate::compact::Shared;
use crate::error::{CommitError, OpenError, ReadError, ReplayError};
use crate::frame;
use crate::identity::{self, As, Current, DirectoryKind, Identity, IdentityOnDisk};
use crate::opening::is_opening;
use crate::options::{CreateOptions, Options};
use crate::prepare::{self, Preparer};
use crate::promise;
use crate::recover::{self, RecoveryReport, Scan, Tail, TornTail};
use crate::restore_in_place;
use crate::segment::{self, SegmentInfo, replay};
use crate::snapshot::{self, SnapshotReader};
use crate::storage::{self, DirStorage, File, OpenMode, Storage};
use crate::writer::{Active, Wal, name_segment};

impl Wal {
    /// Makes a new log in a new or an empty directory. Its name and identity are durable on return.
    ///
    /// # Errors
    /// [`OpenError::Exists`] when there is one already; else as [`open`](Wal::open).
    pub fn create(
        dir: &Path,
        create: &CreateOptions,
        options: &Options,
    ) -> Result<Opened, OpenError> {
        Wal::create_on(Arc::new(DirStorage::create(dir)?), create, options)
    }

    /// Opens an existing log: takes the lock, checks the identity, reads everything, cuts off a torn tail.
    /// Everything it hands out is on stable storage on return.
    ///
    /// # Errors
    /// [`OpenError`] names the obstacle and the next step. Nothing on disk has changed then, except after an I/O
    /// error during the repair of the tail.
    pub fn open(dir: &Path, options: &Options) -> Result<Opened, OpenError> {
        Wal::open_on(Arc::new(DirStorage::lock(dir)?), options)
    }

    /// Opens the log in `dir`, or makes one when there is none.
    ///
    /// # Errors
    /// As [`open`](Wal::open) and [`create`](Wal::create).
    pub fn open_or_create(
        dir: &Path,
        create: &CreateOptions,
        options: &Options,
    ) -> Result<Opened, OpenError> {
        Wal::open_or_create_on(Arc::new(DirStorage::create(dir)?), create, options)
    }

    /// [`open_or_create`](Wal::open_or_create) on any storage.
    ///
    /// # Errors
    /// As [`open_or_create`](Wal::open_or_create).
    pub fn open_or_create_on(
        storage: Arc<dyn Storage>,
        create: &CreateOptions,
        options: &Options,
    ) -> Result<Opened, OpenError> {
        match Wal::open_on(storage.clone(), options) {
            Err(OpenError::Missing { .. }) => Wal::create_on(storage, create, options),
            opened => opened,
        }
    }

    /// [`create`](Wal::create) on any storage.
    ///
    /// # Errors
    /// As [`create`](Wal::create).
    pub fn create_on(
        storage: Arc<dyn Storage>,
        create: &CreateOptions,
        options: &Options,
    ) -> Result<Opened, OpenError> {
        options.check()?;
        if identity::read(&*storage)?.is_some() {
            return Err(OpenError::Exists {
                dir: storage.path(),
            });
        }
        promise::refuse_promised(&*storage)?;
        refuse_orphans(&*storage)?;
        let identity = create.identity(&*storage)?;
        let what = format!("create the log in {}", storage.path().display());
        let made =
            make(&*storage, &identity, options.first_segment_bytes).map_err(OpenError::io(what))?;
        open_holding(storage, options, As::Single, Some(made.file))
    }

    /// [`open`](Wal::open) on any storage.
    ///
    /// # Errors
    /// As [`open`](Wal::open).
    pub fn open_on(storage: Arc<dyn Storage>, options: &Options) -> Result<Opened, OpenError> {
        open_holding(storage, options, As::Single, None)
    }
}

/// Opens a log. `held` is its identity file if this process has locked it already: a child process that is just
/// starting may still have a copy of the file open, so a lock that is released and taken again can be lost to it.
pub(crate) fn open_holding(
    storage: Arc<dyn Storage>,
    options: &Options,
    opened: As,
    held: Option<Box<dyn File>>,
) -> Result<Opened, OpenError> {
    options.check()?;
    let Some(found) = identity::read(&*storage)? else {
        refuse_orphans(&*storage)?;
        return Err(OpenError::Missing {
            dir: storage.path(),
        });
    };
    let _old_identity = held.map_or_else(|| identity::lock(&*storage), Ok)?;
    found.check_live(&*storage, opened)?;
    let what = || OpenError::io(format!("recover the log in {}", storage.path().display()));
    restore_in_place::clear_attempt(&*storage, Some(&found.identity.incarnation))?;
    let scan = recover::scan(&*storage, &found.identity.incarnation)?;
    found.check_log(&*storage, &scan)?;
    recovered(storage.clone(), &found, scan, options).map_err(what())
}

/// Refuses log files without an identity, except the one file of an interrupted creation, where nothing was ever
/// committed.
pub(crate) fn refuse_orphans(storage: &dyn Storage) -> Result<(), OpenError> {
    let what = || format!("read {}", storage.path().display());
    let names = storage.list().map_err(OpenError::io(what()))?;
    let ours = |name: &&String| {
        segment::parse_name(name).is_some() || snapshot::parse_name(name).is_some()
    };
    let orphans: Vec<&String> = names.iter().filter(ours).collect();
    let blank = match orphans.as_slice() {
        [] => true,
        [only] if **only == segment::name(1) => {
            recover::first_is_blank(storage).map_err(OpenError::io(what()))?
        }
        _ => false,
    };
    if blank {
        Ok(())
    } else {
        Err(OpenError::NoIdentity {
            dir: storage.path(),
        })
    }
}

/// Lists, in order, the names in a directory without a log that Palisade does not leave there itself when it is
/// interrupted; `None` if there is a log. A new directory and an empty one contain none, and a file system's own
/// `lost+found` does not count.
///
/// # Errors
/// The directory cannot be read.
pub fn foreign_names(dir: &Path) -> io::Result<Option<Vec<String>>> {
    let entries = match std::fs::read_dir(dir) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Some(Vec::new())),
        entries => entries?,
    };
    let mut foreign = Vec::new();
    for entry in entries {
        let entry = entry?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if name == identity::NAME {
            return Ok(None);
        }
        let is_the_systems = name == LOST_AND_FOUND && entry.file_type()?.is_dir();
        if !is_ours(&name) && !is_the_systems {
            foreign.push(name);
        }
    }
    foreign.sort_unstable();
    Ok(Some(foreign))
}

/// The directory that ext4 and others keep at the root of a file system.
pub(crate) const LOST_AND_FOUND: &str = "lost+found";

fn is_ours(name: &str) -> bool {
    name == storage::LOCK
        || name == promise::NAME
        || is_leftover(name)
        || is_opening(name)
        || segment::parse_name(name).is_some()
        || snapshot::parse_name(name).is_some()
}

/// The first segment, then the identity: a directory with an identity is complete.
pub(crate) fn make(
    storage: &dyn Storage,
    identity: &Identity,
    segment_bytes: u64,
) -> io::Result<Current> {
    let file = prepare::fill(storage, segment_bytes, &AtomicBool::new(false))?;
    name_segment(storage, &*file, &identity.incarnation, 1, segment_bytes)?;
    identity::write_live(storage, identity, 1, None)
}

/// Removes the files of unfinished operations. Their names are never part of the log.
fn remove_leftovers(storage: &dyn Storage) -> io::Result<Vec<String>> {
    let mut names = storage.list()?;
    names.retain(|name| is_leftover(name));
    names.iter().try_for_each(|name| storage.remove(name))?;
    Ok(names)
}

fn is_leftover(name: &str) -> bool {
    name == prepare::NEXT
        || name == identity::TMP
        || name == promise::TMP
        || name
            .strip_suffix(".tmp")
            .is_some_and(|name| snapshot::parse_name(name).is_some())
}

/// Makes the log that [`recover::scan`] found durable and ready for appends.
fn recovered(
    storage: Arc<dyn Storage>,
    found: &IdentityOnDisk,
    scan: Scan,
    options: &Options,
) -> io::Result<Opened> {
    let file = storage.open(&segment::name(scan.tail.first), OpenMode::Write)?;
    scan.tail.repair(&*file)?;
    // A rename of an earlier process may be visible and not yet durable.
    storage.sync_dir()?;
    let mut report = report(&*storage, &scan);
    report.removed = remove_leftovers(&*storage)?;
    if let DirectoryKind::Member(_) = found.identity.kind {
        promise::forget_promise(&*storage)?;
    }
    let current = found.renew(&*storage, scan.opening)?;

    let tail = scan.tail;
    let active = Active {
        file,
        first: tail.first,
        len: tail.len,
        end: tail.end,
        seed: tail.seed,
        settled: false,
    };
    let mut sealed = scan.segments.clone();
    sealed.pop();
    let shared = Arc::new(Shared::new(
        storage.clone(),
        found.identity,
        current,
        scan.snapshot,
        sealed,
    ));
    let preparer = Preparer::start(shared.clone(), options)?;
    let mut wal = Wal::new(shared.clone(), preparer, active, tail.next_seq);
    wal.begin().map_err(|error| match error {
        CommitError::Full(full) => io::Error::new(io::ErrorKind::StorageFull, full),
        other => io::Error::other(other),
    })?;
    identity::complete(&*shared.storage, shared.opening)?;
    // Only now: until here one of them may be the only segment that says which opening was the last.
    scan.superseded
        .iter()
        .try_for_each(|name| storage.remove(name))?;
    report.removed.extend(scan.superseded);
    Ok(Opened {
        wal,
        shared,
        segments: scan.segments,
        snapshot: scan.snapshot,
        report,
    })
}

pub(crate) fn report(storage: &dyn Storage, scan: &Scan) -> RecoveryReport {
    let Tail {
        end,
        junk_end,
        next_seq,
        first,
        ..
    } = scan.tail;
    let file = storage.path().join(segment::name(first));
    let torn = (junk_end > end).then(|| TornTail {
        file,
        offset: end,
        bytes: junk_end - end,
    });
    RecoveryReport {
        snapshot: scan.snapshot,
        frames: next_seq - 1 - scan.snapshot.map_or(0, Seq::get),
        bytes: scan.segments.iter().map(|info| info.end).sum(),
        last: Seq::new(next_seq - 1),
        torn,
        damaged_snapshots: scan
            .damaged_snapshots
            .iter()
            .map(|damage| damage.file.clone())
            .collect(),
        removed: Vec::new(),
    }
}

/// An opened log: first rebuild the state from it, then write to it.
///
/// ```text
/// snapshot() → load it · replay(…) → apply each frame · into_wal() → commit
/// ```
pub struct Opened {
    wal: Wal,
    shared: Arc<Shared>,
    segments: Vec<SegmentInfo>,
    snapshot: Option<Seq>,
    report: RecoveryReport,
}

impl Opened {
    /// The identity of the directory.
    pub fn identity(&self) -> &Identity {
        self.wal.identity()
    }

    /// How often this directory was opened in this life, this time included.
    pub fn starts(&self) -> u64 {
        self.shared.opening.number
    }

    /// The findings of recovery.
    pub fn report(&self) -> &RecoveryReport {
        &self.report
    }

    /// The newest snapshot, if there is one.
    ///
    /// # Errors
    /// [`ReadError`]; the snapshot was whole when the log was opened.
    pub fn snapshot(&self) -> Result<Option<SnapshotReader>, ReadError> {
        let open = |seq| {
            SnapshotReader::open(
                &*self.shared.storage,
                &self.shared.identity.incarnation,
                seq,
            )
        };
        self.snapshot.map(open).transpose()
    }

    /// Hands out the frames behind the snapshot, in order. All of them are on stable storage.
    ///
    /// # Errors
    /// [`ReplayError::Apply`] with the first error of `each`; [`ReplayError::Read`].
    pub fn replay<E>(
        &self,
        each: impl FnMut(Seq, &[u8]) -> Result<(), E>,
    ) -> Result<(), ReplayError<E>> {
        replay(
            &*self.shared.storage,
            &self.shared.identity.incarnation,
            &self.segments,
            self.snapshot,
            each,
        )
    }

    /// The log, ready for writing.
    pub fn into_wal(self) -> Wal {
        self.wal
    }
}

const _: () = assert!(segment::HEADER.is_multiple_of(frame::ALIGN));
