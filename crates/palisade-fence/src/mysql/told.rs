//! What the server says, as values and as faults.

use mysql_async::{Error, Row, Value};
use palisade_core::Token;
use palisade_core::fence::Reject;

use crate::sql::{Fault, Refused};

/// Tables of ours: without one of them the fence is not installed.
const OURS: [&str; 2] = ["palisade_fence", "resource_records"];

/// A number as BIGINT has it. Tokens and sequence numbers end at 2^53 − 1.
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

/// A whole number, or what is there instead.
pub(super) fn number(row: &mut Row, at: usize) -> Result<i64, String> {
    match value(row, at) {
        Value::Int(number) => Ok(number),
        Value::UInt(number) => i64::try_from(number).map_err(|_| number.to_string()),
        other => Err(other.as_sql(true)),
    }
}

/// Of the errors of the servers' lists, those after which the same transaction may succeed: a deadlock, a
/// lock that was not had in time or at once, a row that changed after the snapshot.
const RETRYABLE: [u16; 4] = [1213, 1205, 3572, 1020];

const NO_SUCH_TABLE: u16 = 1146;

impl From<Error> for Fault {
    fn from(error: Error) -> Fault {
        let Error::Server(told) = error else {
            return Fault::Connection(Box::new(error));
        };
        let last = told.message.rsplit(' ').next();
        let highest = last.and_then(|word| Token::new(word.parse().ok()?).ok());
        match (told.state.as_str(), highest) {
            ("PF001", Some(highest)) => Fault::Trigger(Reject::Stale { highest }),
            ("PF002", Some(highest)) => Fault::Trigger(Reject::Tokenless { highest }),
            _ if told.code == NO_SUCH_TABLE
                && OURS.iter().any(|our| told.message.contains(our)) =>
            {
                Fault::NotInstalled(format!(
                    "{}; run the files of sql/mysql, which are `palisade_fence::mysql::MIGRATIONS`",
                    told.message
                ))
            }
            _ => Fault::Database {
                state: match told.state.starts_with("PF") {
                    true => told.state,
                    false => told.code.to_string(),
                },
                message: told.message,
                retryable: RETRYABLE.contains(&told.code),
            },
        }
    }
}

impl From<Error> for Refused {
    fn from(error: Error) -> Refused {
        Refused::of_the_users(error.into())
    }
}
