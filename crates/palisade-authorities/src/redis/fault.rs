//! Translation of Redis errors into faults, by what the caller may do next.

use redis::RedisError;

use palisade_client::{Fault, Reason};

/// The fault of an address that the library does not understand. Its text contains no secret.
pub(super) fn address(error: RedisError) -> Fault {
    Fault::invalid(Reason::new("not the address of a Redis server").because(error))
}

/// The fault of a failed connection: nothing was sent yet.
pub(super) fn connecting(error: RedisError) -> Fault {
    if error.is_io_error() {
        return Fault::unreachable(Reason::caused_by(error));
    }
    Fault::unavailable(Reason::caused_by(error))
}

/// The fault of an operation that may have been sent.
pub(super) fn of(error: RedisError) -> Fault {
    if error.is_connection_refusal() {
        return Fault::unreachable(Reason::caused_by(error));
    }
    match error.code() {
        // The server answered before the script ran.
        Some("LOADING" | "BUSY" | "MASTERDOWN" | "READONLY" | "OOM" | "NOREPLICAS") => {
            Fault::unavailable(Reason::caused_by(error))
        }
        Some("NOAUTH" | "NOPERM" | "WRONGPASS") => Fault::invalid(Reason::caused_by(error)),
        _ => Fault::unknown_outcome(Reason::caused_by(error)),
    }
}
