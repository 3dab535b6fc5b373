//! What a failed operation says about what happened.

use zookeeper_client::Error;

use crate::fault::Fault;

pub(super) fn of(error: Error) -> Fault {
    match error {
        Error::ConnectionLoss | Error::Timeout | Error::SessionMoved | Error::ClientClosed => {
            Fault::unknown_outcome(error)
        }
        // With the session everything it had is gone.
        Error::SessionExpired | Error::NoHosts | Error::Throttled | Error::NotReadOnly => {
            Fault::unavailable(error)
        }
        Error::BadArguments(_)
        | Error::NoAuth
        | Error::AuthFailed
        | Error::InvalidAcl
        | Error::QuotaExceeded
        | Error::Unimplemented => Fault::invalid(error),
        other => Fault::unknown_outcome(other),
    }
}
