//! Translation of Redis errors into faults, by what the caller may do next.

use redis::RedisError;

use crate::fault::Fault;

/// The fault of an address that the library does not understand. Its text contains no secret.
pub(super) fn address(error: &RedisError) -> Fault {
    Fault::invalid(format!("not the address of a Redis server: {error}"))
}

/// The fault of a failed connection: nothing was sent yet.
pub(super) fn connecting(error: &RedisError) -> Fault {
    if error.is_io_error() {
        return Fault::unreachable(error);
    }
    Fault::unavailable(error)
}

/// The fault of an operation that may have been sent.
pub(super) fn of(error: &RedisError) -> Fault {
    if error.is_connection_refusal() {
        return Fault::unreachable(error);
    }
    match error.code() {
        // The server answered before the script ran.
        Some("LOADING" | "BUSY" | "MASTERDOWN" | "READONLY" | "OOM" | "NOREPLICAS") => {
            Fault::unavailable(error)
        }
        Some("NOAUTH" | "NOPERM" | "WRONGPASS") => Fault::invalid(error),
        _ => Fault::unknown_outcome(error),
    }
}
