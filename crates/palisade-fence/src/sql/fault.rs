//! Faults, which are not rejections, for all SQL databases.

use std::error::Error;

use palisade_core::fence::{FloorTooLow, Reject};

#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlx-postgres"))]
use crate::audit;
use crate::fault::FaultKind;
use crate::guard_row::Corrupt;
use crate::name::Invalid;

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
    /// The transaction read before it claimed, so what it has read may be older than the last write under the guard row:
    /// its writes would be computed from an old state.
    #[error(
        "the transaction has read before it claimed {0}, and what it has read may be older than the last write: \
         begin again, and claim first"
    )]
    ReadBeforeClaim(String),
    /// A guard row that no fence can have written.
    #[error(transparent)]
    Corrupt(#[from] Corrupt),
    /// A fence cannot be re-armed with a floor below its token.
    #[error(transparent)]
    FloorTooLow(#[from] FloorTooLow),
    /// The database rejected a statement of the user, by a sticky trigger, the ratchet of a table or a function of
    /// the fence; `Fault::rejected` turns it into the rejection.
    #[error("{reject}")]
    Trigger {
        /// The resource, if the database reports it.
        resource: Option<String>,
        /// Why.
        reject: Reject,
    },
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
    /// Returns what to do about it. Retry: roll back and begin the same transaction again, after a serialization
    /// failure, a deadlock, a lock timeout, a busy database, or a statement that a change of routines kept from being
    /// prepared.
    #[must_use]
    pub const fn kind(&self) -> FaultKind {
        match self {
            Fault::ReadBeforeClaim(_) => FaultKind::Retry,
            Fault::Database {
                retryable: true, ..
            } => FaultKind::Retry,
            Fault::Connection(_) => FaultKind::Unknown,
            Fault::Invalid(_)
            | Fault::Argument(_)
            | Fault::NoTransaction
            | Fault::FloorTooLow(_)
            | Fault::Trigger { .. } => FaultKind::Invalid,
            Fault::NotInstalled(_) | Fault::Corrupt(_) | Fault::Database { .. } => {
                FaultKind::Operator
            }
        }
    }

    /// Returns the rejection if a sticky trigger or a function of the fence rejected a statement of the user, and
    /// records it for the operator.
    ///
    /// # Errors
    /// Every other fault.
    #[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlx-postgres"))]
    pub fn rejected(self) -> Result<Reject, Fault> {
        match self {
            Fault::Trigger { resource, reject } => {
                let resource = resource.as_deref().unwrap_or("a sticky table");
                audit::rejected(resource, None, &reject);
                Ok(reject)
            }
            other => Err(other),
        }
    }
}
