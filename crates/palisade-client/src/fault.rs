//! Faults between a client and its authority, grouped by what the caller does next.
//!
//! [`LockService`](crate::LockService) returns this type. It returns denials as values, and losses are the guard's;
//! [`Error`](crate::Error) adds both.

use std::error::Error as StdError;
use std::fmt;
use std::sync::Arc;

use palisade_core::Code;

/// A failure to get the authority's decision. A denial is a decision, not a fault.
///
/// `{}` prints the fault without its cause. [`source`](StdError::source) returns the cause: the error of a socket, a
/// file, a certificate or a library. `{:#}` prints both on one line.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Fault {
    /// Nothing happened. Retry with the same request id or a new one.
    Unavailable(Reason),
    /// Nothing happened, because nothing answers at the address; perhaps no server is running there.
    Unreachable(Reason),
    /// The operation may have happened. Repeat it with the same request id, or abandon that id.
    UnknownOutcome(Reason),
    /// The call itself is wrong, and repeating it cannot help. Nothing happened.
    Invalid(Reason),
    /// The caller has no valid credentials ([`Code::Unauthenticated`]), or no rule allows the operation
    /// ([`Code::Forbidden`]). Nothing happened. Ask the operator for access.
    Denied(Code, Reason),
    /// This authority does not support the operation. Nothing happened.
    Unsupported(Reason),
}

/// The reason for a fault: words, and the error that caused it, if any. It prints both on one line.
///
/// Two reasons are equal if they print the same.
#[derive(Clone)]
pub struct Reason(Box<ReasonText>);

#[derive(Clone)]
struct ReasonText {
    /// Empty if the source alone is the reason.
    words: Box<str>,
    source: Option<Arc<dyn StdError + Send + Sync>>,
    /// Whether the words already contain the source's message.
    quotes: bool,
}

impl Reason {
    /// Creates a reason from words that say what happened, and to what.
    pub fn new(words: impl Into<Box<str>>) -> Reason {
        Reason(Box::new(ReasonText {
            words: words.into(),
            source: None,
            quotes: false,
        }))
    }

    /// Creates a reason that consists of an error alone.
    pub fn caused_by(source: impl StdError + Send + Sync + 'static) -> Reason {
        Reason::new("").because(source)
    }

    /// Adds the error that caused it; its message is printed after the words.
    #[must_use]
    pub fn because(mut self, source: impl StdError + Send + Sync + 'static) -> Reason {
        self.0.source = Some(Arc::new(source));
        self
    }

    /// Adds the error whose message these words already contain; its message is not printed again.
    #[must_use]
    pub fn quoting(mut self, source: impl StdError + Send + Sync + 'static) -> Reason {
        self.0.quotes = true;
        self.because(source)
    }

    /// Returns the words without the source; empty if the source alone is the reason.
    #[must_use]
    pub fn words(&self) -> &str {
        &self.0.words
    }

    /// Adds the address where it happened.
    pub(crate) fn at(mut self, place: &impl fmt::Display) -> Reason {
        self.0.words = match &*self.0.words {
            "" => place.to_string().into(),
            words => format!("{place}: {words}").into(),
        };
        self
    }

    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        let source = self.0.source.as_deref()?;
        Some(source)
    }
}

impl From<&str> for Reason {
    fn from(words: &str) -> Reason {
        Reason::new(words)
    }
}

impl From<String> for Reason {
    fn from(words: String) -> Reason {
        Reason::new(words)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.words)?;
        match self.source() {
            Some(source) if !self.0.quotes => {
                let between = if self.0.words.is_empty() { "" } else { ": " };
                write!(f, "{between}{}", causes(source))
            }
            _ => Ok(()),
        }
    }
}

impl fmt::Debug for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.to_string(), f)
    }
}

impl PartialEq for Reason {
    fn eq(&self, other: &Reason) -> bool {
        self.to_string() == other.to_string()
    }
}

impl Eq for Reason {}

/// Prints an error and its causes, outermost first, without repetitions, because some libraries print the source
/// themselves.
pub(crate) fn causes(error: &dyn StdError) -> String {
    let mut text = error.to_string();
    let mut below = error.source();
    while let Some(cause) = below {
        let said = cause.to_string();
        if !text.ends_with(&said) {
            text = format!("{text}: {said}");
        }
        below = cause.source();
    }
    text
}

impl Fault {
    /// Creates a fault: nothing happened, because of `why`.
    pub fn unavailable(why: impl Into<Reason>) -> Fault {
        Fault::Unavailable(why.into())
    }

    /// Creates a fault: nothing answers at the address; `why` gives the evidence.
    pub fn unreachable(why: impl Into<Reason>) -> Fault {
        Fault::Unreachable(why.into())
    }

    /// Creates a fault: the operation may have happened; `why` says why there is no answer.
    pub fn unknown_outcome(why: impl Into<Reason>) -> Fault {
        Fault::UnknownOutcome(why.into())
    }

    /// Creates a fault: the call is wrong, because of `why`.
    pub fn invalid(why: impl Into<Reason>) -> Fault {
        Fault::Invalid(why.into())
    }

    /// Creates a fault: the authority cannot do `what` (a verb and its object).
    pub fn unsupported(what: impl Into<Reason>) -> Fault {
        Fault::Unsupported(what.into())
    }

    /// Returns whether the same operation may succeed when it is repeated.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(
            self,
            Fault::Unavailable(_) | Fault::Unreachable(_) | Fault::UnknownOutcome(_)
        )
    }

    /// Returns the reason, without the kind of fault.
    #[must_use]
    pub fn reason(&self) -> &Reason {
        match self {
            Fault::Unavailable(why)
            | Fault::Unreachable(why)
            | Fault::UnknownOutcome(why)
            | Fault::Invalid(why)
            | Fault::Denied(_, why)
            | Fault::Unsupported(why) => why,
        }
    }

    /// Adds the address where the fault happened to its reason.
    #[cfg(feature = "palisade")]
    pub(crate) fn at(self, place: &impl fmt::Display) -> Fault {
        match self {
            Fault::Unavailable(why) => Fault::Unavailable(why.at(place)),
            Fault::Unreachable(why) => Fault::Unreachable(why.at(place)),
            Fault::UnknownOutcome(why) => Fault::UnknownOutcome(why.at(place)),
            Fault::Invalid(why) => Fault::Invalid(why.at(place)),
            Fault::Denied(code, why) => Fault::Denied(code, why.at(place)),
            Fault::Unsupported(why) => Fault::Unsupported(why.at(place)),
        }
    }

    /// The message of a fault whose reason has no words of its own, because `{}` leaves out the cause: what happened,
    /// and what to do.
    fn alone(&self) -> &'static str {
        match self {
            Fault::Unavailable(_) => {
                "the authority is unavailable: nothing happened, and the same call may succeed later"
            }
            Fault::Unreachable(_) => {
                "the authority is unavailable: nobody answers at its address; check it, and that a server runs there"
            }
            Fault::UnknownOutcome(_) => {
                "the outcome is unknown: repeat the call with the same request id, or give that id up"
            }
            Fault::Invalid(_) => {
                "invalid: this call cannot succeed as it is, and its source says what to change"
            }
            Fault::Denied(code, _) => code.meaning(),
            Fault::Unsupported(_) => "this authority cannot do that; another one may",
        }
    }

    /// Returns the fault's code.
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

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self {
            Fault::Unavailable(_) | Fault::Unreachable(_) => "the authority is unavailable",
            Fault::UnknownOutcome(_) => "the outcome is unknown",
            Fault::Invalid(_) => "invalid",
            Fault::Denied(..) => "",
            Fault::Unsupported(_) => "this authority cannot",
        };
        let said = if f.alternate() {
            self.reason().to_string()
        } else {
            self.reason().words().to_owned()
        };
        if said.is_empty() {
            return f.write_str(self.alone());
        }
        let between = match self {
            _ if kind.is_empty() => "",
            Fault::Unsupported(_) => " ",
            _ => ": ",
        };
        write!(f, "{kind}{between}{said}")
    }
}

impl StdError for Fault {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.reason().source()
    }
}

impl From<palisade_core::Invalid> for Fault {
    /// The fault's own text says what is wrong, so it needs no cause.
    fn from(invalid: palisade_core::Invalid) -> Fault {
        Fault::invalid(invalid.to_string())
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    fn refused() -> io::Error {
        io::Error::new(io::ErrorKind::ConnectionRefused, "refused")
    }

    /// The fault's own words, all of its words, and whether the error of the socket can be found.
    fn said(fault: &Fault) -> (String, String, bool) {
        let source = fault.source().and_then(|source| source.downcast_ref());
        let kept = source
            .is_some_and(|error: &io::Error| error.kind() == io::ErrorKind::ConnectionRefused);
        (fault.to_string(), format!("{fault:#}"), kept)
    }

    #[test]
    fn the_cause_is_kept_and_said_once() {
        let expected = |own: &str, whole: &str, kept| (own.to_owned(), whole.to_owned(), kept);
        let bare = Fault::unreachable(Reason::caused_by(refused()));
        let own = "the authority is unavailable: nobody answers at its address; check it, and that a server runs there";
        let whole = "the authority is unavailable: refused";
        assert_eq!(said(&bare), expected(own, whole, true));
        let cut = Fault::unknown_outcome(Reason::new("cut").because(refused()));
        let (own, whole) = (
            "the outcome is unknown: cut",
            "the outcome is unknown: cut: refused",
        );
        assert_eq!(said(&cut), expected(own, whole, true));
        let quoted = Fault::unsupported(Reason::new("count: refused").quoting(refused()));
        let own = "this authority cannot count: refused";
        assert_eq!(said(&quoted), expected(own, own, true));
        let denied = Fault::Denied(Code::Forbidden, "no rule".into());
        assert_eq!(said(&denied), expected("no rule", "no rule", false));
    }

    #[test]
    fn an_error_that_prints_its_source_is_not_printed_twice() {
        let outer = io::Error::other(Fault::invalid(Reason::caused_by(refused())));
        let own = "invalid: this call cannot succeed as it is, and its source says what to change";
        assert_eq!(causes(&outer), format!("{own}: refused"));
    }
}
