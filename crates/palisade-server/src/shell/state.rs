//! The phase of a server's life, and the counters of its shell.

use std::sync::atomic::AtomicU64;

/// The phase of a server's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// It accepts connections and requests.
    Serving,
    /// It accepts no new connection and finishes requests in flight.
    Draining,
    /// The drain time-out has passed: every connection is dropped.
    Cutting,
}

/// Counters of a shell.
#[derive(Debug, Default)]
pub struct Meters {
    /// Connections accepted and served.
    pub accepted: AtomicU64,
    /// Connections closed at once because too many were open.
    pub refused: AtomicU64,
    /// Connections open now.
    pub open: AtomicU64,
    /// HTTP requests.
    pub requests: AtomicU64,
    /// TLS handshakes that failed or took too long.
    pub handshakes_failed: AtomicU64,
    /// When the port's certificate ends, in seconds since 1970 by the wall clock; 0 for a port without TLS.
    pub certificate_expires: AtomicU64,
    /// When the CA of the port's clients ends, likewise; 0 without one.
    pub client_ca_expires: AtomicU64,
    /// When the list of revoked certificates is due to be replaced, likewise; 0 without one.
    pub client_crl_expires: AtomicU64,
}
