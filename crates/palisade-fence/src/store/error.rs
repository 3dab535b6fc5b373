//! The error of a store that is not opened.

use palisade_core::fence::Mode;

use crate::store::codec::Damage;

/// A store that was not opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// The log is locked, copied, damaged, missing or unreadable.
    #[error(transparent)]
    Log(#[from] palisade_wal::OpenError),
    /// The log could not be read, or contains bytes that no store writes.
    #[error("the store's log cannot be replayed: {0}")]
    Replay(#[from] palisade_wal::ReplayError<Damage>),
    /// The snapshot could not be read, or contains bytes that no store writes.
    #[error("the store's snapshot cannot be loaded: {0}")]
    Snapshot(Damage),
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
    #[error("the store's thread cannot be started: {0}")]
    Thread(std::io::Error),
}
