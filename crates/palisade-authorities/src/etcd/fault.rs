//! Translation of failed calls into faults.

use tonic::{Code, Status};

use palisade_client::{Fault, Reason};

/// The fault of a call that may have changed something.
pub(super) fn of_write(status: Status) -> Fault {
    let (code, mut words) = (status.code(), text(&status));
    if code == Code::Unimplemented {
        words = format!("the server at this address is not etcd: {words}");
    }
    let why = Reason::new(words).quoting(status);
    match code {
        // Refused before it was proposed, or not a permitted call.
        Code::InvalidArgument | Code::PermissionDenied | Code::Unauthenticated => {
            Fault::Invalid(why)
        }
        Code::ResourceExhausted | Code::NotFound | Code::FailedPrecondition => {
            Fault::Unavailable(why)
        }
        Code::Unimplemented => Fault::Invalid(why),
        _ => Fault::UnknownOutcome(why),
    }
}

/// The fault of a call that only reads.
pub(super) fn of_read(status: Status) -> Fault {
    match of_write(status) {
        Fault::UnknownOutcome(why) => Fault::Unavailable(why),
        other => other,
    }
}

fn text(status: &Status) -> String {
    match std::error::Error::source(status) {
        // The cause in the connection says more than "transport error".
        Some(cause) if status.code() == Code::Unavailable || status.code() == Code::Unknown => {
            innermost(cause).to_string()
        }
        _ => status.message().to_owned(),
    }
}

fn innermost<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> &'a (dyn std::error::Error + 'static) {
    let mut inner = error;
    while let Some(cause) = inner.source() {
        inner = cause;
    }
    inner
}
