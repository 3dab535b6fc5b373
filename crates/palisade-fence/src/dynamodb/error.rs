//! What can go wrong besides a rejection.

use aws_sdk_dynamodb::error::DisplayErrorContext;
use palisade_core::fence::FloorTooLow;

/// A fault of the fence at DynamoDB.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// A name that is no name; nothing changed.
    #[error(transparent)]
    Invalid(#[from] crate::name::Invalid),
    /// An argument that cannot be used: which, and what is allowed. Nothing changed.
    #[error("{0}")]
    Argument(String),
    /// DynamoDB failed; whether a write took effect is unknown. Safe to repeat with a sequence number.
    #[error("DynamoDB failed: {}", DisplayErrorContext(.0))]
    Database(#[source] Box<aws_sdk_dynamodb::Error>),
    /// Others changed the resource each time; nothing changed. Try again later.
    #[error(
        "contended: others changed the resource {attempts} times in a row; nothing was written"
    )]
    Contended {
        /// How often it was tried.
        attempts: u32,
    },
    /// The write may have taken effect, and too many others came after it to tell.
    #[error("unknown outcome: the write may have taken effect; repeat it with its sequence number")]
    UnknownOutcome,
    /// A condition of the caller's own did not hold; nothing changed.
    #[error("the condition of item {index} of the write did not hold; nothing was written")]
    Condition {
        /// Which of the items given, from 0 on.
        index: usize,
    },
    /// Data without its fence (rule F7): an operator must re-arm it with a floor.
    #[error("{resource} has data and no fence: restore it or re-arm it with a floor")]
    FenceLost {
        /// The resource.
        resource: String,
    },
    /// The fence cannot be read; an operator must restore it.
    #[error("the fence of {resource} cannot be read: {why}")]
    Damaged {
        /// The resource.
        resource: String,
        /// What is wrong with it.
        why: String,
    },
    /// A fence is not re-armed below where it stands; nothing changed.
    #[error(transparent)]
    FloorTooLow(#[from] FloorTooLow),
    /// The system gave no random bytes.
    #[error("no random bytes: {0}")]
    Random(getrandom::Error),
}

/// Any error of the SDK.
pub(super) fn failed(error: impl Into<aws_sdk_dynamodb::Error>) -> Fault {
    Fault::Database(Box::new(error.into()))
}
