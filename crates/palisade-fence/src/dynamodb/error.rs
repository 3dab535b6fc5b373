//! Faults, which are not rejections.

use aws_sdk_dynamodb::error::DisplayErrorContext;
use palisade_core::fence::FloorTooLow;

use crate::fault::FaultKind;

/// A fault of the fence at DynamoDB.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The name is not valid; nothing changed.
    #[error(transparent)]
    Invalid(#[from] crate::name::Invalid),
    /// An argument cannot be used; the text names it and the allowed values. Nothing changed.
    #[error("{0}")]
    Argument(String),
    /// DynamoDB failed; it is unknown whether a write took effect. It is safe to repeat with a sequence
    /// number.
    #[error("DynamoDB failed: {}", DisplayErrorContext(.0))]
    Database(#[source] Box<aws_sdk_dynamodb::Error>),
    /// Other clients changed the resource each time; nothing changed. Try again later.
    #[error(
        "contended: others changed the resource {attempts} times in a row; nothing was written"
    )]
    Contended {
        /// The number of attempts.
        attempts: u32,
    },
    /// The write may have taken effect, but too many other writes came after it to tell.
    #[error("unknown outcome: the write may have taken effect; repeat it with its sequence number")]
    UnknownOutcome,
    /// A condition of the caller was false; nothing changed.
    #[error("the condition of item {index} of the write did not hold; nothing was written")]
    Condition {
        /// The index of the item in the list, starting at 0.
        index: usize,
    },
    /// There is data without its fence (rule F7): an operator must re-arm it with a floor.
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
        /// The problem.
        why: String,
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
            Fault::Database(_) | Fault::UnknownOutcome => FaultKind::Unknown,
            Fault::Invalid(_)
            | Fault::Argument(_)
            | Fault::Condition { .. }
            | Fault::FloorTooLow(_) => FaultKind::Invalid,
            Fault::FenceLost { .. } | Fault::Damaged { .. } => FaultKind::Operator,
        }
    }
}

/// Any error of the SDK.
pub(super) fn failed(error: impl Into<aws_sdk_dynamodb::Error>) -> Fault {
    Fault::Database(Box::new(error.into()))
}
