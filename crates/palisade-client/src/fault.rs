//! What can go wrong between a client and its authority, told apart by what the caller does next.

/// An operation that got no answer of its own. A denial is not a fault: it is a value among the
/// outcomes.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Fault {
    /// Nothing happened: trying again, with the same request id or a new one, is safe.
    #[error("the authority is unavailable: {0}")]
    Unavailable(Box<str>),
    /// It may have happened: repeat it with the same request id, or abandon that id.
    #[error("the outcome is unknown: {0}")]
    UnknownOutcome(Box<str>),
    /// The call itself is wrong, and repeating it is pointless. Nothing happened.
    #[error("invalid: {0}")]
    Invalid(Box<str>),
    /// This authority has no such operation. Nothing happened.
    #[error("this authority cannot {0}")]
    Unsupported(Box<str>),
}

impl Fault {
    /// Nothing happened, because of `why`.
    pub fn unavailable(why: impl ToString) -> Fault {
        Fault::Unavailable(why.to_string().into())
    }

    /// It may have happened; `why` says what cut the answer off.
    pub fn unknown_outcome(why: impl ToString) -> Fault {
        Fault::UnknownOutcome(why.to_string().into())
    }

    /// The call is wrong, because of `why`.
    pub fn invalid(why: impl ToString) -> Fault {
        Fault::Invalid(why.to_string().into())
    }

    /// The authority has no way to do `what` (a verb and its object).
    pub fn unsupported(what: impl ToString) -> Fault {
        Fault::Unsupported(what.to_string().into())
    }

    /// Whether the same operation may succeed when it is repeated.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self, Fault::Unavailable(_) | Fault::UnknownOutcome(_))
    }

    /// What the fault says, without its kind.
    #[must_use]
    pub fn reason(&self) -> &str {
        match self {
            Fault::Unavailable(why)
            | Fault::UnknownOutcome(why)
            | Fault::Invalid(why)
            | Fault::Unsupported(why) => why,
        }
    }

    /// The same fault, said of a place.
    #[cfg(feature = "palisade")]
    pub(crate) fn at(mut self, place: &impl std::fmt::Display) -> Fault {
        let (Fault::Unavailable(why)
        | Fault::UnknownOutcome(why)
        | Fault::Invalid(why)
        | Fault::Unsupported(why)) = &mut self;
        *why = format!("{place}: {why}").into();
        self
    }

    /// The name of the fault in the table of error codes.
    #[must_use]
    pub fn code(&self) -> &'static str {
        match self {
            Fault::Unavailable(_) => "unavailable",
            Fault::UnknownOutcome(_) => "unknown_outcome",
            Fault::Invalid(_) => "invalid",
            Fault::Unsupported(_) => "unsupported",
        }
    }
}

impl From<palisade_core::Invalid> for Fault {
    fn from(invalid: palisade_core::Invalid) -> Fault {
        Fault::invalid(invalid)
    }
}
