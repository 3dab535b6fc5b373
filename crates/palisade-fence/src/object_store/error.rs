//! What can go wrong besides a rejection.

use palisade_core::fence::FloorTooLow;

/// A fault of the fence at an object store.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// A name that is no name; nothing changed.
    #[error(transparent)]
    Invalid(#[from] crate::name::Invalid),
    /// The store failed; whether a write took effect is unknown. Safe to repeat with a sequence number.
    #[error("the object store failed: {0}")]
    Store(#[from] object_store::Error),
    /// Others changed the resource each time; nothing changed. Try again later.
    #[error(
        "contended: others changed the resource {attempts} times in a row; nothing was written"
    )]
    Contended {
        /// How often it was tried.
        attempts: u32,
    },
    /// The put may have taken effect, and too many others came after it to tell.
    #[error("unknown outcome: the put may have taken effect; repeat it with its sequence number")]
    UnknownOutcome,
    /// The store does not keep its word about conditional puts: a fence cannot work there.
    #[error("this object store lies about conditional puts: {0}")]
    Lies(&'static str),
    /// Data without its fence (rule F7): an operator must re-arm it with a floor.
    #[error(
        "the fence of {resource} is lost while data is there: restore it or re-arm it with a floor"
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
        /// What is wrong with it.
        why: String,
    },
    /// The manifest names a data object that is not there.
    #[error("the data of {key} is missing from the store")]
    DataLost {
        /// The key.
        key: String,
    },
    /// The key was appended to too often; write it whole.
    #[error("{key} has {parts} parts; at most {max} are allowed: put it whole")]
    TooManyParts {
        /// The key.
        key: String,
        /// How many it has.
        parts: usize,
        /// The most a key may have.
        max: usize,
    },
    /// A fence is not re-armed below where it stands; nothing changed.
    #[error(transparent)]
    FloorTooLow(#[from] FloorTooLow),
    /// The system gave no random bytes.
    #[error("no random bytes: {0}")]
    Random(getrandom::Error),
}
