//! Conversion of the server's answers into values and errors.

use mysql_async::{Row, Value};
use palisade_core::Token;
use palisade_core::fence::{Reject, Sequence};

use crate::error::{Error, ErrorKind};
use crate::sql::{StatementError, stale_token, unreachable};

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
/// available at once, a row that changed after the snapshot, and routines that changed so often, in any database of the
/// server, that it gave up preparing a statement again.
const RETRYABLE: [u16; 5] = [1213, 1205, 3572, 1020, 1615];

const NO_SUCH_TABLE: u16 = 1146;
const NO_SUCH_PROCEDURE: u16 = 1305;
const PROCEDURE_DENIED: u16 = 1370;

/// The rejection, as sql/mysql/0004_procedures.sql lists them: its number ends the message. Those of another owner are
/// not whole.
fn reject(state: &str, message: &str) -> Option<Reject> {
    let last = message.rsplit(' ').next()?;
    let token = || Token::new(last.parse().ok()?).ok();
    let sequence = || Sequence::new(last.parse().ok()?);
    Some(match state {
        "PF001" => Reject::Stale {
            presented: stale_token(message)?,
            highest: token()?,
        },
        "PF002" => Reject::Tokenless { highest: token()? },
        "PF007" => Reject::Jump {
            highest: token(),
            bound: message.split(' ').find_map(|word| word.parse().ok())?,
        },
        "PF008" => Reject::SequenceStale { last: sequence()? },
        "PF009" => Reject::SequenceReused { last: sequence()? },
        "PF010" => Reject::AlreadyWritten,
        _ => return None,
    })
}

impl From<mysql_async::Error> for StatementError {
    fn from(error: mysql_async::Error) -> StatementError {
        let mysql_async::Error::Server(error) = error else {
            return StatementError::Error(unreachable(error));
        };
        if let Some(reject) = reject(&error.state, &error.message) {
            let resource = None;
            return StatementError::Rejected { resource, reject };
        }
        let is_missing = match error.code {
            NO_SUCH_TABLE => OURS.iter().any(|our| error.message.contains(our)),
            NO_SUCH_PROCEDURE => error.message.contains("palisade_"),
            _ => false,
        };
        if is_missing {
            return StatementError::Error(Error::NotInstalled(format!(
                "{}: it never was, or by an older version; run `palisade fence install mysql`, or the files of sql/mysql, \
                 which are `palisade_fence::mysql::MIGRATIONS`",
                error.message
            )));
        }
        let is_denied = error.code == PROCEDURE_DENIED && error.message.contains("palisade_");
        let advice = if is_denied {
            "; the user needs the right to call the fence: GRANT EXECUTE ON the database"
        } else {
            ""
        };
        StatementError::Error(Error::Database {
            state: if error.state.starts_with("PF") {
                error.state.clone()
            } else {
                error.code.to_string()
            },
            message: format!("{}{advice}", error.message),
            kind: if RETRYABLE.contains(&error.code) {
                ErrorKind::Retry
            } else {
                ErrorKind::Operator
            },
            source: Box::new(mysql_async::Error::Server(error)),
        })
    }
}

/// If the fence rejected the statement, this records the rejection.
impl From<mysql_async::Error> for Error {
    fn from(error: mysql_async::Error) -> Error {
        StatementError::from(error).into()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use mysql_async::ServerError;

    use super::*;

    #[test]
    fn what_to_do_about_an_error_is_decided_by_its_number() {
        let kind = |code, message: &str| {
            let error = mysql_async::Error::Server(ServerError {
                code,
                message: message.to_owned(),
                state: "HY000".to_owned(),
            });
            Error::from(error).kind()
        };
        for code in RETRYABLE {
            assert_eq!(kind(code, "begin again"), ErrorKind::Retry, "{code}");
        }
        let missing = "Table 'shop.palisade_fence' doesn't exist";
        for (code, message) in [(NO_SUCH_TABLE, missing), (1114, "The table is full")] {
            assert_eq!(kind(code, message), ErrorKind::Operator, "{code}");
        }
    }
}
