//! Faults, which are not rejections.

use std::io;
use std::time::Duration;

use palisade_core::fence::FloorTooLow;

use crate::fault::FaultKind;
use crate::lock_holder::LockHolder;

/// A fault at a fenced folder.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The name is not valid. Nothing was written.
    #[error(transparent)]
    Invalid(#[from] crate::name::Invalid),
    /// The name cannot be a file of a fenced folder. Nothing was written.
    #[error("{name:?} {problem}")]
    Name {
        /// The requested name.
        name: String,
        /// The reason.
        problem: &'static str,
    },
    /// The file system failed. It is unknown whether a write took effect; it can be repeated under its
    /// sequence number.
    #[error("{doing}: {error}")]
    Io {
        /// The attempted call and its file.
        doing: String,
        /// The error.
        #[source]
        error: io::Error,
    },
    /// Another process kept the fence's lock: it may be stopped. Nothing was written. The text says how to end it.
    #[error("{folder}: the fence was not free for {waited:?}; {in_the_way}")]
    Busy {
        /// The folder.
        folder: String,
        /// How long this caller waited.
        waited: Duration,
        /// The processes that have the lock, as far as they can be found out.
        holders: Vec<LockHolder>,
        /// What this says about them, and what to type.
        in_the_way: String,
    },
    /// There are files and no fence state (rule F7). Nothing was written. An operator re-arms the folder with
    /// a floor. The same is necessary for files that existed before the fence.
    #[error(
        "{folder}: there are files without their fence state; an operator must re-arm the fence with a floor"
    )]
    Lost {
        /// The folder.
        folder: String,
    },
    /// The fence state was not written by a fence. Nothing was written; an operator re-arms the folder.
    #[error("{folder}: the fence state is damaged: {problem}")]
    Corrupt {
        /// The folder.
        folder: String,
        /// The problem.
        problem: String,
    },
    /// The file written last now has another length: code without a token has written it (rule F9), or it was
    /// restored without its fence. Nothing was written; an operator re-arms the folder.
    #[error(
        "{folder}: {file} has {found} bytes, and the fence left it with {left}: it was changed by code that \
        does not use the fence; an operator must look, and re-arm the fence"
    )]
    Changed {
        /// The folder.
        folder: String,
        /// The file.
        file: String,
        /// The length that the fence left.
        left: u64,
        /// Its present length; 0 for a missing file.
        found: u64,
    },
    /// A re-arming that would lower the fence. It had no effect.
    #[error(transparent)]
    FloorTooLow(#[from] FloorTooLow),
}

impl Fault {
    /// Returns what to do about it.
    #[must_use]
    pub const fn kind(&self) -> FaultKind {
        match self {
            Fault::Busy { .. } => FaultKind::Retry,
            Fault::Io { .. } => FaultKind::Unknown,
            Fault::Invalid(_) | Fault::Name { .. } | Fault::FloorTooLow(_) => FaultKind::Invalid,
            Fault::Lost { .. } | Fault::Corrupt { .. } | Fault::Changed { .. } => {
                FaultKind::Operator
            }
        }
    }
}
