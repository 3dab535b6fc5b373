//! Translation of failed statements into faults.

use tokio_postgres::Error;

use crate::fault::Fault;

/// The fault of a statement that was, or may have been, sent.
pub(super) fn of(error: &Error) -> Fault {
    let Some(database) = error.as_db_error() else {
        return Fault::unknown_outcome(text(error));
    };
    let (code, message) = (database.code().code(), database.message());
    match &code[..2.min(code.len())] {
        // The session ended, perhaps after its transaction had committed.
        "08" | "57" | "58" | "XX" => Fault::unknown_outcome(message),
        // The transaction was rolled back, and the next try may succeed: conflicts, no space, temporarily
        // unavailable.
        "25" | "40" | "53" | "55" => Fault::unavailable(message),
        _ => Fault::invalid(format!("{message} (SQLSTATE {code})")),
    }
}

/// The fault of a failed connection: nothing was sent yet.
pub(super) fn connecting(error: &Error) -> Fault {
    match of(error) {
        Fault::UnknownOutcome(why) if error.as_db_error().is_none() => Fault::Unreachable(why),
        Fault::UnknownOutcome(why) => Fault::Unavailable(why),
        other => other,
    }
}

/// The text of an error with its cause: the library says "error communicating with the server" and keeps the
/// reason as the source.
fn text(error: &Error) -> String {
    let cause = std::error::Error::source(error);
    cause.map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}
