//! The error of a store that is not opened.

use std::error::Error as _;

use palisade_core::fence::Mode;

use crate::error::with_causes;
use crate::store::codec::Damage;

/// A store that was not opened. Its text does not repeat that of its [`source`](std::error::Error::source);
/// [`OpenError::report`] has both.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The log is locked, copied, damaged, missing or unreadable.
    #[error(transparent)]
    Log(#[from] palisade_wal::OpenError),
    /// The log could not be read, or contains bytes that no store writes.
    #[error("the store's log cannot be replayed")]
    Replay(#[from] palisade_wal::ReplayError<Damage>),
    /// The snapshot could not be read, or contains bytes that no store writes.
    #[error("the store's snapshot cannot be loaded")]
    Snapshot(#[source] Damage),
    /// The first write into a new directory failed.
    #[error(transparent)]
    Commit(#[from] palisade_wal::CommitError),
    /// The directory was created with another mode.
    #[error(
        "this store was created with the fence {recorded:?} and cannot be opened with {asked:?}: a fence \
         that was off for a while proves nothing; use a new directory"
    )]
    Mode {
        /// The mode with which it was created.
        recorded: Mode,
        /// The requested mode.
        asked: Mode,
    },
    /// A setting is out of its range.
    #[error("{name} = {given} is outside {min} ..= {max}")]
    Setting {
        /// The setting.
        name: &'static str,
        /// The requested value.
        given: u64,
        /// The smallest value.
        min: u64,
        /// The largest value.
        max: u64,
    },
    /// The system could not start a thread.
    #[error("the store's thread cannot be started")]
    Thread(#[source] std::io::Error),
}

impl OpenError {
    /// The message together with those of its causes, each once, in one line for a log or a terminal.
    #[must_use]
    pub fn report(&self) -> String {
        with_causes(self.to_string(), self.source())
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use palisade_wal::ReplayError;

    use super::*;

    #[test]
    fn a_cause_is_kept_and_said_once() {
        let disk = || io::Error::other("the disk is gone");
        let replay = |source| ReplayError::Apply {
            seq: palisade_wal::Seq::new(7).unwrap(),
            source,
        };
        for (error, own) in [
            (
                OpenError::Thread(disk()),
                "the store's thread cannot be started",
            ),
            (
                OpenError::Snapshot(Damage::Io(disk())),
                "the store's snapshot cannot be loaded",
            ),
            (
                OpenError::Replay(replay(Damage::Io(disk()))),
                "the store's log cannot be replayed",
            ),
        ] {
            assert_eq!(error.to_string(), own);
            assert!(error.source().is_some(), "{own}");
            let report = error.report();
            assert!(report.starts_with(&format!("{own}: ")), "{report}");
            assert_eq!(report.matches("the disk is gone").count(), 1, "{report}");
        }
    }
}
