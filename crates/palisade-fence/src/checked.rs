//! What a fence answers to an operation.

use palisade_core::Token;
use palisade_core::fence::Reject;

/// The answer of a fence: both are normal outcomes.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Checked<T> {
    /// It was carried out, and where the resource is durable, it is on stable storage.
    Admitted(Admitted<T>),
    /// It was not, and nothing changed.
    Rejected(Reject),
}

/// An operation that was carried out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admitted<T> {
    /// What was asked for.
    pub value: T,
    /// The highest token at this resource; `None` where the check is off and nothing is recorded.
    pub highest: Option<Token>,
    /// This very write was carried out before; now nothing was.
    pub repeat: bool,
}

impl<T> Checked<T> {
    /// An operation that was carried out just now.
    pub const fn admitted(value: T, highest: Option<Token>) -> Checked<T> {
        Checked::Admitted(Admitted {
            value,
            highest,
            repeat: false,
        })
    }

    /// What was asked for, or why not.
    ///
    /// # Errors
    /// The reason of the rejection, for callers that go on with `?`.
    pub fn into_result(self) -> Result<T, Reject> {
        match self {
            Checked::Admitted(admitted) => Ok(admitted.value),
            Checked::Rejected(reject) => Err(reject),
        }
    }

    /// Whether it was carried out.
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

    /// The same answer with another value.
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
