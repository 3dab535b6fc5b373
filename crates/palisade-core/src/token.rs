//! The fencing token: the number that a resource compares.

use core::fmt;
use core::num::NonZeroU64;

use crate::invalid::Invalid;

/// A fencing token: an integer in `1 ..= 2^53 - 1` that only grows.
///
/// The upper bound keeps it exact in JSON, JavaScript, Lua and an SQL `BIGINT`. Zero is never a token: "no token" is
/// `Option::None`, which cannot be compared by accident.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(NonZeroU64);

impl Token {
    /// The first token of a new authority.
    pub const FIRST: Token = Token(NonZeroU64::MIN);

    /// The last token. After it, an authority refuses to grant; it never wraps around.
    pub const MAX: Token = match NonZeroU64::new((1 << 53) - 1) {
        Some(n) => Token(n),
        None => Token::FIRST,
    };

    /// Checks a number from outside.
    ///
    /// # Errors
    /// [`Invalid::Token`] for 0 and for anything above [`Token::MAX`].
    pub const fn new(number: u64) -> Result<Token, Invalid> {
        match NonZeroU64::new(number) {
            Some(n) if number <= Token::MAX.0.get() => Ok(Token(n)),
            _ => Err(Invalid::Token { given: number }),
        }
    }

    /// Returns the number.
    #[must_use]
    pub const fn get(self) -> u64 {
        self.0.get()
    }

    /// Returns the next token; `None` at the end of the range.
    #[must_use]
    pub const fn next(self) -> Option<Token> {
        self.leap(1)
    }

    /// Returns the token that is higher by `by`; `None` if the range ends before it.
    #[must_use]
    pub const fn leap(self, by: u64) -> Option<Token> {
        match self.0.get().checked_add(by) {
            Some(n) if n <= Token::MAX.0.get() => match NonZeroU64::new(n) {
                Some(n) => Some(Token(n)),
                None => None,
            },
            _ => None,
        }
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({})", self.0)
    }
}

impl fmt::Display for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}
