//! The node's log: entries in memory for the engine, records on disk for the next start.
//!
//! ```text
//!   engine ──append, vote, truncate──► Store ──Work──► Sink ──► Writer ──► wal: one frame, one fdatasync
//!                                        │                         │
//!                        Log in memory ◄─┘        done, in order ◄─┘
//! ```
//!
//! The engine reads an entry as soon as it is appended, and hears that it is durable when its frame is synced. All
//! work goes through one queue, so votes, entries and truncations are durable in the order in which they were made
//! (rule R2). Work that gathers while a frame is synced shares the next one.

use std::io::{self, Read as _, Write as _};
use std::mem;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

use palisade_wal::{
    CommitError, Compactor, Fold, Opened, Seq, SnapshotReader, SnapshotWriter, Wal,
};

use crate::entry::{Entry, LogId, NodeId, Vote};
use crate::log::{Log, LogGap};
use crate::record::{self, Record};
use crate::state::{SnapshotHead, State, StateError};

/// The queue to the one [`Writer`], served by a thread, or by a task of a simulation.
pub trait Sink: Send + Sync + 'static {
    /// Adds work at the end. Never blocks.
    fn submit(&self, work: Work);
}

/// Something to make durable, and the callback for the result.
pub struct Work {
    what: What,
    done: Box<dyn FnOnce(io::Result<()>) + Send>,
}

impl Work {
    /// Whether it saves a vote.
    #[must_use]
    pub fn is_vote(&self) -> bool {
        match &self.what {
            What::Records(records) => matches!(records.first(), Some(Record::Vote(_))),
            What::Install(_) => false,
        }
    }

    /// The leader whose entries it appends; `None` if it begins with anything else.
    #[must_use]
    pub fn leader(&self) -> Option<NodeId> {
        match &self.what {
            What::Records(records) => match records.first()? {
                Record::Entry(entry) => Some(entry.id.leader.node),
                Record::Vote(_) | Record::Truncate(_) | Record::Committed(_) => None,
            },
            What::Install(_) => None,
        }
    }

    /// An upper bound of its length in the log.
    #[must_use]
    pub fn bytes(&self) -> usize {
        self.what.bytes()
    }

    /// Nobody will do it: the log has failed.
    pub fn fail(self) {
        (self.done)(Err(io::Error::other("the log of this node has failed")));
    }
}

enum What {
    Records(Vec<Record>),
    /// A snapshot replaces everything before it.
    Install(Vec<u8>),
}

impl What {
    /// An upper bound of its length in the log.
    fn bytes(&self) -> usize {
        match self {
            What::Records(records) => records.iter().map(Record::bytes).sum(),
            What::Install(_) => 0,
        }
    }
}

/// A frame takes no more records once it has grown to this; a single entry may be larger.
const FRAME_BYTES: usize = 4 << 20;

/// The log of a node as its engine sees it. Clones share it.
#[derive(Clone)]
pub struct Store {
    shared: Arc<Shared>,
}

/// A store that somebody else keeps open: its writer ends when nobody does.
#[derive(Clone)]
pub(crate) struct WeakStore {
    shared: Weak<Shared>,
}

impl WeakStore {
    pub(crate) fn upgrade(&self) -> Option<Store> {
        let shared = self.shared.upgrade()?;
        Some(Store { shared })
    }
}

struct Shared {
    log: Mutex<Kept>,
    sink: Box<dyn Sink>,
    compactor: Compactor,
    seed: u64,
}

struct Kept {
    log: Log,
    /// Known to be committed, not written down yet: it goes with the next work.
    unsaved: Option<LogId>,
}

/// The content of a node's directory.
pub struct Stored {
    /// The log, open for writing.
    pub writer: Writer,
    /// The state it ends in, with all entries behind the last snapshot.
    pub state: State,
}

impl Stored {
    /// Reads the directory of a node.
    ///
    /// # Errors
    /// [`StateError`] if the content is not the log of a node.
    pub fn read(opened: Opened, seed: u64) -> Result<Stored, StateError> {
        let snapshot = opened.snapshot().map_err(io::Error::other)?;
        let mut state = match snapshot {
            Some(mut snapshot) => State::load(seed, &read_all(&mut snapshot)?, true)?,
            None => State::new(seed, true),
        };
        let replayed = opened.replay(|_, frame| state.frame(frame));
        replayed.map_err(|error| match error {
            palisade_wal::ReplayError::Apply { source, .. } => source,
            palisade_wal::ReplayError::Read(error) => io::Error::other(error).into(),
        })?;
        Ok(Stored {
            writer: Writer {
                wal: opened.into_wal(),
                frame: Vec::new(),
                frames: 0,
            },
            state,
        })
    }
}

impl Store {
    /// A store that goes on from `log` and sends its work to `sink`.
    #[must_use]
    pub fn new(log: Log, sink: impl Sink, compactor: Compactor, seed: u64) -> Store {
        let kept = Kept { log, unsaved: None };
        Store {
            shared: Arc::new(Shared {
                log: Mutex::new(kept),
                sink: Box::new(sink),
                compactor,
                seed,
            }),
        }
    }

    pub(crate) fn downgrade(&self) -> WeakStore {
        WeakStore {
            shared: Arc::downgrade(&self.shared),
        }
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        // It is changed in single steps, so a panic leaves it in order.
        self.shared
            .log
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Looks into the log.
    pub fn look<T>(&self, look: impl FnOnce(&Log) -> T) -> T {
        look(&self.kept().log)
    }

    /// Appends entries. They can be read at once; `done` is called when they are durable.
    ///
    /// # Errors
    /// [`LogGap`] if they do not follow the log; nothing is written then.
    pub fn append(
        &self,
        entries: Vec<Entry>,
        done: impl FnOnce(io::Result<()>) + Send + 'static,
    ) -> Result<(), LogGap> {
        self.write(entries.into_iter().map(Record::Entry).collect(), done)
    }

    /// Saves a vote; `done` is called when it is durable.
    ///
    /// # Errors
    /// None in practice.
    pub fn save_vote(
        &self,
        vote: Vote,
        done: impl FnOnce(io::Result<()>) + Send + 'static,
    ) -> Result<(), LogGap> {
        self.write(vec![Record::Vote(vote)], done)
    }

    /// Drops the entries behind `last`; `done` is called when that is durable.
    ///
    /// # Errors
    /// [`LogGap`] if one of them is committed.
    pub fn truncate_after(
        &self,
        last: Option<LogId>,
        done: impl FnOnce(io::Result<()>) + Send + 'static,
    ) -> Result<(), LogGap> {
        self.write(vec![Record::Truncate(last)], done)
    }

    /// Entries up to here are committed. The next record writes this down, or [`save_commit`](Store::save_commit).
    ///
    /// # Errors
    /// [`LogGap`] if they are not in the log.
    pub fn commit(&self, to: LogId) -> Result<(), LogGap> {
        let mut kept = self.kept();
        kept.log.record(Record::Committed(to))?;
        kept.unsaved = Some(to);
        Ok(())
    }

    /// Writes down the last commit, if that was not done yet: a backup only sees the disk.
    ///
    /// # Errors
    /// None in practice.
    pub fn save_commit(&self) -> Result<(), LogGap> {
        let unsaved = self.kept().unsaved.is_some();
        if unsaved {
            self.write(Vec::new(), drop)
        } else {
            Ok(())
        }
    }

    /// Forgets entries up to this one in memory. On disk they go with the next snapshot.
    pub fn purge(&self, to: LogId) {
        self.kept().log.purge(to);
    }

    fn write(
        &self,
        mut records: Vec<Record>,
        done: impl FnOnce(io::Result<()>) + Send + 'static,
    ) -> Result<(), LogGap> {
        let mut kept = self.kept();
        for record in &records {
            kept.log.record(record.clone())?;
        }
        if let Some(committed) = kept.unsaved.take() {
            records.push(Record::Committed(committed));
        }
        // Under the lock: the order of the work is that of the log.
        self.shared.sink.submit(Work {
            what: What::Records(records),
            done: Box::new(done),
        });
        Ok(())
    }

    /// Replaces everything with a snapshot that another node made; `done` is called when it is durable. After a
    /// crash the directory contains either the snapshot or its earlier content.
    ///
    /// # Errors
    /// [`StateError`] if the bytes are not those of a snapshot; nothing changed then.
    pub fn install(
        &self,
        snapshot: &[u8],
        done: impl FnOnce(io::Result<()>) + Send + 'static,
    ) -> Result<State, StateError> {
        let state = State::load(self.shared.seed, snapshot, true)?;
        let mut kept = self.kept();
        kept.log.install(state.applied);
        kept.unsaved = None;
        self.submit_snapshot(&kept.log, snapshot, done)?;
        Ok(state)
    }

    /// Makes a snapshot of this node's own state durable; `done` is called then.
    ///
    /// # Errors
    /// [`StateError`] if the bytes are not those of a snapshot; nothing changed then.
    pub(crate) fn put_snapshot(
        &self,
        snapshot: &[u8],
        done: impl FnOnce(io::Result<()>) + Send + 'static,
    ) -> Result<(), StateError> {
        self.submit_snapshot(&self.kept().log, snapshot, done)
    }

    /// With this node's own vote, and with the entries that follow as of now: the log is locked until the work is in
    /// the queue.
    fn submit_snapshot(
        &self,
        log: &Log,
        snapshot: &[u8],
        done: impl FnOnce(io::Result<()>) + Send + 'static,
    ) -> Result<(), StateError> {
        let (head, machine) = SnapshotHead::take(snapshot)?;
        let mut bytes = Vec::with_capacity(snapshot.len());
        SnapshotHead::put(&mut bytes, head.log.purged(), &head.members, log);
        bytes.extend_from_slice(machine);
        self.shared.sink.submit(Work {
            what: What::Install(bytes),
            done: Box::new(done),
        });
        Ok(())
    }

    /// The newest snapshot on disk, whole.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn snapshot(&self) -> io::Result<Option<Vec<u8>>> {
        let newest = self.shared.compactor.newest().map_err(io::Error::other)?;
        newest
            .map(|mut snapshot| read_all(&mut snapshot))
            .transpose()
    }

    /// Folds the sealed part of the log into a snapshot, on the caller's thread; returns its length, if one was
    /// made.
    ///
    /// # Errors
    /// The cause; the log goes on.
    pub fn compact(&self) -> Result<Option<u64>, String> {
        let mut fold = Shadow {
            state: State::new(self.shared.seed, false),
            seed: self.shared.seed,
        };
        let made = self.shared.compactor.compact(&mut fold);
        made.map(|made| made.map(|made| made.bytes))
            .map_err(|error| error.to_string())
    }

    /// The sealed log behind the newest snapshot, in bytes.
    #[must_use]
    pub fn sealed_bytes(&self) -> u64 {
        self.shared.compactor.sealed_bytes()
    }

    /// The state as of `applied`, built anew from the newest snapshot and the entries behind it.
    ///
    /// # Errors
    /// [`StateError`] if the content does not reach so far.
    pub fn rebuild(&self, applied: Option<LogId>) -> Result<State, StateError> {
        let seed = self.shared.seed;
        let snapshot = self.snapshot()?;
        let mut state = match snapshot {
            Some(bytes) => State::load(seed, &bytes, false)?,
            None => State::new(seed, false),
        };
        // The snapshot's own tail may have been truncated since; the log has the present entries.
        state.log = Log::after(state.applied);
        let mut frame = Vec::new();
        record::begin(&mut frame);
        let first = state.applied.map_or(0, |applied| applied.index + 1);
        self.look(|log| {
            let missing = log.range(first..);
            missing.for_each(|entry| Record::Entry(entry.clone()).put(&mut frame));
        });
        if let Some(applied) = applied.filter(|applied| Some(*applied) > state.applied) {
            Record::Committed(applied).put(&mut frame);
        }
        state.frame(&frame)?;
        Ok(state)
    }
}

pub(crate) fn read_all(snapshot: &mut SnapshotReader) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    snapshot.read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Writes the log of a node.
pub struct Writer {
    wal: Wal,
    frame: Vec<u8>,
    frames: u64,
}

impl Writer {
    /// Makes snapshots of the log, and reads them.
    #[must_use]
    pub fn compactor(&self) -> Compactor {
        self.wal.compactor()
    }

    /// Whether the log has room for this work. Snapshots are not counted: they are files of their own.
    ///
    /// # Errors
    /// Why there is none. Nothing was written; it may be asked again.
    pub fn room_for(&mut self, works: &[Work]) -> Result<(), String> {
        let bytes = works.iter().map(|work| work.what.bytes()).sum::<usize>();
        // A frame is synced as soon as it is this long, and the next segment is prepared meanwhile.
        let frame = bytes.min(2 * FRAME_BYTES);
        self.wal.reserve(frame).map_err(|full| full.to_string())
    }

    /// There is no work: time for small housekeeping.
    pub fn idle(&mut self) {
        // The mark only helps a later recovery. A failure poisons the log, and the next frame reports it.
        let _ = self.wal.seal_mark();
    }

    /// Does the work in order, in as few syncs as it can, and calls every `done`; returns the number of frames.
    ///
    /// # Errors
    /// Why the log takes nothing more: a write or a sync failed, or the directory is gone. It is never retried.
    pub fn work(&mut self, works: impl IntoIterator<Item = Work>) -> Result<u64, CommitError> {
        let before = self.frames;
        let mut waiting = Vec::new();
        record::begin(&mut self.frame);
        let mut failed = Ok(());
        for Work { what, done } in works {
            match what {
                What::Records(records) => {
                    records
                        .iter()
                        .for_each(|record| record.put(&mut self.frame));
                    waiting.push(done);
                    if self.frame.len() >= FRAME_BYTES {
                        failed = failed.and(self.sync(&mut waiting));
                    }
                }
                What::Install(snapshot) => {
                    // First a frame of its own, because each snapshot needs a frame that no other snapshot is at.
                    waiting.push(Box::new(drop));
                    let synced = self.sync(&mut waiting);
                    let write = |out: &mut SnapshotWriter| out.write_all(&snapshot);
                    let installed = match &synced {
                        Ok(()) => self.wal.snapshot(write).map(drop).map_err(io::Error::other),
                        Err(error) => Err(io::Error::other(error.to_string())),
                    };
                    done(installed);
                    failed = failed.and(synced);
                }
            }
        }
        failed.and(self.sync(&mut waiting))?;
        Ok(self.frames - before)
    }

    fn sync(
        &mut self,
        waiting: &mut Vec<Box<dyn FnOnce(io::Result<()>) + Send>>,
    ) -> Result<(), CommitError> {
        if waiting.is_empty() {
            return Ok(());
        }
        let committed = self.wal.commit(&self.frame).map(drop);
        self.frames += 1;
        record::begin(&mut self.frame);
        for done in mem::take(waiting) {
            done(match &committed {
                Ok(()) => Ok(()),
                Err(error) => Err(io::Error::other(error.to_string())),
            });
        }
        committed
    }
}

/// A second state that follows the sealed log.
struct Shadow {
    state: State,
    seed: u64,
}

impl Fold for Shadow {
    type Error = StateError;

    fn load(&mut self, snapshot: &mut SnapshotReader) -> Result<(), StateError> {
        self.state = State::load(self.seed, &read_all(snapshot)?, false)?;
        Ok(())
    }

    fn apply(&mut self, _: Seq, frame: &[u8]) -> Result<(), StateError> {
        self.state.frame(frame)
    }

    fn save(&mut self, out: &mut SnapshotWriter) -> Result<(), StateError> {
        Ok(self.state.save(|bytes| out.write_all(bytes))?)
    }
}
