//! The errors of a client's calls.
//!
//! A client's calls return [`Error`]. An implementation of [`LockService`](crate::LockService) returns only the
//! [`Fault`] in it: it returns denials as values, and does not know which leases are lost.

use palisade_core::{Ahead, Code, Delayed, Ending, Holder, Invalid, LockName, Token};

use crate::fault::Fault;

/// The reason why a call failed, grouped by what the caller does next.
///
/// | error | the caller |
/// |---|---|
/// | [`Held`](Error::Held), [`Behind`](Error::Behind), [`Delayed`](Error::Delayed), [`QueueFull`](Error::QueueFull), [`TooManyLocks`](Error::TooManyLocks) | tries again later; the first three say when |
/// | [`Lost`](Error::Lost) | stops the work |
/// | [`Fault`](Error::Fault) that [is transient](Fault::is_transient) | calls again; an acquire with an unknown outcome is abandoned in the background |
/// | any other [`Fault`](Error::Fault) | changes the call or tells the operator: [`Fault`] says which |
/// | [`TokensExhausted`](Error::TokensExhausted) | tells the operator |
///
/// [`LockRequest::attempt`](crate::LockRequest::attempt) returns denials as values instead. `{}` prints the error
/// without its cause, [`source`](std::error::Error::source) returns the cause, and `{:#}` prints both on one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another client holds the lock, and still held it when the wait was over.
    #[error("{lock} is held by {} with token {}, for {} more unless renewed",
        holder.client, holder.token, holder.remaining.in_words())]
    Held {
        /// The lock.
        lock: LockName,
        /// The holder, and when to try again.
        holder: Holder,
    },
    /// Another request is ahead in the queue, and still was when the wait was over.
    #[error("{lock}: queued behind {}, which waits to be granted", ahead.client)]
    Behind {
        /// The lock.
        lock: LockName,
        /// The request ahead, and when to try again.
        ahead: Ahead,
    },
    /// The lock is closed for a time after its last grant; nobody holds it.
    #[error("{lock} is free, and closed for {} more after its last grant, which had token {}",
        delayed.remaining.in_words(), delayed.token)]
    Delayed {
        /// The lock.
        lock: LockName,
        /// The last grant's token, and when to try again.
        delayed: Delayed,
    },
    /// Too many requests are already waiting.
    #[error("{lock}: {message}")]
    QueueFull {
        /// The lock.
        lock: LockName,
        /// A text that names the bound.
        message: Box<str>,
    },
    /// The authority's settings allow no more held locks; the text names the bound.
    #[error("{0}")]
    TooManyLocks(Box<str>),
    /// The authority has issued its last token and never grants again.
    #[error("the authority has issued its last token, and never grants again: tell its operator")]
    TokensExhausted,
    /// The lease was lost: stop all work under it.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// The authority returned no decision.
    #[error(transparent)]
    Fault(#[from] Fault),
}

impl Error {
    /// Returns the error's code.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Error::Held { .. } | Error::Behind { .. } => Code::Held,
            Error::Delayed { .. } => Code::Delayed,
            Error::QueueFull { .. } => Code::QueueFull,
            Error::TooManyLocks(_) => Code::TooManyLocks,
            Error::TokensExhausted => Code::TokensExhausted,
            Error::Lost(lost) => lost.why.code(),
            Error::Fault(fault) => fault.code(),
        }
    }

    /// Returns the holder of the lock if the error is [`Error::Held`].
    #[must_use]
    pub fn holder(&self) -> Option<&Holder> {
        match self {
            Error::Held { holder, .. } => Some(holder),
            _ => None,
        }
    }
}

impl From<Invalid> for Error {
    fn from(invalid: Invalid) -> Error {
        Error::Fault(invalid.into())
    }
}

/// The client no longer holds the lock. The error names the lost grant. A fence refuses its token as soon as a later
/// holder has claimed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{lock} (token {token}) is lost: {}", in_words(*.token, .why))]
pub struct Lost {
    /// The lock.
    pub lock: LockName,
    /// The grant's token.
    pub token: Token,
    /// The reason.
    pub why: Loss,
}

fn in_words(token: Token, why: &Loss) -> String {
    match why {
        Loss::Stale { highest } if token < *highest => {
            format!("token {token} is stale: {token} < {highest}")
        }
        why => why.to_string(),
    }
}

/// The reason why a grant ended, as far as its holder knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Loss {
    /// The local deadline passed without an acknowledged renewal.
    #[error("no renewal was acknowledged before the deadline")]
    Deadline,
    /// The holder released the lock.
    #[error("it was released")]
    Released,
    /// The holder handed the lease over to another process ([`Lease::export`](crate::Lease::export)), so nothing is lost.
    #[error("it was handed over")]
    HandedOver,
    /// The authority reports how the grant ended.
    #[error("the authority says that it has {}", ending(*.0))]
    Ended(Ending),
    /// The authority does not know the grant.
    #[error("the authority says that it is not held")]
    NotHeld,
    /// The authority reports that the lock is held with another token.
    #[error("the lock is held with token {highest}")]
    Stale {
        /// That token.
        highest: Token,
    },
}

impl Loss {
    /// Returns the loss's code.
    #[must_use]
    pub fn code(self) -> Code {
        match self {
            Loss::Deadline | Loss::Ended(Ending::Expired) => Code::Expired,
            Loss::Stale { .. } => Code::Stale,
            Loss::Ended(Ending::Superseded) => Code::Superseded,
            Loss::Ended(Ending::Revoked) => Code::Revoked,
            Loss::Released | Loss::HandedOver | Loss::NotHeld | Loss::Ended(Ending::Released) => {
                Code::NotHeld
            }
        }
    }

    /// Whether the authority itself reported that the grant is over.
    pub(crate) fn is_the_authoritys_word(self) -> bool {
        matches!(self, Loss::Ended(_) | Loss::NotHeld | Loss::Stale { .. })
    }
}

fn ending(how: Ending) -> &'static str {
    match how {
        Ending::Released => "been released",
        Ending::Expired => "expired",
        Ending::Revoked => "been revoked by an operator",
        Ending::Superseded => "been superseded by a later grant to the same client",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_holder_whose_token_is_stale_is_told_both_numbers() {
        let token = |number| Token::new(number).unwrap();
        let lost = |highest| Lost {
            lock: LockName::new("orders").unwrap(),
            token: token(7),
            why: Loss::Stale {
                highest: token(highest),
            },
        };
        let said = lost(8).to_string();
        assert_eq!(said, "orders (token 7) is lost: token 7 is stale: 7 < 8");
        // A lower number is another grant, and this one is not stale.
        let said = lost(6).to_string();
        assert!(!said.contains("stale"), "{said}");
    }
}
