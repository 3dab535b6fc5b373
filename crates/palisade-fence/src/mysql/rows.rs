//! Conversion of the server's answers into values and faults.

use mysql_async::{Error, Row, Value};
use palisade_core::Token;
use palisade_core::fence::Reject;

use crate::sql::Fault;

/// The tables of the fence; if one of them is missing, the fence is not installed.
const OURS: [&str; 2] = ["palisade_fence", "resource_records"];

/// Converts a number to BIGINT. Tokens and sequence numbers end at 2^53 − 1.
pub(super) use crate::guard_row::bigint as int;

fn value(row: &mut Row, at: usize) -> Value {
    row.take(at).unwrap_or(Value::NULL)
}

pub(super) fn bytes(row: &mut Row, at: usize) -> Option<Vec<u8>> {
    match value(row, at) {
        Value::Bytes(bytes) => Some(bytes),
        _ => None,
    }
}

pub(super) fn text(row: &mut Row, at: usize) -> Option<String> {
    bytes(row, at).map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
}

/// Returns a whole number, or the other content of the column.
pub(super) fn number(row: &mut Row, at: usize) -> Result<i64, String> {
    match value(row, at) {
        Value::Int(number) => Ok(number),
        Value::UInt(number) => i64::try_from(number).map_err(|_| number.to_string()),
        other => Err(other.as_sql(true)),
    }
}

/// The server errors after which the same transaction may succeed: a deadlock, a lock timeout or a lock not
/// available at once, and a row that changed after the snapshot.
const RETRYABLE: [u16; 4] = [1213, 1205, 3572, 1020];

const NO_SUCH_TABLE: u16 = 1146;

impl From<Error> for Fault {
    fn from(error: Error) -> Fault {
        let Error::Server(error) = error else {
            return Fault::Connection(Box::new(error));
        };
        let last = error.message.rsplit(' ').next();
        let highest = last.and_then(|word| Token::new(word.parse().ok()?).ok());
        match (error.state.as_str(), highest) {
            ("PF001", Some(highest)) => trigger(Reject::Stale { highest }),
            ("PF002", Some(highest)) => trigger(Reject::Tokenless { highest }),
            _ if error.code == NO_SUCH_TABLE
                && OURS.iter().any(|our| error.message.contains(our)) =>
            {
                Fault::NotInstalled(format!(
                    "{}; run the files of sql/mysql, which are `palisade_fence::mysql::MIGRATIONS`",
                    error.message
                ))
            }
            _ => Fault::Database {
                state: match error.state.starts_with("PF") {
                    true => error.state,
                    false => error.code.to_string(),
                },
                message: error.message,
                retryable: RETRYABLE.contains(&error.code),
            },
        }
    }
}

const fn trigger(reject: Reject) -> Fault {
    Fault::Trigger {
        resource: None,
        reject,
    }
}
