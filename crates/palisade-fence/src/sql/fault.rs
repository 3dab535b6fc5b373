//! The outcomes other than an admission, for all SQL databases.

use std::error::Error;

use palisade_core::fence::{FloorTooLow, Pass, Reject};

use crate::audit;
use crate::guard_row::Corrupt;
use crate::name::Invalid;

/// The reason why the transaction must not continue.
#[derive(Debug, thiserror::Error)]
pub enum Refused {
    /// The fence rejected the operation: a normal outcome. Roll back and give up, or do what the reason asks
    /// for.
    #[error("{0}")]
    Rejected(Reject),
    /// A fault.
    #[error(transparent)]
    Fault(Fault),
}

impl Refused {
    /// Records the refusal for the operator and returns it.
    pub(crate) fn noted(self, resource: &str, pass: Pass<'_>) -> Refused {
        if let Refused::Rejected(reject) = &self {
            audit::rejected(resource, Some(pass), reject);
        }
        self
    }

    /// The outcome of a statement of the user. Not every version of the driver reports which table's trigger
    /// rejected it.
    #[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlx-postgres"))]
    pub(crate) fn of_the_users(fault: Fault) -> Refused {
        let refused = Refused::from(fault);
        if let Refused::Rejected(reject) = &refused {
            audit::rejected("a sticky table", None, reject);
        }
        refused
    }

    /// The reason, if the fence rejected the operation.
    #[must_use]
    pub const fn rejected(&self) -> Option<&Reject> {
        match self {
            Refused::Rejected(reject) => Some(reject),
            Refused::Fault(_) => None,
        }
    }
}

/// A fault. Inside a transaction nothing took effect; only a connection that broke during COMMIT leaves its
/// outcome unknown.
#[derive(Debug, thiserror::Error)]
pub enum Fault {
    /// The name of a resource is not valid.
    #[error(transparent)]
    Invalid(#[from] Invalid),
    /// The name of a table or column is not valid, or an argument is out of range; the text says which.
    #[error("{0}")]
    Argument(String),
    /// A table of the fence is missing: the database's message, and how to create it.
    #[error("the fence is not installed in this database ({0})")]
    NotInstalled(String),
    /// The connection is not in a transaction, so check and effect could not be one step.
    #[error("a fence needs a transaction: begin one, and write in the same")]
    NoTransaction,
    /// The transaction read before it claimed, and its view is older than the last write under the guard row:
    /// its writes would be computed from an old state.
    #[error(
        "the transaction has read before it claimed {0}, and sees an older state than the one it claimed: \
         begin again, and claim first"
    )]
    ReadBeforeClaim(String),
    /// A guard row that no fence can have written.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// A fence cannot be re-armed with a floor below its token.
    #[error(transparent)]
    FloorTooLow(#[from] FloorTooLow),
    /// The sticky trigger or the ratchet of the table rejected the statement.
    #[error("{0}")]
    Trigger(Reject),
    /// The database reported an error.
    #[error("the database answered {state}: {message}")]
    Database {
        /// The database's own code: SQLSTATE in PostgreSQL, the number of the error elsewhere.
        state: String,
        /// Its message.
        message: String,
        /// Whether the same transaction may be started again.
        retryable: bool,
    },
    /// The connection or the driver failed.
    #[error("the connection to the database failed: {0}")]
    Connection(#[source] Box<dyn Error + Send + Sync>),
}

impl Fault {
    /// Whether the same transaction, rolled back and started again, may succeed: a serialization failure, a
    /// deadlock, a lock timeout, a busy database. Nothing took effect.
    #[must_use]
    pub const fn is_retryable(&self) -> bool {
        match self {
            Fault::Database { retryable, .. } => *retryable,
            Fault::ReadBeforeClaim(_) => true,
            _ => false,
        }
    }
}

/// A rejection by the trigger is a rejection, regardless of the statement that caused it.
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
