//! Conversion of PostgreSQL's errors into those of the crate.

use std::error;

use palisade_core::fence::{Reject, Sequence};
use palisade_core::{AuthorityId, LockName, Token};

use crate::error::{Error, ErrorKind};
use crate::sql::{StatementError, stale_token};

/// The fields of a server's error.
#[derive(Debug)]
pub(super) struct ErrorFields {
    pub(super) state: String,
    pub(super) message: String,
    pub(super) detail: Option<String>,
    pub(super) hint: Option<String>,
    pub(super) constraint: Option<String>,
}

impl ErrorFields {
    /// Reads the report; `source` is the driver's error.
    pub(super) fn answer(
        self,
        source: impl error::Error + Send + Sync + 'static,
    ) -> StatementError {
        if let Some(reject) = self.reject() {
            return StatementError::Rejected {
                resource: self.constraint,
                reject,
            };
        }
        StatementError::Error(match self.state.as_str() {
            "PF012" => Error::ReadBeforeClaim(self.constraint.unwrap_or_default()),
            _ if self.is_missing() => Error::NotInstalled(format!(
                "{}; run `palisade fence install postgres`",
                self.message
            )),
            state => Error::Database {
                kind: match state {
                    "40001" | "40P01" | "55P03" => ErrorKind::Retry,
                    _ => ErrorKind::Operator,
                },
                message: match self.hint {
                    Some(hint) => format!("{} ({hint})", self.message),
                    None => self.message,
                },
                state: self.state,
                source: Box::new(source),
            },
        })
    }

    /// The rejection, as sql/postgres/0004_functions.sql lists them.
    fn reject(&self) -> Option<Reject> {
        let detail = self.detail.as_deref().unwrap_or_default();
        let token = |text: &str| Token::new(text.parse().ok()?).ok();
        let sequence = || Sequence::new(detail.parse().ok()?);
        Some(match self.state.as_str() {
            "PF001" => Reject::Stale {
                presented: stale_token(&self.message)?,
                highest: token(detail)?,
            },
            "PF002" => Reject::Tokenless {
                highest: token(detail)?,
            },
            "PF005" => Reject::WrongAuthority {
                bound: AuthorityId::new(detail).ok()?,
            },
            "PF006" => Reject::WrongLock {
                bound: LockName::new(detail).ok()?,
            },
            "PF007" => {
                let (highest, bound) = detail.split_once(' ')?;
                Reject::Jump {
                    highest: token(highest),
                    bound: bound.parse().ok()?,
                }
            }
            "PF008" => Reject::SequenceStale { last: sequence()? },
            "PF009" => Reject::SequenceReused { last: sequence()? },
            "PF010" => Reject::AlreadyWritten,
            _ => return None,
        })
    }

    /// Whether a table or a function of the fence is missing.
    fn is_missing(&self) -> bool {
        let ours = ["palisade_", "resource_records"];
        matches!(self.state.as_str(), "42P01" | "42883")
            && ours.iter().any(|our| self.message.contains(our))
    }
}
