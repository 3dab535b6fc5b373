//! A guard row with the ids of its last writes, for resources whose only atomic step is "replace this if it is still
//! the version I read".
//!
//! ```text
//!   read ──► Stamped ──► GuardRow::decide ──► stamp: a fresh id ──► replace, if unchanged
//!                                                                      │ refused, or no answer
//!                      its id is among the ids: it took effect ◄── read again
//! ```
//!
//! A request may time out after it took effect; the client's retry then finds the condition false. If the writer finds
//! its own id, its write took effect. The ids are random, so no two states are equal.

use std::collections::VecDeque;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::error::{Error, ErrorKind, Result};
use crate::guard_row::GuardRow;

/// How often an operation is decided before it gives up against faster writers.
pub(crate) const ATTEMPTS: u32 = 32;

/// The number of later writes after which a writer can still recognise its own write.
const IDS: usize = 64;
const FORMAT: u32 = 1;

/// The stored form of a guard row: JSON, so that an operator can read it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Stamped {
    format: u32,
    pub(crate) guard: GuardRow,
    /// The ids of the last writes, newest last.
    ids: VecDeque<String>,
}

/// The outcome of a write whose answer is ambiguous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StampOutcome {
    TookEffect,
    DidNot,
    Unknown,
}

impl Default for Stamped {
    fn default() -> Stamped {
        Stamped {
            format: FORMAT,
            guard: GuardRow::default(),
            ids: VecDeque::new(),
        }
    }
}

impl Stamped {
    /// Returns the reason if no fence can have written this.
    pub(crate) fn check(&self) -> Result<(), String> {
        if self.format != FORMAT {
            return Err(format!("format {}; only {FORMAT} is known", self.format));
        }
        self.guard
            .state()
            .map(|_| ())
            .map_err(|corrupt| corrupt.to_string())
    }

    /// Adds a new id to the row and returns it.
    pub(crate) fn stamp(&mut self) -> Result<String> {
        let id = fresh_id()?;
        if self.ids.len() >= IDS {
            self.ids.pop_front();
        }
        self.ids.push_back(id.clone());
        Ok(id)
    }

    /// Returns the outcome of the write `id` that was made on top of `base`, as seen from this later state.
    pub(crate) fn outcome(&self, id: &str, base: Option<&Stamped>) -> StampOutcome {
        if self.ids.iter().any(|seen| seen == id) {
            return StampOutcome::TookEffect;
        }
        // The list reaches back to the base and does not contain the write.
        let whole = match base.and_then(|base| base.ids.back()) {
            Some(last) => self.ids.contains(last),
            None => self.ids.len() < IDS,
        };
        if whole {
            StampOutcome::DidNot
        } else {
            StampOutcome::Unknown
        }
    }
}

/// Waits before the next attempt, longer each time, so that racing writers do not meet again.
pub(crate) async fn back_off(attempt: u32) -> Result<()> {
    if attempt > 0 {
        let limit = 1_u64 << attempt.min(7);
        let millis = getrandom::u64().map_err(no_random)? % limit;
        tokio::time::sleep(Duration::from_millis(millis)).await;
    }
    Ok(())
}

/// Returns 128 random bits as text.
pub(crate) fn fresh_id() -> Result<String> {
    let mut bits = [0; 16];
    getrandom::fill(&mut bits).map_err(no_random)?;
    Ok(format!("{:032x}", u128::from_le_bytes(bits)))
}

fn no_random(error: getrandom::Error) -> Error {
    Error::failed(ErrorKind::Retry, "no random bytes", error)
}

/// The error after so many attempts.
pub(crate) fn contended() -> Error {
    Error::Busy(format!(
        "contended: others changed the resource {ATTEMPTS} times in a row; nothing was written"
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The attribute of an item of DynamoDB; docs/reference/fence-formats.md describes it.
    #[test]
    fn the_golden_file_is_read_and_written_as_it_is() {
        let golden =
            include_str!("../../../vectors/formats/dynamodb.palisade_fence.json").trim_end();
        let stamped: Stamped = serde_json::from_str(golden).unwrap();
        assert_eq!(stamped.check(), Ok(()));
        assert_eq!(stamped.guard.recorded.digest, Some(-1));
        assert_eq!(serde_json::to_string(&stamped).unwrap(), golden);
    }

    #[test]
    fn a_write_is_recognised_while_the_history_reaches_back() {
        let base = Stamped::default();
        let mut mine = base.clone();
        let id = mine.stamp().unwrap();
        assert_eq!(mine.outcome(&id, Some(&base)), StampOutcome::TookEffect);

        let mut theirs = base.clone();
        theirs.stamp().unwrap();
        assert_eq!(theirs.outcome(&id, Some(&base)), StampOutcome::DidNot);
        for _ in 0..IDS {
            theirs.stamp().unwrap();
        }
        assert_eq!(theirs.outcome(&id, Some(&base)), StampOutcome::Unknown);
        assert_eq!(theirs.outcome(&id, Some(&mine)), StampOutcome::Unknown);
    }

    #[test]
    fn another_format_is_refused() {
        let mut newer = Stamped::default();
        assert_eq!(newer.check(), Ok(()));
        newer.format = 2;
        assert_eq!(newer.check(), Err("format 2; only 1 is known".to_owned()));
    }
}
