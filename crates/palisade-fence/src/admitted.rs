//! The answer of a fence to an admitted operation.

use palisade_core::Token;

/// An operation that took effect. If the resource is durable, the effect is on stable storage.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Admitted<T> {
    /// The result of the operation.
    pub value: T,
    /// The highest token at this resource; `None` if the check is off and nothing is recorded.
    pub highest: Option<Token>,
    /// Whether the write is a repeat: it had already taken effect and was not performed again.
    pub repeat: bool,
}

impl<T> Admitted<T> {
    /// Creates the answer to an operation that has just taken effect.
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
