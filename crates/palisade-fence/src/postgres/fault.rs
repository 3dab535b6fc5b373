//! What can come instead of an admission.

use std::error::Error;

use palisade_core::Token;
use palisade_core::fence::{FloorTooLow, Pass, Reject};

use crate::audit;

use crate::guard_row::Corrupt;
use crate::name::Invalid;

/// Why the transaction must not go on.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// The fence said no: a normal outcome. Roll back and give up, or see what the reason asks for.
    #[error("{0}")]
    Rejected(Reject),
    /// Something failed.
    #[error(transparent)]
    Fault(Fault),
}

impl Refused {
    /// The same, once the operator was told.
    pub(super) fn noted(self, resource: &str, pass: Pass<'_>) -> Refused {
        if let Refused::Rejected(reject) = &self {
            audit::rejected(resource, Some(pass), reject);
        }
        self
    }

    /// The reason, if the fence said no.
    #[must_use]
    pub const fn rejected(&self) -> Option<&Reject> {
        match self {
            Refused::Rejected(reject) => Some(reject),
            Refused::Fault(_) => None,
        }
    }
}

/// What failed. Inside a transaction nothing took effect; only a connection that broke during COMMIT
/// leaves its outcome unknown.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// A resource's name is none.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// A table's or column's name is none, or an argument is out of range: what is wrong with it.
    #[error("{0}")]
    Argument(String),
    /// There is no table `palisade_fence` here.
    #[error(
        "the fence is not installed in this database ({0}): run `palisade fence install postgres`"
    )]
    NotInstalled(String),
    /// The connection is in no transaction, so check and effect could not be one step.
    #[error("a fence needs a transaction: begin one, and write in the same")]
    NoTransaction,
    /// A guard row no fence can have written.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// A fence is not re-armed below where it stands.
    #[error(transparent)]
    FloorTooLow(#[from] FloorTooLow),
    /// The sticky trigger or the ratchet of the table said no.
    #[error("{0}")]
    Trigger(Reject),
    /// The database said no.
    #[error("the database answered {state}: {message}")]
    Database {
        /// Its five letters, SQLSTATE.
        state: String,
        /// Its words.
        message: String,
    },
    /// The connection or the driver failed.
    #[error("the connection to the database failed: {0}")]
    Connection(#[source] Box<dyn Error + Send + Sync>),
}

impl Refused {
    /// What became of a statement of the user's own; which table's trigger said no, the driver does not
    /// tell in every version.
    pub(super) fn of_the_users(fault: Fault) -> Refused {
        let refused = Refused::from(fault);
        if let Refused::Rejected(reject) = &refused {
            audit::rejected("a sticky table", None, reject);
        }
        refused
    }
}

impl Fault {
    /// Whether the same transaction, begun again, may well succeed: a serialization failure, a deadlock
    /// or a lock timeout. Nothing took effect.
    #[must_use]
    pub fn is_retryable(&self) -> bool {
        matches!(self, Fault::Database { state, .. }
            if matches!(state.as_str(), "40001" | "40P01" | "55P03"))
    }

    pub(super) fn told(
        state: &str,
        message: &str,
        detail: Option<&str>,
        hint: Option<&str>,
    ) -> Fault {
        let highest = detail.and_then(|text| Token::new(text.parse().ok()?).ok());
        match (state, highest) {
            ("PF001", Some(highest)) => Fault::Trigger(Reject::Stale { highest }),
            ("PF002", Some(highest)) => Fault::Trigger(Reject::Tokenless { highest }),
            ("42P01", _)
                if message.contains("palisade_fence") || message.contains("resource_records") =>
            {
                Fault::NotInstalled(message.to_owned())
            }
            _ => Fault::Database {
                state: state.to_owned(),
                message: match hint {
                    Some(hint) => format!("{message} ({hint})"),
                    None => message.to_owned(),
                },
            },
        }
    }
}

/// What the trigger rejected is a rejection, whoever found it.
impl From<Fault> for Refused {
    fn from(fault: Fault) -> Refused {
        match fault {
            Fault::Trigger(reject) => Refused::Rejected(reject),
            other => Refused::Fault(other),
        }
    }
}

impl From<Reject> for Refused {
    fn from(reject: Reject) -> Refused {
        Refused::Rejected(reject)
    }
}

impl From<Corrupt> for Refused {
    fn from(corrupt: Corrupt) -> Refused {
        Refused::Fault(corrupt.into())
    }
}

impl From<Invalid> for Refused {
    fn from(invalid: Invalid) -> Refused {
        Refused::Fault(invalid.into())
    }
}
