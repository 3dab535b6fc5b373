//! Conversion of SQLite's errors into faults.

use rusqlite::{Connection, Error, ErrorCode};

use crate::sql::Fault;

/// Checks for a transaction: only inside one are check and effect one step.
pub(super) fn in_transaction(tx: &Connection) -> Result<(), Fault> {
    match tx.is_autocommit() {
        true => Err(Fault::NoTransaction),
        false => Ok(()),
    }
}

/// Converts a number to INTEGER. Tokens and sequence numbers end at 2^53 − 1.
pub(super) use crate::guard_row::bigint as int;

fn missing(words: &str) -> bool {
    ["main.palisade_fence", "resource_records"]
        .iter()
        .any(|table| words.contains(&format!("no such table: {table}")))
}

impl From<Error> for Fault {
    fn from(error: Error) -> Fault {
        let words = error.to_string();
        match error {
            _ if missing(&words) => Fault::NotInstalled(format!(
                "{words}; run the files of sql/sqlite, which are `palisade_fence::sqlite::MIGRATIONS`"
            )),
            Error::SqliteFailure(code, _) | Error::SqlInputError { error: code, .. } => {
                Fault::Database {
                    state: code.extended_code.to_string(),
                    message: words,
                    retryable: matches!(
                        code.code,
                        ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked
                    ),
                }
            }
            _ => Fault::Connection(Box::new(error)),
        }
    }
}
