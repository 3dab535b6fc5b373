//! What can come instead of an admission, in every SQL database.

use std::error::Error;

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
    pub(crate) fn noted(self, resource: &str, pass: Pass<'_>) -> Refused {
        if let Refused::Rejected(reject) = &self {
            audit::rejected(resource, Some(pass), reject);
        }
        self
    }

    /// What became of a statement of the user's own; which table's trigger said no, the driver does not
    /// tell in every version.
    #[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlx-postgres"))]
    pub(crate) fn of_the_users(fault: Fault) -> Refused {
        let refused = Refused::from(fault);
        if let Refused::Rejected(reject) = &refused {
            audit::rejected("a sticky table", None, reject);
        }
        refused
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
    /// A table of the fence is not here: the database's words, and how it is made.
    #[error("the fence is not installed in this database ({0})")]
    NotInstalled(String),
    /// The connection is in no transaction, so check and effect could not be one step.
    #[error("a fence needs a transaction: begin one, and write in the same")]
    NoTransaction,
    /// The transaction read before it claimed, and what it reads is older than the last write under the
    /// guard row: what it wrote would be computed from the past.
    #[error(
        "the transaction has read before it claimed {0}, and sees an older state than the one it claimed: \
         begin again, and claim first"
    )]
    ReadBeforeClaim(String),
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
        /// The database's own code: SQLSTATE in PostgreSQL, the number of the error elsewhere.
        state: String,
        /// Its words.
        message: String,
        /// Whether it lets the same transaction be begun again.
        retryable: bool,
    },
    /// The connection or the driver failed.
    #[error("the connection to the database failed: {0}")]
    Connection(#[source] Box<dyn Error + Send + Sync>),
}

impl Fault {
    /// Whether the same transaction, rolled back and begun again, may well succeed: a serialization
    /// failure, a deadlock, a lock timeout, a busy database. Nothing took effect.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self {
            Fault::Database { retryable, .. } => *retryable,
            Fault::ReadBeforeClaim(_) => true,
            _ => false,
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
