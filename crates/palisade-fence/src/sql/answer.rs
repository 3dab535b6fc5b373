//! The answer of a database that has not carried a statement out.

use palisade_core::fence::Reject;

use crate::audit;
use crate::error::Error;

/// The error of a statement, before a rejection is recorded for the operator.
#[derive(Debug)]
pub enum StatementError {
    /// A routine or a trigger of the fence rejected it.
    Rejected {
        /// The resource, if the database reports it.
        resource: Option<String>,
        /// Why.
        reject: Reject,
    },
    /// Any other error.
    Error(Error),
}

/// Records the rejection of a statement of the user. One of the fence's own statements is recorded where its token is
/// known.
impl From<StatementError> for Error {
    fn from(answer: StatementError) -> Error {
        match answer {
            StatementError::Rejected { resource, reject } => {
                let resource = resource.as_deref().unwrap_or("a sticky table");
                audit::reject(resource, None, reject)
            }
            StatementError::Error(error) => error,
        }
    }
}
