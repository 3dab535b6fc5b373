//! From the log back to a machine: at start-up, and in the background when a snapshot is due.

use std::fmt;

use palisade_core::machine::{Corrupt, Record};
use palisade_core::{Entry, Machine};

use super::Returning;
use super::clock::wall;
use super::codec::{self, Malformed};

/// Bytes of a log or a snapshot that cannot be replayed.
#[derive(Debug)]
pub enum ReplayError {
    /// They are not in the format.
    Malformed(Malformed),
    /// They contradict each other.
    Corrupt(Corrupt),
}

impl fmt::Display for ReplayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ReplayError::Malformed(malformed) => malformed.fmt(f),
            ReplayError::Corrupt(corrupt) => corrupt.fmt(f),
        }
    }
}

impl std::error::Error for ReplayError {}

/// A machine that is being brought up to date.
pub struct Replay {
    machine: Machine,
}

/// What one grant takes in the log, at least: a lease's key, its times, its names.
const GRANT_BYTES: u64 = 64;

/// Room for more locks than this is not made in advance.
const MOST_AT_ONCE: u64 = 1 << 22;

impl Replay {
    /// Begins with nothing: a log from its first batch.
    #[must_use]
    pub fn from_nothing(seed: u64) -> Replay {
        Replay {
            machine: Machine::new(seed),
        }
    }

    /// Begins with a snapshot, as [`Replay::snapshot`] wrote it.
    ///
    /// # Errors
    /// [`ReplayError`] if the bytes are not those of a snapshot.
    pub fn from_snapshot(seed: u64, snapshot: &[u8]) -> Result<Replay, ReplayError> {
        let mut records = Records {
            rest: snapshot,
            failed: None,
        };
        records.version();
        let machine = Machine::restore(seed, records.by_ref());
        if let Some(malformed) = records.failed {
            return Err(ReplayError::Malformed(malformed));
        }
        let machine = machine.map_err(ReplayError::Corrupt)?;
        Ok(Replay { machine })
    }

    /// Makes room for what so many bytes of the log can grant: tables that grow step by step cost a fifth
    /// of a start with a million locks.
    pub fn expect(&mut self, bytes: u64) {
        let locks = (bytes / GRANT_BYTES).min(MOST_AT_ONCE);
        self.machine.reserve(locks as usize);
    }

    /// Applies one batch of the log.
    ///
    /// # Errors
    /// [`ReplayError`] if the bytes are not those of a batch.
    pub fn batch(&mut self, bytes: &[u8]) -> Result<(), ReplayError> {
        codec::decode_batch(bytes, |entry| self.machine.replay(entry))
            .map_err(ReplayError::Malformed)
    }

    /// Applies what an authority records when it comes back, and gives the batch that has to be logged
    /// for it.
    #[must_use]
    pub fn return_from(&mut self, returning: Returning) -> Vec<u8> {
        let (at, wall) = (self.machine.now(), wall());
        let mut batch = Vec::new();
        codec::encode_head(&mut batch, at, wall);
        for command in returning.commands() {
            codec::encode_command(&mut batch, &command);
            self.machine.replay(Entry { at, wall, command });
        }
        batch
    }

    /// Writes the state as a snapshot.
    ///
    /// # Errors
    /// Those of `write`.
    pub fn snapshot<E>(&self, mut write: impl FnMut(&[u8]) -> Result<(), E>) -> Result<(), E> {
        write(&[codec::VERSION])?;
        let mut record_bytes = Vec::new();
        for record in self.machine.records() {
            record_bytes.clear();
            codec::encode_record(&mut record_bytes, &record);
            let length = u32::try_from(record_bytes.len()).unwrap_or(u32::MAX);
            write(&length.to_le_bytes())?;
            write(&record_bytes)?;
        }
        Ok(())
    }

    /// The machine as it is now.
    #[must_use]
    pub fn finish(mut self) -> Machine {
        self.machine.fit();
        self.machine
    }
}

/// Reads length-prefixed records; ends at the first one that cannot be read and keeps why.
struct Records<'a> {
    rest: &'a [u8],
    failed: Option<Malformed>,
}

impl Records<'_> {
    fn version(&mut self) {
        match self.rest.split_first() {
            Some((&codec::VERSION, rest)) => self.rest = rest,
            _ => self.fail("a snapshot has an unknown version"),
        }
    }

    fn fail(&mut self, what: &'static str) {
        self.failed = Some(Malformed {
            what,
            left: self.rest.len(),
        });
        self.rest = &[];
    }
}

impl Iterator for Records<'_> {
    type Item = Record;

    /// No more than there are lengths: looking at those alone is quick, and room made for too many locks is
    /// lost or costs a second hashing of all of them.
    fn size_hint(&self) -> (usize, Option<usize>) {
        let whole = std::iter::successors(Some(self.rest), |rest| Some(split(rest)?.1));
        (0, Some(whole.count()))
    }

    fn next(&mut self) -> Option<Record> {
        if self.rest.is_empty() {
            return None;
        }
        let Some((record, rest)) = split(self.rest) else {
            self.fail("a record ends in the middle");
            return None;
        };
        self.rest = rest;
        codec::decode_record(record)
            .map_err(|malformed| {
                self.failed = Some(malformed);
                self.rest = &[];
            })
            .ok()
    }
}

/// The first record, and what follows it.
fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, rest) = bytes.split_first_chunk::<4>()?;
    rest.split_at_checked(u32::from_le_bytes(*length) as usize)
}
