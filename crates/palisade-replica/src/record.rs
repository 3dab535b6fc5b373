//! The records of a node's own log: one ordered sequence of votes, entries, truncations and commits.
//!
//! ```text
//!   frame   version │ record │ record │ …        one frame of the write-ahead log, one sync
//!   record  tag │ fields
//! ```

use crate::codec::{Malformed, Put, Take};
use crate::entry::{Entry, LogId, Vote};

/// The version at the start of every frame. A frame of another version is refused: its records might mean
/// something else.
const VERSION: u8 = 1;

/// One step of a node's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// It voted, or learned of the leader.
    Vote(Vote),
    /// An entry was appended.
    Entry(Entry),
    /// All entries after this one are gone, because another leader wrote others in their place.
    Truncate(Option<LogId>),
    /// Entries up to here are committed. Written along with something else, so it may lag behind.
    Committed(LogId),
}

/// Begins a frame.
pub(crate) fn begin(frame: &mut Vec<u8>) {
    frame.clear();
    frame.u8(VERSION);
}

impl Record {
    /// An upper bound of its length in a frame.
    pub(crate) fn bytes(&self) -> usize {
        match self {
            Record::Entry(entry) => entry.payload.bytes(),
            Record::Vote(_) | Record::Truncate(_) | Record::Committed(_) => 64,
        }
    }

    /// Writes it at the end of a frame.
    pub(crate) fn put(&self, frame: &mut Vec<u8>) {
        match self {
            Record::Vote(vote) => {
                frame.u8(1);
                frame.vote(*vote);
            }
            Record::Entry(entry) => {
                frame.u8(2);
                frame.entry(entry);
            }
            Record::Truncate(last) => {
                frame.u8(3);
                frame.option(*last, Vec::log_id);
            }
            Record::Committed(id) => {
                frame.u8(4);
                frame.log_id(*id);
            }
        }
    }

    fn take(from: &mut Take<'_>) -> Result<Record, Malformed> {
        Ok(match from.u8()? {
            1 => Record::Vote(from.vote()?),
            2 => Record::Entry(from.entry()?),
            3 => Record::Truncate(from.option(Take::log_id)?),
            4 => Record::Committed(from.log_id()?),
            _ => return Err(Malformed("a record is of an unknown kind")),
        })
    }
}

/// The records of a frame, in order.
///
/// # Errors
/// The bytes are not those of a frame, or it is of another version.
pub fn read(frame: &[u8]) -> Result<Vec<Record>, Malformed> {
    let mut from = Take(frame);
    if from.u8()? != VERSION {
        return Err(Malformed("a frame has an unknown version"));
    }
    let mut records = Vec::new();
    while !from.0.is_empty() {
        records.push(Record::take(&mut from)?);
    }
    Ok(records)
}
