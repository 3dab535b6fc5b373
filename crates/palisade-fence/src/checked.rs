//! The answer of a fence to an operation.

use palisade_core::Token;
use palisade_core::fence::Reject;

/// The answer of a fence; both outcomes are normal.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Checked<T> {
    /// The operation was carried out. If the resource is durable, it is on stable storage.
    Admitted(Admitted<T>),
    /// The operation was not carried out, and nothing changed.
    Rejected(Reject),
}

/// An operation that was carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admitted<T> {
    /// The result of the operation.
    pub value: T,
    /// The highest token at this resource; `None` if the check is off and nothing is recorded.
    pub highest: Option<Token>,
    /// This same write had already been carried out, and was not carried out again.
    pub repeat: bool,
}

impl<T> Checked<T> {
    /// Creates the answer for an operation that was carried out just now.
    pub const fn admitted(value: T, highest: Option<Token>) -> Checked<T> {
        Checked::Admitted(Admitted {
            value,
            highest,
            repeat: false,
        })
    }

    /// Returns the result, or the reason of the rejection.
    ///
    /// # Errors
    /// The reason of the rejection, for callers that use `?`.
    pub fn into_result(self) -> Result<T, Reject> {
        match self {
            Checked::Admitted(admitted) => Ok(admitted.value),
            Checked::Rejected(reject) => Err(reject),
        }
    }

    /// Whether the operation was carried out.
    #[must_use]
    pub const fn is_admitted(&self) -> bool {
        matches!(self, Checked::Admitted(_))
    }

    /// The reason, if it was rejected.
    #[must_use]
    pub const fn rejected(&self) -> Option<&Reject> {
        match self {
            Checked::Admitted(_) => None,
            Checked::Rejected(reject) => Some(reject),
        }
    }

    /// Returns the same answer with another value.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Checked<U> {
        match self {
            Checked::Admitted(Admitted {
                value,
                highest,
                repeat,
            }) => Checked::Admitted(Admitted {
                value: f(value),
                highest,
                repeat,
            }),
            Checked::Rejected(reject) => Checked::Rejected(reject),
        }
    }
}
