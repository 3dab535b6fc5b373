//! The authority on disk: the one place that ties the pipeline to the write-ahead log.
//!
//! ```text
//!   directory ──open──► snapshot + frames ──replay──► Machine ──► pipeline::Start
//!                                                                     │ commit (one frame, one sync)
//!   snapshot thread: sealed segments ──replay──► second Machine ──► new snapshot, old segments go
//! ```
//!
//! Snapshots are made by replaying sealed segments beside the running authority. The ordering thread
//! never stops for one, and what recovers a crash is exercised all the time.

use std::io::{self, Read, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use palisade_core::{AuthorityId, Invalid, Limits, limits};
use palisade_wal::{
    CommitError, Compactor, CreateOptions, Fold, InPlace, OpenError, Opened, Options,
    PreparationWatch, ReadError, RecoveryReport, ReplayError as WalReplayError, Seq,
    SnapshotReader, SnapshotWriter, Wal,
};

use crate::pipeline::clock::wall;
use crate::pipeline::orderer::ROOM;
use crate::pipeline::replay::{Replay, ReplayError};
use crate::pipeline::{Identity, Log, LogError, Pipeline, Returning, Start, seed, start};

/// Bytes of sealed log that are worth a snapshot while the authority is busy, and while it is idle; how often the
/// thread checks. A start reads 16 MiB in about a tenth of a second.
const SNAPSHOT_AFTER: u64 = 64 << 20;
const SNAPSHOT_WHEN_IDLE: u64 = 16 << 20;
const SNAPSHOT_POLL: Duration = Duration::from_millis(500);

// A batch is one frame of the log.
const _: () = assert!(ROOM <= palisade_wal::MAX_PAYLOAD);

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
    /// Its content is not what this version writes.
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
/// [`Error`], whose message names the obstacle. No request was taken in.
pub fn open(dir: &Path, settings: &Settings) -> Result<Authority, Error> {
    let opened = Wal::open_or_create(dir, &CreateOptions::default(), &settings.log)?;
    run(opened, settings)
}

/// Starts the authority's pipeline on a log that is open already.
///
/// # Errors
/// As [`open`].
pub fn run(opened: Opened, settings: &Settings) -> Result<Authority, Error> {
    let report = opened.report().clone();
    let created = report.last.is_none();
    let machine = replay(&opened)?.finish();
    let identity = named(opened.identity())?;
    let wal = opened.into_wal();
    let worked = Arc::new(AtomicBool::new(true));
    let maker = Maker {
        compactor: wal.compactor(),
        preparation: wal.compactor().watch_preparation(),
        give_memory_back: settings.give_memory_back.unwrap_or(|| ()),
        worked: Arc::clone(&worked),
    };
    let snapshots = Snapshots::start(maker).map_err(Error::Start)?;
    let pipeline = start(Start {
        identity,
        machine,
        log: Box::new(OnDisk {
            wal,
            worked,
            no_room: String::new(),
        }),
        manual_clock: settings.manual_clock,
        limits: settings.limits,
        returning: (!created).then_some(Returning::Restarted),
    })
    .map_err(Error::Start)?;
    Ok(Authority {
        pipeline,
        report,
        created,
        snapshots,
    })
}

/// Makes a new authority directory from a backup: the same authority, a new incarnation, and a token
/// counter that has leapt above every token issued since the backup (rule A5), also by an earlier restore
/// of the same one: see [`limits::restore_leap`] for what that asks of the wall clock.
///
/// The directory appears under its name only when the leap is on stable storage; a crash before that
/// leaves a directory whose name ends in `.restoring` and that nothing opens by accident.
///
/// # Errors
/// [`Error`]; `to` was not made then.
pub fn restore(backup: &Path, to: &Path) -> Result<Restored, Error> {
    let mut name = to.as_os_str().to_owned();
    name.push(".restoring");
    let partial = Path::new(&name);
    let by = limits::restore_leap(wall().0).ok_or(Error::Clock)?;
    refuse_existing(to)?;
    if partial.exists() {
        std::fs::remove_dir_all(partial)
            .map_err(place("cannot remove what is left of", partial))?;
    }
    let restored = palisade_wal::restore(backup, partial)
        .map_err(Error::from)
        .and_then(|_| {
            let restored = leap(partial, by)?;
            refuse_existing(to)?;
            std::fs::rename(partial, to).map_err(place("cannot put in place", to))?;
            sync_parent(to)?;
            Ok(restored)
        });
    if restored.is_err() {
        let _ = std::fs::remove_dir_all(partial);
    }
    restored
}

/// Begins a new life of the authority in its own directory, with all that is there: for one whose files were
/// touched, or replaced by an older copy. The counter leaps and the incarnation is new, as with [`restore`].
///
/// A crash before the last step leaves the directory as it was, and this can be done again.
///
/// # Errors
/// [`Error`]; the directory is as it was.
pub fn restore_in_place(dir: &Path) -> Result<Restored, Error> {
    let by = limits::restore_leap(wall().0).ok_or(Error::Clock)?;
    let in_place = InPlace::begin(dir)?;
    let mut replayed = match in_place.snapshot()? {
        Some(mut snapshot) => from_snapshot(&mut snapshot)?,
        None => Replay::from_nothing(seed()),
    };
    in_place
        .replay(|_, batch| replayed.batch(batch))
        .map_err(not_replayed)?;
    // The batch itself is not needed: its effect is in the state that is written down.
    let _ = replayed.return_from(Returning::Restored { leap: by });
    let identity = in_place.finish(&Options::default(), |out| {
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
    let mut replayed = replay(&opened)?;
    let identity = *opened.identity();
    let mut wal = opened.into_wal();
    let batch = replayed.return_from(Returning::Restored { leap: by });
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

fn sync_parent(to: &Path) -> Result<(), Error> {
    let parent = to
        .parent()
        .filter(|parent| !parent.as_os_str().is_empty())
        .unwrap_or(Path::new("."));
    std::fs::File::open(parent)
        .and_then(|dir| dir.sync_all())
        .map_err(place("cannot sync", parent))
}

fn named(identity: &palisade_wal::Identity) -> Result<Identity, Error> {
    let authority = AuthorityId::new(&identity.owner.to_string()).map_err(Error::Identity)?;
    Ok(Identity {
        authority,
        incarnation: identity.incarnation.to_string(),
    })
}

fn replay(opened: &Opened) -> Result<Replay, Error> {
    let mut replay = match opened.snapshot()? {
        Some(mut snapshot) => from_snapshot(&mut snapshot)?,
        None => Replay::from_nothing(seed()).expecting(opened.report().bytes),
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

fn from_snapshot(reader: &mut SnapshotReader) -> Result<Replay, Error> {
    let mut bytes = Vec::new();
    reader.read_to_end(&mut bytes).map_err(Error::Snapshot)?;
    Ok(Replay::from_snapshot(seed(), &bytes)?)
}

/// The log as the pipeline sees it.
struct OnDisk {
    wal: Wal,
    /// Set by every commit, cleared by the thread that makes snapshots.
    worked: Arc<AtomicBool>,
    /// Why there was no room when last asked.
    no_room: String,
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

    fn idle(&mut self) {
        // The mark only helps a later recovery. A failure poisons the log, and the next commit reports it.
        let _ = self.wal.seal_mark();
    }
}

/// The thread that makes snapshots. It ends when this is dropped.
struct Snapshots {
    stop: Option<mpsc::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Snapshots {
    fn start(maker: Maker) -> io::Result<Snapshots> {
        let (stop, stopped) = mpsc::channel();
        let thread = std::thread::Builder::new()
            .name("palisade-snap".into())
            .spawn(move || maker.work(&stopped))?;
        Ok(Snapshots {
            stop: Some(stop),
            thread: Some(thread),
        })
    }
}

impl Drop for Snapshots {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// The state of that thread.
struct Maker {
    compactor: Compactor,
    preparation: PreparationWatch,
    give_memory_back: fn(),
    /// Whether something was logged since the last check.
    worked: Arc<AtomicBool>,
}

impl Maker {
    fn work(mut self, stopped: &mpsc::Receiver<()>) {
        (self.give_memory_back)();
        let mut worth = Worth::default();
        while stopped.recv_timeout(SNAPSHOT_POLL) == Err(mpsc::RecvTimeoutError::Timeout) {
            self.note_preparation();
            if !self.is_due(&worth) {
                continue;
            }
            let sealed = self.compactor.sealed_bytes();
            worth = match self.compactor.compact(&mut Shadow::default()) {
                Ok(made) => Worth::after(made.map_or(0, |made| made.bytes)),
                Err(error) => {
                    tracing::warn!(%error, "no snapshot could be made; the log grows until one can");
                    Worth::after_failure(sealed)
                }
            };
            (self.give_memory_back)();
        }
    }

    fn note_preparation(&mut self) {
        match self.preparation.change() {
            Some(Err(why)) => tracing::warn!(
                why,
                "the next segment of the log cannot be prepared; it is tried again each second, and requests are \
                 refused once the present one is full"
            ),
            Some(Ok(())) => tracing::warn!("the next segment of the log can be prepared again"),
            None => {}
        }
    }

    /// Idle means that nothing was logged since the last check.
    fn is_due(&self, worth: &Worth) -> bool {
        let idle = !self.worked.swap(false, Ordering::Relaxed);
        worth.is_reached(self.compactor.sealed_bytes(), idle)
    }
}

/// How much sealed log is worth a snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Worth {
    busy: u64,
    idle: u64,
}

impl Default for Worth {
    fn default() -> Worth {
        Worth::after(0)
    }
}

impl Worth {
    /// While the authority is busy, a snapshot of a large state must not follow the last one too soon. While it is
    /// idle, a snapshot costs only disk traffic and shortens the next start.
    fn after(bytes: u64) -> Worth {
        Worth {
            busy: SNAPSHOT_AFTER.max(bytes * 2),
            idle: SNAPSHOT_WHEN_IDLE.max(bytes / 8),
        }
    }

    /// The next attempt waits for more log.
    fn after_failure(sealed: u64) -> Worth {
        let more = sealed + SNAPSHOT_AFTER;
        Worth {
            busy: more,
            idle: more,
        }
    }

    fn is_reached(&self, sealed: u64, idle: bool) -> bool {
        sealed >= if idle { self.idle } else { self.busy }
    }
}

/// A second machine that follows the log.
#[derive(Default)]
struct Shadow(Option<Replay>);

impl Shadow {
    fn replay(&mut self) -> &mut Replay {
        self.0.get_or_insert_with(|| Replay::from_nothing(seed()))
    }
}

impl Fold for Shadow {
    type Error = Error;

    fn load(&mut self, snapshot: &mut SnapshotReader) -> Result<(), Error> {
        self.0 = Some(from_snapshot(snapshot)?);
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

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    #[test]
    fn how_much_log_is_worth_a_snapshot_depends_on_the_work_and_on_the_last_one() {
        let (first, after_large) = (Worth::default(), Worth::after(160 * MIB));
        let failed = Worth::after_failure(70 * MIB);
        for (worth, idle, least) in [
            (first, false, 64),
            (first, true, 16),
            (after_large, false, 320),
            (after_large, true, 20),
            (failed, false, 134),
            (failed, true, 134),
        ] {
            assert!(worth.is_reached(least * MIB, idle), "{worth:?}");
            assert!(!worth.is_reached(least * MIB - 1, idle), "{worth:?}");
        }
    }

    #[test]
    fn a_log_is_idle_one_check_after_its_last_commit() {
        let dir = tempfile::tempdir().unwrap();
        let create = CreateOptions::default();
        let opened = Wal::create(&dir.path().join("data"), &create, &Options::small(4 << 10));
        let (wal, worked) = (opened.unwrap().into_wal(), Arc::new(AtomicBool::new(false)));
        let maker = Maker {
            compactor: wal.compactor(),
            preparation: wal.compactor().watch_preparation(),
            give_memory_back: || (),
            worked: Arc::clone(&worked),
        };
        let mut log = OnDisk {
            wal,
            worked,
            no_room: String::new(),
        };
        let only_idle = Worth {
            busy: u64::MAX,
            idle: 0,
        };
        assert!(maker.is_due(&only_idle));
        for _ in 0..2 {
            assert!(log.has_room(1));
            log.commit(b"x").unwrap();
            assert!(!maker.is_due(&only_idle), "busy");
            assert!(log.has_room(1));
            log.idle();
            assert!(maker.is_due(&only_idle), "idle");
        }
    }
}
