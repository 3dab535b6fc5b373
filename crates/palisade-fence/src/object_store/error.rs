//! Faults, which are not rejections.

use palisade_core::fence::FloorTooLow;

use crate::fault::FaultKind;

/// A fault of the fence at an object store.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The name is not valid; nothing changed.
    #[error(transparent)]
    Invalid(#[from] crate::name::Invalid),
    /// The store failed; it is unknown whether a write took effect. It is safe to repeat with a sequence
    /// number.
    #[error("the object store failed: {0}")]
    Store(#[from] object_store::Error),
    /// Other clients changed the resource each time; nothing changed. Try again later.
    #[error(
        "contended: others changed the resource {attempts} times in a row; nothing was written"
    )]
    Contended {
        /// The number of attempts.
        attempts: u32,
    },
    /// The put may have taken effect, but too many other puts came after it to tell.
    #[error("unknown outcome: the put may have taken effect; repeat it with its sequence number")]
    UnknownOutcome,
    /// The store does not honour conditional puts: a fence cannot work there.
    #[error("this object store does not honour conditional puts: {0}")]
    IgnoresConditions(&'static str),
    /// There is data without its fence (rule F7): an operator must re-arm it with a floor.
    #[error(
        "the fence of {resource} is lost, but its data exists: restore it or re-arm it with a floor"
    )]
    FenceLost {
        /// The resource.
        resource: String,
    },
    /// The manifest cannot be read; an operator must restore it.
    #[error("the manifest of {resource} cannot be read: {why}")]
    Damaged {
        /// The resource.
        resource: String,
        /// The problem.
        why: String,
    },
    /// The manifest names a data object that does not exist.
    #[error("the data of {key} is missing from the store")]
    DataLost {
        /// The key.
        key: String,
    },
    /// The key has too many appended parts; put it whole.
    #[error("{key} has {parts} parts; at most {max} are allowed: put it whole")]
    TooManyParts {
        /// The key.
        key: String,
        /// The number of its parts.
        parts: usize,
        /// The largest number allowed.
        max: usize,
    },
    /// A fence cannot be re-armed with a floor below its token; nothing changed.
    #[error(transparent)]
    FloorTooLow(#[from] FloorTooLow),
    /// The system returned no random bytes.
    #[error("no random bytes: {0}")]
    Random(getrandom::Error),
}

impl Fault {
    /// Returns what to do about it.
    #[must_use]
    pub const fn kind(&self) -> FaultKind {
        match self {
            Fault::Contended { .. } | Fault::Random(_) => FaultKind::Retry,
            Fault::Store(_) | Fault::UnknownOutcome => FaultKind::Unknown,
            Fault::Invalid(_) | Fault::TooManyParts { .. } | Fault::FloorTooLow(_) => {
                FaultKind::Invalid
            }
            Fault::IgnoresConditions(_)
            | Fault::FenceLost { .. }
            | Fault::Damaged { .. }
            | Fault::DataLost { .. } => FaultKind::Operator,
        }
    }
}
