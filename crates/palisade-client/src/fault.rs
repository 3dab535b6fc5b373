//! Faults between a client and its authority, grouped by what the caller does next.

use palisade_core::Code;

/// An operation without an answer from the authority. A denial is not a fault: it is one of the outcomes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// Nothing happened: it is safe to try again, with the same request id or a new one.
    #[error("the authority is unavailable: {0}")]
    Unavailable(Box<str>),
    /// Nothing happened, because nobody answers at the address: perhaps no server is running there.
    #[error("the authority is unavailable: {0}")]
    Unreachable(Box<str>),
    /// The operation may have happened: repeat it with the same request id, or abandon that id.
    #[error("the outcome is unknown: {0}")]
    UnknownOutcome(Box<str>),
    /// The call itself is wrong, and repeating it is pointless. Nothing happened.
    #[error("invalid: {0}")]
    Invalid(Box<str>),
    /// Nothing shows who the caller is ([`Code::Unauthenticated`]), or no rule lets it do this
    /// ([`Code::Forbidden`]). Nothing happened, and only the operator changes that.
    #[error("{1}")]
    Denied(Code, Box<str>),
    /// This authority has no such operation. Nothing happened.
    #[error("this authority cannot {0}")]
    Unsupported(Box<str>),
}

impl Fault {
    /// Creates a fault: nothing happened, because of `why`.
    pub fn unavailable(why: impl ToString) -> Fault {
        Fault::Unavailable(why.to_string().into())
    }

    /// Creates a fault: nobody answers at the address; `why` says how that showed.
    pub fn unreachable(why: impl ToString) -> Fault {
        Fault::Unreachable(why.to_string().into())
    }

    /// Creates a fault: the operation may have happened; `why` says why there is no answer.
    pub fn unknown_outcome(why: impl ToString) -> Fault {
        Fault::UnknownOutcome(why.to_string().into())
    }

    /// Creates a fault: the call is wrong, because of `why`.
    pub fn invalid(why: impl ToString) -> Fault {
        Fault::Invalid(why.to_string().into())
    }

    /// Creates a fault: the authority has no way to do `what` (a verb and its object).
    pub fn unsupported(what: impl ToString) -> Fault {
        Fault::Unsupported(what.to_string().into())
    }

    /// Whether the same operation may succeed when it is repeated.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            Fault::Unavailable(_) | Fault::Unreachable(_) | Fault::UnknownOutcome(_)
        )
    }

    /// The reason, without the kind of fault.
    #[must_use]
    pub fn reason(&self) -> &str {
        match self {
            Fault::Unavailable(why)
            | Fault::Unreachable(why)
            | Fault::UnknownOutcome(why)
            | Fault::Invalid(why)
            | Fault::Denied(_, why)
            | Fault::Unsupported(why) => why,
        }
    }

    /// Adds the place where the fault happened to its text.
    #[cfg(feature = "palisade")]
    pub(crate) fn at(mut self, place: &impl std::fmt::Display) -> Fault {
        let (Fault::Unavailable(why)
        | Fault::Unreachable(why)
        | Fault::UnknownOutcome(why)
        | Fault::Invalid(why)
        | Fault::Denied(_, why)
        | Fault::Unsupported(why)) = &mut self;
        *why = format!("{place}: {why}").into();
        self
    }

    /// The code of the fault.
    #[must_use]
    pub fn code(&self) -> Code {
        match self {
            Fault::Unavailable(_) | Fault::Unreachable(_) => Code::Unavailable,
            Fault::UnknownOutcome(_) => Code::UnknownOutcome,
            Fault::Invalid(_) => Code::Invalid,
            Fault::Denied(code, _) => *code,
            Fault::Unsupported(_) => Code::Refused,
        }
    }
}

impl From<palisade_core::Invalid> for Fault {
    fn from(invalid: palisade_core::Invalid) -> Fault {
        Fault::invalid(invalid)
    }
}
