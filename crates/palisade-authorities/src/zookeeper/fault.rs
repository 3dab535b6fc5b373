//! Translation of failed operations into faults.

use zookeeper_client::Error;

use palisade_client::{Fault, Reason};

pub(super) fn of(error: Error) -> Fault {
    match error {
        Error::ConnectionLoss | Error::Timeout | Error::SessionMoved | Error::ClientClosed => {
            Fault::unknown_outcome(Reason::caused_by(error))
        }
        // Everything that belonged to the session is gone with it.
        Error::SessionExpired | Error::NoHosts | Error::Throttled | Error::NotReadOnly => {
            Fault::unavailable(Reason::caused_by(error))
        }
        Error::BadArguments(_)
        | Error::NoAuth
        | Error::AuthFailed
        | Error::InvalidAcl
        | Error::QuotaExceeded
        | Error::Unimplemented => Fault::invalid(Reason::caused_by(error)),
        other => Fault::unknown_outcome(Reason::caused_by(other)),
    }
}
