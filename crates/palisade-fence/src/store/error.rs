//! What can go wrong besides a rejection.

use palisade_core::fence::Mode;

use crate::fault::FaultKind;
use crate::objects::Fault;
use crate::store::codec::Damage;

/// An operation that was neither admitted nor rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The caller's request or the store's limits. Nothing happened.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// The disk is full. Nothing happened; reads under the same token and rejections still work, and
    /// writes work again when there is room.
    #[error("{why}; nothing was written")]
    DiskFull {
        /// What the log said.
        why: String,
    },
    /// The store has stopped. Nothing happened.
    #[error("the store has stopped: {why}")]
    Stopped {
        /// Why.
        why: String,
    },
    /// The write or sync that carried it failed. It may have happened or not; the store stops. After a
    /// restart, repeating it under the same sequence number is safe.
    #[error("it is not known whether this was written: {why}")]
    Unknown {
        /// Why.
        why: String,
    },
}

impl StoreError {
    /// What to do about it.
    #[must_use]
    pub const fn kind(&self) -> FaultKind {
        match self {
            StoreError::Fault(fault) => fault.kind(),
            StoreError::DiskFull { .. } | StoreError::Stopped { .. } => FaultKind::Operator,
            StoreError::Unknown { .. } => FaultKind::Unknown,
        }
    }
}

impl From<crate::name::Invalid> for StoreError {
    fn from(invalid: crate::name::Invalid) -> StoreError {
        StoreError::Fault(invalid.into())
    }
}

/// A store that was not opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The log: locked, copied, damaged, not there, not readable.
    #[error(transparent)]
    Log(#[from] palisade_wal::OpenError),
    /// The log could not be read, or holds what no store writes.
    #[error("the store's log cannot be replayed: {0}")]
    Replay(#[from] palisade_wal::ReplayError<Damage>),
    /// The snapshot could not be read, or holds what no store writes.
    #[error("the store's snapshot cannot be loaded: {0}")]
    Snapshot(Damage),
    /// The first write into a new directory failed.
    #[error(transparent)]
    Commit(#[from] palisade_wal::CommitError),
    /// A directory is opened as it was made, or not at all.
    #[error(
        "this store was made with the fence {recorded:?} and cannot be opened with {asked:?}: a fence \
         that was off for a while proves nothing; use a new directory"
    )]
    Mode {
        /// The mode it was made with.
        recorded: Mode,
        /// The mode asked for.
        asked: Mode,
    },
    /// A setting out of its range.
    #[error("{name} = {given} is outside {min} ..= {max}")]
    Setting {
        /// Which.
        name: &'static str,
        /// What was given.
        given: u64,
        /// The smallest value.
        min: u64,
        /// The largest value.
        max: u64,
    },
    /// The system has no thread left.
    #[error("the store's thread cannot be started: {0}")]
    Thread(std::io::Error),
}
