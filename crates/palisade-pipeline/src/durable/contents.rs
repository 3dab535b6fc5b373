//! The contents of a log, for an operator who looks at a directory or a backup.

use std::path::Path;

use palisade_core::{Token, WallTime};
use palisade_wal::{DirStorage, Observed, OpenError, RecoveryReport, identity, observe};

use super::Error;
use super::past::{read_into, unreadable};
use crate::replay::Replay;
use crate::seed;

/// The contents of a log that was read to its end, so every checksum in it is right.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Contents {
    /// The findings that an opening would have. Nothing was cut off or removed.
    pub report: RecoveryReport,
    /// The segments with entries behind the snapshot.
    pub segments: usize,
    /// The wall clock of the last entry behind the snapshot.
    pub last: Option<WallTime>,
    /// The token the next grant gets; `None` if the range is exhausted.
    pub next_token: Option<Token>,
    /// Locks that are held.
    pub locks: usize,
    /// Live leases.
    pub leases: usize,
    /// Requests that wait.
    pub waiters: usize,
    /// The number of the latest event.
    pub revision: u64,
}

impl Contents {
    /// The contents of a log that was replayed into this.
    #[must_use]
    pub fn of(log: &Observed<'_>, replayed: &Replay) -> Contents {
        let machine = replayed.machine();
        Contents {
            report: log.report(),
            segments: log.segments(),
            last: replayed.last(),
            next_token: machine.next_token(),
            locks: machine.locks(),
            leases: machine.leases(),
            waiters: machine.waiters(),
            revision: machine.revision(),
        }
    }
}

/// Reads the log of a single server or a backup to its end. It may be in use; nothing is changed.
///
/// # Errors
/// [`Error`], with the file and the byte if something is damaged. The directory of a cluster's node is refused.
pub fn contents(dir: &Path) -> Result<Contents, Error> {
    let storage = DirStorage::observe(dir)?;
    let missing = || OpenError::Missing {
        dir: dir.to_owned(),
    };
    let of = identity(&storage)?.ok_or_else(missing)?;
    observe(&storage, of.incarnation, unreadable, |log| {
        let mut replay = read_into(log, seed())?;
        log.replay(|_, batch| replay.batch(batch))
            .map_err(super::not_replayed)?;
        Ok(Contents::of(log, &replay))
    })
}
