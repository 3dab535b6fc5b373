//! What a failed statement says about what happened.

use tokio_postgres::Error;

use crate::fault::Fault;

/// A statement that was sent, or may have been.
pub(super) fn of(error: &Error) -> Fault {
    let Some(database) = error.as_db_error() else {
        return Fault::unknown_outcome(text(error));
    };
    let (code, message) = (database.code().code(), database.message());
    match &code[..2.min(code.len())] {
        // The session was ended; perhaps after its transaction was.
        "08" | "57" | "58" | "XX" => Fault::unknown_outcome(message),
        // Rolled back, and the next try may fare better: conflicts, full, not now.
        "25" | "40" | "53" | "55" => Fault::unavailable(message),
        _ => Fault::invalid(format!("{message} (SQLSTATE {code})")),
    }
}

/// Nothing was sent yet.
pub(super) fn connecting(error: &Error) -> Fault {
    match of(error) {
        Fault::UnknownOutcome(why) => Fault::Unavailable(why),
        other => other,
    }
}

/// The library says "error communicating with the server" and keeps the reason as its source.
fn text(error: &Error) -> String {
    let cause = std::error::Error::source(error);
    cause.map_or_else(|| error.to_string(), |cause| format!("{error}: {cause}"))
}
