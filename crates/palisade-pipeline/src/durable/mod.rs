//! The authority on disk: the one place that ties the pipeline to the write-ahead log.
//!
//! ```text
//!   directory ──open──► snapshot + frames ──replay──► Machine ──► PipelineStart
//!                                                                     │ commit (one frame, one sync)
//!   snapshot thread: sealed segments ──replay──► second Machine ──► new snapshot, old segments go
//! ```
//!
//! Snapshots are made by replaying sealed segments beside the running authority. The ordering thread never stops for
//! one, and the code that recovers from a crash is exercised all the time.

mod contents;
mod partial;
mod past;
mod sign_of_life;
mod snapshots;

use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use palisade_core::{AuthorityId, Invalid, Limits, Timestamp, limits};
use palisade_wal::{
    CommitError, CreateOptions, Fold, InPlace, OpenError, Opened, Options, ReadError,
    RecoveryReport, ReplayError as WalReplayError, Seq, SnapshotReader, SnapshotWriter, Wal,
};

use crate::clock::{boottime, wall};
use crate::orderer::ROOM;
use crate::replay::{Replay, ReplayError};
use crate::{Identity, Log, LogError, Pipeline, PipelineStart, Returning, seed, start};

// A batch is one frame of the log.
const _: () = assert!(ROOM <= palisade_wal::MAX_PAYLOAD);

pub use contents::{Contents, contents};
pub use past::events_after;
pub use snapshots::Snapshots;

use partial::Partial;
use sign_of_life::{LastSign, SignOfLife};

/// How an authority on disk is run.
#[derive(Clone, Debug, Default)]
pub struct Settings {
    /// The operator's bounds.
    pub limits: Limits,
    /// Whether the clock moves only when it is set.
    pub manual_clock: bool,
    /// How the log is run.
    pub log: Options,
    /// Called when much memory was freed: after the start, and after each snapshot, when the second machine is
    /// dropped, which was as large as the first. The program chooses the allocator, so it knows how to make it return
    /// memory to the system.
    pub give_memory_back: Option<fn()>,
}

/// Why an authority's directory could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The log refused.
    #[error(transparent)]
    Open(#[from] OpenError),
    /// Reading it back failed.
    #[error("the log cannot be read: {0}")]
    Read(#[from] ReadError),
    /// The content is not of the kind that this version writes.
    #[error("the log's content cannot be replayed: {0}; was it written by another version?")]
    Replay(#[from] ReplayError),
    /// Reading the snapshot failed.
    #[error("the snapshot cannot be read: {0}")]
    Snapshot(#[source] io::Error),
    /// Writing to it failed.
    #[error("the log cannot be written: {0}")]
    Commit(#[from] CommitError),
    /// The directory's name for the authority is unusable.
    #[error("the directory's identity is unusable: {0}")]
    Identity(Invalid),
    /// The pipeline could not start: no thread, or no room for the first batch.
    #[error("the authority could not start: {0}")]
    Start(#[source] io::Error),
    /// The clock would give a restore tokens that an earlier restore may have issued.
    #[error(
        "the clock of this machine says that 2026 has not begun; a restore takes its tokens from it, so set \
         the clock first"
    )]
    Clock,
    /// The leap of a restore would leave no token to grant.
    #[error(
        "the range of fencing tokens is used up: each restore leaps over at least 2^44 of them, and this one would leave none \
         to grant, so nothing was restored. Begin a new authority (palisade serve --data NEW-DIRECTORY), and re-arm the fence \
         of each resource for it (palisade fence rearm)"
    )]
    TokensExhausted,
    /// A restore could not put the new directory in place.
    #[error("{what} {path}: {source}")]
    Place {
        /// The step that failed.
        what: &'static str,
        /// Its path.
        path: String,
        /// The system's error.
        source: io::Error,
    },
}

/// An authority that runs on a directory.
pub struct Authority {
    /// The pipeline.
    pub pipeline: Pipeline,
    /// The findings at start-up.
    pub report: RecoveryReport,
    /// Whether the directory was made just now.
    pub created: bool,
    snapshots: Snapshots,
}

impl Authority {
    /// Waits until the pipeline has stopped and the directory is free for the next one.
    pub fn join(self) {
        let _ = self.pipeline.thread.join();
        drop(self.snapshots);
    }
}

/// Opens the authority in `dir`, or makes a new one there, and starts its pipeline.
///
/// When this returns, everything recovered is on stable storage and every live lease has its full time
/// again (rule A7).
///
/// # Errors
/// [`Error`], with a message that names the obstacle. No request was accepted.
pub fn open(dir: &Path, settings: &Settings) -> Result<Authority, Error> {
    let opened = Wal::open_or_create(dir, &CreateOptions::default(), &settings.log)?;
    let (signs, seen) = if settings.manual_clock {
        SignOfLife::forget(dir);
        (None, None)
    } else {
        SignOfLife::begin(dir).unzip()
    };
    start_on(opened, settings, signs, seen.flatten())
}

/// Starts the authority's pipeline on a log that is open already. The time since its last entry is not known.
///
/// # Errors
/// As [`open`].
pub fn run(opened: Opened, settings: &Settings) -> Result<Authority, Error> {
    start_on(opened, settings, None, None)
}

fn start_on(
    opened: Opened,
    settings: &Settings,
    signs: Option<SignOfLife>,
    seen: Option<LastSign>,
) -> Result<Authority, Error> {
    let report = opened.report().clone();
    let created = report.last.is_none();
    let machine = replay(&opened, seed())?.finish();
    let identity = named(opened.identity())?;
    let wal = opened.into_wal();
    let worked = Arc::new(AtomicBool::new(true));
    let compactor = wal.compactor();
    let make = move || match compactor.compact(&mut Shadow::new(seed())) {
        Ok(made) => Ok(made.map(|made| made.bytes)),
        Err(error) => Err(error.to_string()),
    };
    let snapshots = Snapshots::start(
        wal.compactor(),
        Arc::clone(&worked),
        settings.give_memory_back,
        make,
    )
    .map_err(Error::Start)?;
    let resumed = seen.and_then(|seen| seen.returning(machine.now(), boottime()));
    let returning = resumed.unwrap_or(Returning::Restarted);
    let pipeline = start(PipelineStart {
        identity,
        machine,
        log: Box::new(OnDisk {
            wal,
            worked,
            no_room: String::new(),
            signs,
        }),
        manual_clock: settings.manual_clock,
        limits: settings.limits,
        returning: (!created).then_some(returning),
    })
    .map_err(Error::Start)?;
    Ok(Authority {
        pipeline,
        report,
        created,
        snapshots,
    })
}

/// Makes a new authority directory from a backup: the same authority, a new incarnation, and a token counter that has
/// leapt above every token issued since the backup, also by an earlier restore of the same backup (rule A5).
/// [`limits::restore_leap`] says which wall clock that needs.
///
/// The directory appears under its name only when the leap is on stable storage. A crash before that leaves a directory
/// beside it with a name that begins with a dot and ends in `.restoring`. Nothing opens it by accident, and the next
/// restore to the same name deletes it.
///
/// # Errors
/// [`Error`]; `to` was not made then.
pub fn restore(backup: &Path, to: &Path) -> Result<Restored, Error> {
    let by = limits::restore_leap(wall().0).ok_or(Error::Clock)?;
    refuse_existing(to)?;
    let partial = Partial::beside(to)?;
    palisade_wal::restore(backup, partial.path())?;
    let restored = leap(partial.path(), by)?;
    refuse_existing(to)?;
    partial.put(to)?;
    Ok(restored)
}

/// Begins a new life of the authority in its own directory, with everything in it, after files were touched or replaced
/// by an older copy. The counter leaps and the incarnation is new, as with [`restore`].
///
/// A crash before the last step leaves the directory as it was, and this can be done again.
///
/// # Errors
/// [`Error`]; the directory is as it was.
pub fn restore_in_place(dir: &Path) -> Result<Restored, Error> {
    let in_place = InPlace::begin(dir)?;
    let mut replayed = match in_place.snapshot()? {
        Some(mut snapshot) => from_snapshot(&mut snapshot, seed())?,
        None => Replay::from_nothing(seed()),
    };
    in_place
        .replay(|_, batch| replayed.batch(batch))
        .map_err(not_replayed)?;
    begin_again(in_place, replayed, &Options::default())
}

/// Begins the new life of a directory with this state, after a leap of its counter (rule A5).
///
/// # Errors
/// [`Error`]; the directory is as it was.
pub fn begin_again(
    in_place: InPlace,
    mut replayed: Replay,
    options: &Options,
) -> Result<Restored, Error> {
    let by = limits::restore_leap(wall().0).ok_or(Error::Clock)?;
    // The batch itself is not needed: its effect is in the state that is written down.
    let _ = replayed.return_from(Returning::Restored { leap: by })?;
    replayed
        .machine()
        .next_token()
        .ok_or(Error::TokensExhausted)?;
    let identity = in_place.finish(options, |out| {
        replayed.snapshot(|bytes| out.write_all(bytes))
    })?;
    restored(&identity, replayed)
}

fn restored(identity: &palisade_wal::Identity, replayed: Replay) -> Result<Restored, Error> {
    let identity = named(identity)?;
    let machine = replayed.finish();
    Ok(Restored {
        identity,
        next_token: machine.next_token(),
        locks: machine.locks(),
    })
}

/// A restored authority.
#[derive(Clone, Debug)]
pub struct Restored {
    /// Its identity.
    pub identity: Identity,
    /// The token the next grant gets; `None` if the range is exhausted.
    pub next_token: Option<palisade_core::Token>,
    /// Locks that were held when the backup was made; their leases get their full time again.
    pub locks: usize,
}

fn leap(dir: &Path, by: u64) -> Result<Restored, Error> {
    let opened = Wal::open(dir, &Options::default())?;
    let mut replayed = replay(&opened, seed())?;
    let identity = *opened.identity();
    let mut wal = opened.into_wal();
    let batch = replayed.return_from(Returning::Restored { leap: by })?;
    replayed
        .machine()
        .next_token()
        .ok_or(Error::TokensExhausted)?;
    wal.commit(&batch)?;
    wal.close()?;
    restored(&identity, replayed)
}

fn refuse_existing(to: &Path) -> Result<(), Error> {
    let taken = match std::fs::read_dir(to) {
        Ok(mut entries) => entries.next().is_some(),
        Err(error) => error.kind() != io::ErrorKind::NotFound,
    };
    if taken {
        let source = io::Error::new(
            io::ErrorKind::AlreadyExists,
            "it exists; choose a new directory",
        );
        return Err(place("cannot restore into", to)(source));
    }
    Ok(())
}

fn place<'a>(what: &'static str, path: &'a Path) -> impl FnOnce(io::Error) -> Error + 'a {
    move |source| Error::Place {
        what,
        path: path.display().to_string(),
        source,
    }
}

fn named(identity: &palisade_wal::Identity) -> Result<Identity, Error> {
    let authority = AuthorityId::new(&identity.owner.to_string()).map_err(Error::Identity)?;
    Ok(Identity {
        authority,
        incarnation: identity.incarnation.to_string(),
    })
}

/// The state that a log ends in. `seed` as in [`Machine::new`](palisade_core::Machine::new).
///
/// # Errors
/// [`Error`] if it cannot be read or replayed.
pub fn replay(opened: &Opened, seed: u64) -> Result<Replay, Error> {
    let mut replay = match opened.snapshot()? {
        Some(mut snapshot) => from_snapshot(&mut snapshot, seed)?,
        None => Replay::from_nothing(seed).expecting(opened.report().bytes),
    };
    opened
        .replay(|_, batch| replay.batch(batch))
        .map_err(not_replayed)?;
    Ok(replay)
}

fn not_replayed(error: WalReplayError<ReplayError>) -> Error {
    match error {
        WalReplayError::Apply { source, .. } => Error::Replay(source),
        WalReplayError::Read(error) => Error::Read(error),
    }
}

fn from_snapshot(reader: &mut SnapshotReader, seed: u64) -> Result<Replay, Error> {
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).map_err(Error::Snapshot)?;
    Ok(Replay::from_snapshot(seed, &bytes)?)
}

/// The log as the pipeline sees it.
struct OnDisk {
    wal: Wal,
    /// Set by every commit, cleared by the thread that makes snapshots.
    worked: Arc<AtomicBool>,
    /// Why there was no room when last asked.
    no_room: String,
    signs: Option<SignOfLife>,
}

impl Log for OnDisk {
    fn has_room(&mut self, bytes: usize) -> bool {
        match self.wal.reserve(bytes) {
            Ok(()) => true,
            Err(full) => {
                self.no_room = full.to_string();
                false
            }
        }
    }

    fn no_room(&self) -> String {
        self.no_room.clone()
    }

    fn check(&self) -> Result<(), LogError> {
        match self.wal.poisoned() {
            None => Ok(()),
            Some(cause) => Err(LogError::Failed(cause.to_owned())),
        }
    }

    fn commit(&mut self, batch: &[u8]) -> Result<(), LogError> {
        self.worked.store(true, Ordering::Relaxed);
        self.wal
            .commit(batch)
            .map(drop)
            .map_err(|error| LogError::Failed(error.to_string()))
    }

    fn alive(&mut self, at: Timestamp, boottime: u64) {
        if let Some(signs) = &mut self.signs {
            signs.give(at, boottime);
        }
    }

    fn idle(&mut self) {
        // The mark only helps a later recovery. A failure poisons the log, and the next commit reports it.
        let _ = self.wal.seal_mark();
    }
}

/// A second machine that follows the log, for a snapshot.
pub struct Shadow {
    seed: u64,
    replay: Option<Replay>,
}

impl Shadow {
    /// One that has followed nothing. `seed` as in [`Machine::new`](palisade_core::Machine::new).
    #[must_use]
    pub fn new(seed: u64) -> Shadow {
        Shadow { seed, replay: None }
    }

    fn replay(&mut self) -> &mut Replay {
        let seed = self.seed;
        self.replay
            .get_or_insert_with(|| Replay::from_nothing(seed))
    }
}

impl Fold for Shadow {
    type Error = Error;

    fn load(&mut self, snapshot: &mut SnapshotReader) -> Result<(), Error> {
        self.replay = Some(from_snapshot(snapshot, self.seed)?);
        Ok(())
    }

    fn apply(&mut self, _: Seq, batch: &[u8]) -> Result<(), Error> {
        Ok(self.replay().batch(batch)?)
    }

    fn save(&mut self, out: &mut SnapshotWriter) -> Result<(), Error> {
        self.replay()
            .snapshot(|bytes| out.write_all(bytes))
            .map_err(Error::Snapshot)
    }
}
