//! A failure has a message, a next step and the program's exit status.

use palisade_client::{Error, Fault, Holder};
use palisade_proto::Code;
use serde::Serialize;

use super::shell::shell_word;
use super::value::in_words;

/// The lock was lost, or the named grant does not hold it.
pub(crate) const LOST: u8 = 123;
/// The lock was not acquired in time.
pub(crate) const NOT_ACQUIRED: u8 = 124;
/// Palisade itself failed.
pub(crate) const FAILED: u8 = 125;
/// The command line is wrong; `run` says [`FAILED`] instead, because 2 may be its job's status.
pub(crate) const USAGE: u8 = 2;

/// Why the program does not end with success.
#[derive(Clone, Debug)]
pub(crate) struct Failure {
    /// The exit status.
    pub(crate) status: u8,
    /// A code from the table of error codes.
    pub(crate) code: Code,
    /// The message, with real names.
    pub(crate) message: String,
    /// The next step.
    pub(crate) hint: Option<String>,
    /// The holder of the lock, if that is the reason.
    pub(crate) holder: Option<Box<Holder>>,
}

/// Whether the URL names a Palisade server, not another system.
pub(super) fn is_palisade(url: &str) -> bool {
    ["palisade://", "http://", "https://", "unix:"]
        .iter()
        .any(|scheme| url.starts_with(scheme))
}

/// The form of an error with `--json`, as over HTTP.
#[derive(Serialize)]
struct Body<'a> {
    error: Inner<'a>,
}

#[derive(Serialize)]
struct Inner<'a> {
    code: &'a str,
    message: &'a str,
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<&'a str>,
    #[serde(skip_serializing_if = "Option::is_none")]
    holder: Option<serde_json::Value>,
}

impl Failure {
    pub(crate) fn new(status: u8, code: Code, message: impl Into<String>) -> Failure {
        Failure {
            status,
            code,
            message: in_words(&message.into()),
            hint: None,
            holder: None,
        }
    }

    /// A command line that was rejected.
    pub(crate) fn usage(message: impl Into<String>) -> Failure {
        Failure::new(USAGE, Code::Invalid, message)
    }

    /// A failure on this machine.
    pub(crate) fn local(message: impl Into<String>) -> Failure {
        Failure::new(FAILED, Code::Internal, message)
    }

    pub(crate) fn hint(mut self, hint: impl Into<String>) -> Failure {
        self.hint = Some(hint.into());
        self
    }

    /// An error of the client, at the authority at `url`.
    pub(crate) fn of(error: &Error, url: &str) -> Failure {
        let message = format!("{error:#}");
        let failure = match error {
            Error::Fault(fault) => return Failure::of_fault(fault, url),
            Error::Held { holder, .. } => {
                let holder = Some(Box::new(holder.clone()));
                Failure {
                    holder,
                    ..Failure::new(NOT_ACQUIRED, error.code(), message)
                }
            }
            Error::Behind { .. }
            | Error::Delayed { .. }
            | Error::QueueFull { .. }
            | Error::TooManyLocks(_) => Failure::new(NOT_ACQUIRED, error.code(), message),
            Error::Lost(_) => Failure::new(LOST, error.code(), message),
            _ => Failure::new(FAILED, error.code(), message),
        };
        match error {
            Error::Held { lock, .. } | Error::Behind { lock, .. } => failure.hint(format!(
                "wait longer with --wait, or see who waits: palisade show {}",
                shell_word(lock.as_str())
            )),
            Error::Delayed { lock, .. } => failure.hint(format!(
                "wait longer with --wait, or see for how long: palisade show {}",
                shell_word(lock.as_str())
            )),
            Error::TokensExhausted => {
                failure.hint("this authority will never grant a lock again: tell its operator")
            }
            _ => failure,
        }
    }

    fn of_fault(fault: &Fault, url: &str) -> Failure {
        let url = palisade_client::without_secrets(url);
        let place = if url.starts_with("unix:") {
            &*url
        } else {
            url.split_once("://").map_or(&*url, |(_, place)| place)
        };
        // A client of several nodes names the one that failed; the URL says it already.
        let fault_text = format!("{fault:#}").replacen(&format!("{place}: "), "", 1);
        let message = format!("{url}: {fault_text}");
        match fault {
            Fault::Invalid(_) => Failure::new(USAGE, fault.code(), message),
            Fault::Unreachable(_) if !is_palisade(&url) => {
                Failure::new(FAILED, fault.code(), message).hint("is it running there?")
            }
            Fault::Unreachable(_) => Failure::new(FAILED, fault.code(), message).hint(
                "is a server running there? Start one with `palisade serve`, or name another with \
                 --authority URL or PALISADE_AUTHORITY",
            ),
            Fault::UnknownOutcome(_) => Failure::new(FAILED, fault.code(), message).hint(
                "it may have happened: look with `palisade ls`; if a lock was granted, its lease expires by itself",
            ),
            _ => Failure::new(FAILED, fault.code(), message),
        }
    }

    /// Whether the only problem is that the lock was not acquired in time.
    pub(crate) fn is_conflict(&self) -> bool {
        self.status == NOT_ACQUIRED
    }

    /// The text for people: the message, and the next step on the line below.
    pub(crate) fn to_text(&self) -> String {
        let mut text = format!("palisade: {}", self.message);
        if let Some(hint) = &self.hint {
            text.push_str("\n  ");
            text.push_str(hint);
        }
        text
    }

    /// For programs, on one line.
    pub(crate) fn to_json(&self) -> String {
        let holder = self.holder.as_ref().map(|holder| {
            serde_json::json!({
                "client_id": holder.client.as_str(),
                "fencing_token": holder.token.get(),
                "remaining_ms": holder.remaining.as_millis(),
            })
        });
        let hint = self.hint.as_deref();
        let error = Inner {
            code: self.code.name(),
            message: &self.message,
            hint,
            holder,
        };
        serde_json::to_string(&Body { error }).unwrap_or_else(|_| self.message.clone())
    }
}

impl From<std::io::Error> for Failure {
    fn from(error: std::io::Error) -> Failure {
        Failure::local(error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_proposed_only_where_nobody_answers() {
        let hint = |fault: Fault, url| Failure::of_fault(&fault, url).hint.unwrap_or_default();
        let (palisade, redis) = ("http://127.0.0.1:7420", "redis://127.0.0.1");
        assert!(hint(Fault::unreachable("refused"), palisade).contains("palisade serve"));
        assert_eq!(
            hint(Fault::unreachable("refused"), redis),
            "is it running there?"
        );
        // A server that answers gives the next step itself, so no hint is added.
        let full = Fault::unavailable("the disk is full (os error 28)");
        assert_eq!(hint(full, palisade), "");
    }
}
