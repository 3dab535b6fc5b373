//! What Redis reports, by what the caller may do next.

use redis::RedisError;

use crate::fault::Fault;

/// An address that the library does not understand. Its text holds no secret.
pub(super) fn address(error: &RedisError) -> Fault {
    Fault::invalid(format!("no address of a Redis server: {error}"))
}

/// Nothing was sent yet.
pub(super) fn connecting(error: &RedisError) -> Fault {
    Fault::unavailable(error)
}

/// An operation was sent, perhaps.
pub(super) fn of(error: &RedisError) -> Fault {
    if error.is_connection_refusal() {
        return Fault::unavailable(error);
    }
    match error.code() {
        // Answered before the script ran.
        Some("LOADING" | "BUSY" | "MASTERDOWN" | "READONLY" | "OOM" | "NOREPLICAS") => {
            Fault::unavailable(error)
        }
        Some("NOAUTH" | "NOPERM" | "WRONGPASS") => Fault::invalid(error),
        _ => Fault::unknown_outcome(error),
    }
}
