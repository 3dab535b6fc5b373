//! Conversion of SQLite's errors into those of the crate.

use rusqlite::{Connection, ErrorCode};

use crate::error::{Error, ErrorKind, Result};
use crate::sql::unreachable;

/// Checks for a transaction: only inside one are check and effect one step.
pub(super) fn in_transaction(tx: &Connection) -> Result<()> {
    if tx.is_autocommit() {
        Err(Error::NoTransaction)
    } else {
        Ok(())
    }
}

/// Converts a number to INTEGER. Tokens and sequence numbers end at 2^53 − 1.
pub(super) use crate::guard_row::bigint as int;

fn missing(words: &str) -> bool {
    ["main.palisade_fence", "resource_records"]
        .iter()
        .any(|table| words.contains(&format!("no such table: {table}")))
}

/// A rejection by a trigger is not recognised here, because its message cannot name a token: see
/// [`why`](super::why).
impl From<rusqlite::Error> for Error {
    fn from(error: rusqlite::Error) -> Error {
        use rusqlite::Error::{SqlInputError, SqliteFailure};

        let message = error.to_string();
        match &error {
            _ if missing(&message) => Error::NotInstalled(format!(
                "{message}; run the files of sql/sqlite, which are `palisade_fence::sqlite::MIGRATIONS`"
            )),
            SqliteFailure(code, _) | SqlInputError { error: code, .. } => Error::Database {
                state: code.extended_code.to_string(),
                message,
                kind: match code.code {
                    ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked => ErrorKind::Retry,
                    _ => ErrorKind::Operator,
                },
                source: Box::new(error),
            },
            _ => unreachable(error),
        }
    }
}
