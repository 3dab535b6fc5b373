//! Errors of a store, which are not rejections.

use palisade_core::fence::Mode;

use crate::fault::FaultKind;
use crate::objects::Fault;
use crate::store::codec::Damage;

/// An operation that was neither admitted nor rejected.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StoreError {
    /// The request is not valid, or exceeds the store's limits. Nothing happened.
    #[error(transparent)]
    Fault(#[from] Fault),
    /// The disk is full. Nothing happened; reads under the same token and rejections still work, and
    /// writes work again when there is room.
    #[error("{why}; nothing was written")]
    DiskFull {
        /// The log's error.
        why: String,
    },
    /// The store has stopped. Nothing happened.
    #[error("the store has stopped: {why}")]
    Stopped {
        /// The reason.
        why: String,
    },
    /// A write or a sync of the log failed, and the store stops. The operation may have happened or not. After
    /// a restart, repeating it under the same sequence number is safe.
    #[error("it is not known whether this was written: {why}")]
    Unknown {
        /// The reason.
        why: String,
    },
}

impl StoreError {
    /// Returns what to do about it.
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
