//! Translation of failed statements into faults.

use tokio_postgres::Error;

use palisade_client::{Fault, Reason};

/// The fault of a statement that was, or may have been, sent.
pub(super) fn of(error: Error) -> Fault {
    let Some(database) = error.as_db_error() else {
        return Fault::unknown_outcome(Reason::caused_by(error));
    };
    let (code, message) = (database.code().code(), database.message());
    match &code[..2.min(code.len())] {
        // The session ended, perhaps after its transaction had committed.
        "08" | "57" | "58" | "XX" => Fault::unknown_outcome(Reason::new(message).quoting(error)),
        // The transaction was rolled back, and the next try may succeed: conflicts, no space, temporarily
        // unavailable.
        "25" | "40" | "53" | "55" => Fault::unavailable(Reason::new(message).quoting(error)),
        _ => {
            let words = format!("{message} (SQLSTATE {code})");
            Fault::invalid(Reason::new(words).quoting(error))
        }
    }
}

/// The fault of a failed connection: nothing was sent yet.
pub(super) fn connecting(error: Error) -> Fault {
    let answered = error.as_db_error().is_some();
    match of(error) {
        Fault::UnknownOutcome(why) if !answered => Fault::Unreachable(why),
        Fault::UnknownOutcome(why) => Fault::Unavailable(why),
        other => other,
    }
}
