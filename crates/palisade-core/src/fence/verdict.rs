//! The answers of a fence.

use core::fmt;

use super::{FenceState, Sequence};
use crate::code::Code;
use crate::name::{AuthorityId, LockName};
use crate::token::Token;

/// A fence's answer to one operation; `S` is the type that the fence stores.
#[derive(Clone, Debug, PartialEq, Eq)]
#[must_use]
pub enum Verdict<S = FenceState> {
    /// Perform it, and store this state in the same step; `None` if the stored state stays.
    Admit(Option<S>),
    /// This write was already performed: do not perform it again, and repeat its answer.
    Repeat,
    /// Do not perform it.
    Reject(Reject),
}

impl<S> Verdict<S> {
    /// Returns the same verdict with the state converted.
    pub fn map<T>(self, f: impl FnOnce(S) -> T) -> Verdict<T> {
        match self {
            Verdict::Admit(next) => Verdict::Admit(next.map(f)),
            Verdict::Repeat => Verdict::Repeat,
            Verdict::Reject(reject) => Verdict::Reject(reject),
        }
    }
}

/// The reason of a rejection, with the details for the holder.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Reject {
    /// A newer grant has claimed the resource. This holder must stop (rule F5).
    Stale {
        /// The token of the operation.
        presented: Token,
        /// The highest token admitted.
        highest: Token,
    },
    /// The same holder has already written with a higher sequence number, so this write is a late duplicate (rule F5).
    SequenceStale {
        /// The highest sequence number under this token.
        last: Sequence,
    },
    /// Strict mode: there is already a write under this token, perhaps an earlier attempt of this write (rule F5).
    AlreadyWritten,
    /// Another write, with another digest, has this sequence number. Answering it as a repeat would lose the write.
    SequenceReused {
        /// The sequence number.
        last: Sequence,
    },
    /// The resource is bound to another authority, or the operation names none (rule F6).
    WrongAuthority {
        /// The authority whose tokens are admitted.
        bound: AuthorityId,
    },
    /// The resource is bound to another lock, or the operation names none (rule F6).
    WrongLock {
        /// The lock whose tokens are admitted.
        bound: LockName,
    },
    /// An unverified token is too far above the highest (rule F10).
    Jump {
        /// The highest token admitted, if any.
        highest: Option<Token>,
        /// The bound in force.
        bound: u64,
    },
    /// The resource is fenced and the write carries no token (rule F9).
    Tokenless {
        /// The highest token admitted.
        highest: Token,
    },
    /// There was nothing to change: a fenced write that matches no row fails (rule F8). The resource detects this;
    /// fence and data stay unchanged.
    Missing,
}

impl Reject {
    /// Every possible [`code`](Reject::code), once.
    pub const CODES: [Code; 9] = [
        Code::Stale,
        Code::SequenceStale,
        Code::AlreadyWritten,
        Code::SequenceReused,
        Code::WrongAuthority,
        Code::WrongLock,
        Code::Jump,
        Code::Tokenless,
        Code::Missing,
    ];

    /// Returns the highest token at the resource, if the reason names it.
    #[must_use]
    pub const fn highest(&self) -> Option<Token> {
        match self {
            Reject::Stale { highest, .. } | Reject::Tokenless { highest } => Some(*highest),
            Reject::Jump { highest, .. } => *highest,
            _ => None,
        }
    }

    /// Returns the code of the reason, one of [`Reject::CODES`].
    #[must_use]
    pub const fn code(&self) -> Code {
        match self {
            Reject::Stale { .. } => Code::Stale,
            Reject::SequenceStale { .. } => Code::SequenceStale,
            Reject::AlreadyWritten => Code::AlreadyWritten,
            Reject::SequenceReused { .. } => Code::SequenceReused,
            Reject::WrongAuthority { .. } => Code::WrongAuthority,
            Reject::WrongLock { .. } => Code::WrongLock,
            Reject::Jump { .. } => Code::Jump,
            Reject::Tokenless { .. } => Code::Tokenless,
            Reject::Missing => Code::Missing,
        }
    }
}

/// A refused write is an error to its holder, which `?` propagates.
impl core::error::Error for Reject {}

impl fmt::Display for Reject {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reject::Stale { presented, highest } => write!(
                f,
                "token {presented} is stale: {presented} < {highest}; a newer holder has claimed: give up, and write \
                 nothing more"
            ),
            Reject::SequenceStale { last } => {
                write!(
                    f,
                    "sequence number {last} was already written under this token"
                )
            }
            Reject::AlreadyWritten => f.write_str(
                "already written under this token: this resource takes one write per grant",
            ),
            Reject::SequenceReused { last } => {
                write!(
                    f,
                    "sequence number {last} was already used for another write"
                )
            }
            Reject::WrongAuthority { bound } => {
                write!(
                    f,
                    "only tokens of the authority {bound} count here, and this one names none or another"
                )
            }
            Reject::WrongLock { bound } => {
                write!(
                    f,
                    "only tokens of the lock {bound} count here, and this one names none or another"
                )
            }
            Reject::Jump { highest, bound } => write!(
                f,
                "the token is more than {bound} above {}, the highest seen here: it is not believed",
                highest.map_or(0, Token::get)
            ),
            Reject::Tokenless { highest } => write!(
                f,
                "this resource is fenced at token {highest}: a write must carry a fencing token"
            ),
            Reject::Missing => f.write_str("there is nothing to change: nothing was written"),
        }
    }
}
