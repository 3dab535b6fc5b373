//! Errors of calls that return no lease.
//!
//! [`Error`] is what the calls of a client return. [`Fault`] is the part of it that an authority can say, too: an
//! implementation of [`LockService`](crate::LockService) knows nothing of leases, and says denials as values.

use palisade_core::{Ahead, Code, Delayed, Ending, Holder, Invalid, LockName, Token};

use crate::fault::Fault;

/// The reason why a call returned no lease, grouped by what the caller does next.
///
/// | error | the caller |
/// |---|---|
/// | [`Held`](Error::Held), [`Behind`](Error::Behind), [`Delayed`](Error::Delayed), [`QueueFull`](Error::QueueFull), [`TooManyLocks`](Error::TooManyLocks) | tries again later; each but the last two says when that makes sense |
/// | [`Lost`](Error::Lost) | stops the work |
/// | [`Fault`](Error::Fault) that [is transient](Fault::is_transient) | calls again; an acquire whose outcome is unknown is given up in the background |
/// | any other [`Fault`](Error::Fault) | changes the call, or asks the operator: [`Fault`] says which |
/// | [`TokensExhausted`](Error::TokensExhausted) | tells the operator |
///
/// [`LockRequest::attempt`](crate::LockRequest::attempt) returns denials as values instead. `{}` prints what an error says
/// itself, and [`source`](std::error::Error::source) is what caused it; `{:#}` prints both on one line.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Another client has the lock, and kept it for as long as the caller was willing to wait.
    #[error("{lock} is held by {} with token {}, for {} more unless renewed",
        holder.client, holder.token, holder.remaining.in_words())]
    Held {
        /// The lock.
        lock: LockName,
        /// The holder, and the time after which trying again makes sense.
        holder: Holder,
    },
    /// Another request waits for the lock and comes first, and still did when the caller's wait was over.
    #[error("{lock}: queued behind {}, which waits to be granted", ahead.client)]
    Behind {
        /// The lock.
        lock: LockName,
        /// The request ahead, and the time after which trying again makes sense.
        ahead: Ahead,
    },
    /// Nobody has the lock, and nobody is granted it for a time after its last grant.
    #[error("{lock} is free, and closed for {} more after its last grant, which had token {}",
        delayed.remaining.in_words(), delayed.token)]
    Delayed {
        /// The lock.
        lock: LockName,
        /// The last grant's token, and the time after which trying again makes sense.
        delayed: Delayed,
    },
    /// Too many requests are already waiting.
    #[error("{lock}: {message}")]
    QueueFull {
        /// The lock.
        lock: LockName,
        /// The bound that was hit.
        message: Box<str>,
    },
    /// The authority holds as many locks as its settings allow.
    #[error("{0}")]
    TooManyLocks(Box<str>),
    /// The authority has issued its last token and never grants again.
    #[error("the authority has issued its last token, and never grants again: tell its operator")]
    TokensExhausted,
    /// The lease was lost; nothing more may be done under it.
    #[error(transparent)]
    Lost(#[from] Lost),
    /// There was no answer.
    #[error(transparent)]
    Fault(#[from] Fault),
}

impl Error {
    /// The code of the error.
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

    /// The holder of the lock, if that is the reason.
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

/// The client no longer holds the lock. The error names the lost grant. Its token is still good for logging,
/// and a fence refuses it as soon as a later one has claimed.
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

/// The reason why a hold ended, as far as its holder knows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Loss {
    /// The local deadline passed without an acknowledged renewal.
    #[error("no renewal was acknowledged before the deadline")]
    Deadline,
    /// The holder released it.
    #[error("it was released")]
    Released,
    /// The authority reports how it ended.
    #[error("the authority says that it has {}", ending(*.0))]
    Ended(Ending),
    /// The authority knows no such grant.
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
    /// The code of the loss.
    #[must_use]
    pub fn code(self) -> Code {
        match self {
            Loss::Deadline | Loss::Ended(Ending::Expired) => Code::Expired,
            Loss::Stale { .. } => Code::Stale,
            Loss::Ended(Ending::Superseded) => Code::Superseded,
            Loss::Ended(Ending::Revoked) => Code::Revoked,
            Loss::Released | Loss::NotHeld | Loss::Ended(Ending::Released) => Code::NotHeld,
        }
    }

    /// Whether the authority itself reported that nothing of the grant is left.
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
