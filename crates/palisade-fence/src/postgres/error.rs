//! Conversion of PostgreSQL's errors into faults.

use palisade_core::fence::{Reject, Sequence};
use palisade_core::{AuthorityId, LockName, Token};

use crate::sql::{Fault, stale_token};

/// What the server reports with an error.
#[derive(Clone, Copy, Debug)]
pub(super) struct Report<'a> {
    pub(super) state: &'a str,
    pub(super) message: &'a str,
    pub(super) detail: Option<&'a str>,
    pub(super) hint: Option<&'a str>,
    pub(super) constraint: Option<&'a str>,
}

impl Report<'_> {
    /// The rejection, as sql/postgres/0004_functions.sql lists them.
    fn reject(&self) -> Option<Reject> {
        let detail = self.detail.unwrap_or_default();
        let token = |text: &str| Token::new(text.parse().ok()?).ok();
        let sequence = || Sequence::new(detail.parse().ok()?);
        Some(match self.state {
            "PF001" => Reject::Stale {
                presented: stale_token(self.message)?,
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
        matches!(self.state, "42P01" | "42883") && ours.iter().any(|our| self.message.contains(our))
    }
}

impl From<Report<'_>> for Fault {
    fn from(report: Report<'_>) -> Fault {
        let message = report.message;
        if report.state == "PF012" {
            let resource = report.constraint.unwrap_or_default();
            return Fault::ReadBeforeClaim(resource.to_owned());
        }
        if let Some(reject) = report.reject() {
            let resource = report.constraint.map(str::to_owned);
            return Fault::Trigger { resource, reject };
        }
        if report.is_missing() {
            return Fault::NotInstalled(format!(
                "{message}; run `palisade fence install postgres`"
            ));
        }
        Fault::Database {
            state: report.state.to_owned(),
            message: match report.hint {
                Some(hint) => format!("{message} ({hint})"),
                None => message.to_owned(),
            },
            retryable: matches!(report.state, "40001" | "40P01" | "55P03"),
        }
    }
}
