//! A node's state, folded from its records: the log, and the machine as far as entries are known to be committed.
//!
//! It is built when a node starts, and by the thread that makes snapshots. A snapshot holds all of it:
//!
//! ```text
//!   version │ applied │ members and where they stand │ vote? │ entries after applied │ the machine's snapshot
//! ```
//!
//! The machine contains only committed entries; those that may still be truncated stay in the log.

use std::io;

use palisade_pipeline::replay::{Replay, ReplayError};

use crate::codec::{Malformed, Put, Take};
use crate::entry::{LogId, Members, Payload};
use crate::log::{Gap, Log};
use crate::record::{self, Record};

const VERSION: u8 = 1;

/// Why records or a snapshot could not be read.
#[derive(Debug, thiserror::Error)]
pub enum StateError {
    /// Not in the format.
    #[error("the log of this node: {0}")]
    Malformed(#[from] Malformed),
    /// Records contradict each other.
    #[error("the log of this node: {0}")]
    Gap(#[from] Gap),
    /// A committed batch is not one.
    #[error("a committed batch: {0}")]
    Replay(#[from] ReplayError),
    /// Reading or writing failed.
    #[error(transparent)]
    Io(#[from] io::Error),
}

/// See the module.
pub struct State {
    /// Vote and entries.
    pub log: Log,
    /// The last entry that is in the machine.
    pub applied: Option<LogId>,
    /// The members of the cluster as of `applied`, and the entry that says so.
    pub members: (Option<LogId>, Members),
    /// The machine as of `applied`.
    pub machine: Replay,
    /// Whether entries stay in the log once they are in the machine: others may still need them.
    keep: bool,
}

/// The part of a snapshot before the machine.
pub(crate) struct Head {
    /// It begins behind the last entry that is in the machine.
    pub(crate) log: Log,
    pub(crate) members: (Option<LogId>, Members),
}

impl Head {
    /// Writes one with the entries behind `applied` as its log.
    pub(crate) fn put(
        out: &mut Vec<u8>,
        applied: Option<LogId>,
        members: &(Option<LogId>, Members),
        log: &Log,
    ) {
        let behind = || log.range(applied.map_or(0, |applied| applied.index + 1)..);
        out.u8(VERSION);
        out.option(applied, Vec::log_id);
        out.option(members.0, Vec::log_id);
        out.members(&members.1);
        out.option(log.vote(), Vec::vote);
        out.u64(behind().count() as u64);
        behind().for_each(|entry| out.entry(entry));
    }

    /// The head of a snapshot, and the machine's bytes behind it.
    pub(crate) fn take(bytes: &[u8]) -> Result<(Head, &[u8]), StateError> {
        let mut from = Take(bytes);
        if from.u8()? != VERSION {
            return Err(Malformed("a snapshot has an unknown version").into());
        }
        let mut log = Log::after(from.option(Take::log_id)?);
        let members = (from.option(Take::log_id)?, from.members()?);
        if let Some(vote) = from.option(Take::vote)? {
            log.record(Record::Vote(vote))?;
        }
        for _ in 0..from.u64()? {
            log.record(Record::Entry(from.entry()?))?;
        }
        Ok((Head { log, members }, from.0))
    }
}

impl State {
    /// The state of a new node. `keep` leaves entries in the log that are in the machine.
    #[must_use]
    pub fn new(seed: u64, keep: bool) -> State {
        State {
            log: Log::default(),
            applied: None,
            members: (None, Members::default()),
            machine: Replay::from_nothing(seed),
            keep,
        }
    }

    /// The state that a snapshot contains.
    ///
    /// # Errors
    /// [`StateError`] if the bytes are not those of a snapshot.
    pub fn load(seed: u64, bytes: &[u8], keep: bool) -> Result<State, StateError> {
        let (Head { log, members }, machine) = Head::take(bytes)?;
        Ok(State {
            applied: log.purged(),
            log,
            members,
            machine: Replay::from_snapshot(seed, machine)?,
            keep,
        })
    }

    /// Writes a snapshot.
    ///
    /// # Errors
    /// Those of `write`.
    pub fn save<E>(&self, mut write: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        let mut head = Vec::new();
        Head::put(&mut head, self.applied, &self.members, &self.log);
        write(&head)?;
        self.machine.snapshot(write)
    }

    /// Takes a frame of the node's log in.
    ///
    /// # Errors
    /// [`StateError`]; the state must not be used then.
    pub fn frame(&mut self, frame: &[u8]) -> Result<(), StateError> {
        self.take(frame, Replay::batch)
    }

    /// The same, and each batch is applied by `apply`.
    pub(crate) fn take(
        &mut self,
        frame: &[u8],
        apply: impl FnMut(&mut Replay, &[u8]) -> Result<(), ReplayError>,
    ) -> Result<(), StateError> {
        for record in record::read(frame)? {
            self.log.record(record)?;
        }
        self.apply(apply)
    }

    /// Takes every entry as committed: for a log that has lost its other copies.
    ///
    /// # Errors
    /// As [`frame`](State::frame).
    pub fn commit_all(&mut self) -> Result<(), StateError> {
        if let Some(last) = self.log.last() {
            self.log.record(Record::Committed(last))?;
        }
        self.apply(Replay::batch)
    }

    /// Applies the entries committed by now.
    fn apply(
        &mut self,
        mut apply: impl FnMut(&mut Replay, &[u8]) -> Result<(), ReplayError>,
    ) -> Result<(), StateError> {
        let first = self.applied.map_or(0, |applied| applied.index + 1);
        let Some(committed) = self.log.committed().filter(|id| id.index >= first) else {
            return Ok(());
        };
        for entry in self.log.range(first..=committed.index) {
            match &entry.payload {
                Payload::Blank => {}
                Payload::Batch(batch) => apply(&mut self.machine, batch)?,
                Payload::Members(members) => self.members = (Some(entry.id), members.clone()),
            }
        }
        self.applied = Some(committed);
        if !self.keep {
            self.log.purge(committed);
        }
        Ok(())
    }
}
