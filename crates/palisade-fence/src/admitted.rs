//! The answer of a fence to an operation that was carried out.

use palisade_core::Token;

/// An operation that was carried out. If the resource is durable, it is on stable storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admitted<T> {
    /// The result of the operation.
    pub value: T,
    /// The highest token at this resource; `None` if the check is off and nothing is recorded.
    pub highest: Option<Token>,
    /// This same write had already been carried out, and was not carried out again.
    pub repeat: bool,
}

impl<T> Admitted<T> {
    /// Creates the answer for an operation that was carried out just now.
    pub const fn new(value: T, highest: Option<Token>) -> Admitted<T> {
        Admitted {
            value,
            highest,
            repeat: false,
        }
    }

    /// Returns the same answer with another value.
    pub fn map<U>(self, f: impl FnOnce(T) -> U) -> Admitted<U> {
        Admitted {
            value: f(self.value),
            highest: self.highest,
            repeat: self.repeat,
        }
    }
}
