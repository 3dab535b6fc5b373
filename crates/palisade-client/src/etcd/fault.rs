//! What a failed call says about what happened.

use tonic::{Code, Status};

use crate::fault::Fault;

/// A call that may have changed something.
pub(super) fn changed(status: &Status) -> Fault {
    match status.code() {
        // Refused before it was proposed, or for what it is.
        Code::InvalidArgument | Code::PermissionDenied | Code::Unauthenticated => {
            Fault::invalid(text(status))
        }
        Code::ResourceExhausted | Code::NotFound | Code::FailedPrecondition => {
            Fault::unavailable(text(status))
        }
        Code::Unimplemented => Fault::invalid(format!("no etcd answers there: {}", text(status))),
        _ => Fault::unknown_outcome(text(status)),
    }
}

/// A call that only looked.
pub(super) fn looked(status: &Status) -> Fault {
    match changed(status) {
        Fault::UnknownOutcome(why) => Fault::Unavailable(why),
        other => other,
    }
}

fn text(status: &Status) -> String {
    match std::error::Error::source(status) {
        // What the connection says is more than "transport error".
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
