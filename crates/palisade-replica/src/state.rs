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
use crate::log::{Log, LogGap};
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
    Gap(#[from] LogGap),
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
pub(crate) struct SnapshotHead {
    /// It begins behind the last entry that is in the machine.
    pub(crate) log: Log,
    pub(crate) members: (Option<LogId>, Members),
}

impl SnapshotHead {
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
    pub(crate) fn take(bytes: &[u8]) -> Result<(SnapshotHead, &[u8]), StateError> {
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
        Ok((SnapshotHead { log, members }, from.0))
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
        let (SnapshotHead { log, members }, machine) = SnapshotHead::take(bytes)?;
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
        SnapshotHead::put(&mut head, self.applied, &self.members, &self.log);
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
        let (applied, purged) = (self.applied, self.log.purged());
        let agree = applied >= purged && (self.keep || applied == purged);
        assert!(
            agree,
            "what was applied, {applied:?}, is not what was purged, {purged:?}"
        );
        let first = self.applied.map_or(0, |applied| applied.index + 1);
        let Some(committed) = self.log.committed().filter(|id| id.index >= first) else {
            return Ok(());
        };
        // The first one of all has the number that the engine gave it.
        let mut before = self.applied.map(|applied| applied.index);
        for entry in self.log.range(first..=committed.index) {
            let follows = before.is_none_or(|before| before + 1 == entry.id.index);
            assert!(
                follows,
                "an entry is applied that does not follow the one before it"
            );
            before = Some(entry.id.index);
            match &entry.payload {
                Payload::Blank => {}
                Payload::Batch(batch) => apply(&mut self.machine, batch)?,
                Payload::Members(members) => self.members = (Some(entry.id), members.clone()),
            }
        }
        assert_eq!(
            before,
            Some(committed.index),
            "a committed entry is not in the log (R1)"
        );
        self.applied = Some(committed);
        if !self.keep {
            self.log.purge(committed);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::panic::{AssertUnwindSafe, catch_unwind};

    use super::*;
    use crate::entry::{Entry, Leader, NodeId};

    fn id(index: u64) -> LogId {
        let leader = Leader {
            term: 1,
            node: NodeId(1),
        };
        LogId { leader, index }
    }

    fn entry(index: u64) -> Record {
        Record::Entry(Entry {
            id: id(index),
            payload: Payload::Blank,
        })
    }

    /// Entries up to 9; those up to 5 are in the machine.
    fn state() -> State {
        let mut state = State::new(1, false);
        for index in 0..10 {
            state.log.record(entry(index)).unwrap();
        }
        state.log.record(Record::Committed(id(5))).unwrap();
        state.apply(Replay::batch).unwrap();
        state
    }

    /// A member that was away has committed entries which it has not applied, and is sent a snapshot behind all of them. While
    /// they are gone, what was committed is in the snapshot alone: no assertion may look then.
    #[test]
    fn a_snapshot_takes_the_place_of_committed_entries() {
        let mut state = State::new(1, true);
        for index in 0..10 {
            state.log.record(entry(index)).unwrap();
        }
        state.log.record(Record::Committed(id(7))).unwrap();
        state.log.install(Some(id(20)));
        assert_eq!(state.log.committed(), Some(id(20)));
        assert_eq!(state.log.last(), Some(id(20)));
        // Behind it, the log goes on.
        state.log.record(entry(21)).unwrap();
        state.log.install(Some(id(20)));
        assert_eq!(state.log.last(), Some(id(21)));
    }

    /// A state that no records lead to, planted by hand, is met by an assertion before another entry is applied.
    #[test]
    fn the_next_record_meets_a_corruption() {
        type Corruption = (fn(&mut State), &'static str);
        let corruptions: [Corruption; 5] = [
            (|state| state.log.lose(1), "a log has a gap"),
            (
                |state| state.log.lose(0),
                "a log does not follow its purged part",
            ),
            (
                |state| state.log.claim(id(20)),
                "what is committed is not in the log (R1)",
            ),
            (
                |state| state.applied = Some(id(3)),
                "is not what was purged",
            ),
            (
                |state| state.applied = Some(id(7)),
                "is not what was purged",
            ),
        ];
        let next = |state: &mut State| {
            state.log.record(Record::Committed(id(8))).unwrap();
            state.apply(Replay::batch).unwrap();
        };
        // The control.
        let mut untouched = state();
        next(&mut untouched);
        assert_eq!(untouched.applied, Some(id(8)));
        for (planted, fails) in corruptions {
            let mut state = state();
            planted(&mut state);
            let applied = state.applied;
            let met = catch_unwind(AssertUnwindSafe(|| next(&mut state)));
            let why = met.expect_err(fails);
            let text = why.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| why.downcast_ref::<&str>().copied());
            assert!(
                text.is_some_and(|text| text.contains(fails)),
                "{text:?}, not: {fails}"
            );
            assert_eq!(state.applied, applied, "{fails}");
        }
    }
}
