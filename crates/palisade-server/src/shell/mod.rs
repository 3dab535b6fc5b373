//! The HTTP shell: the common part of every port of this project, before and after the handlers.
//!
//! ```text
//!           ┌─ Shell::serve ─┐   ┌──────────── connection ────────────┐
//!  TCP ───► │ accept     tls │──►│ first byte ─► HTTP/1.1 or HTTP/2    │
//!  Unix ──► │ total and per  │   │   │ head time-out, idle time-out    │
//!           │ address, within│   │   │ host: Host, :authority, Origin  │──► Router
//!           │ the descriptors│   │   │ body: bytes, time, budget       │
//!           │ keep-alive     │   │   │ answer: time, budget            │
//!           └────────────────┘   │   └► Service::serve_own (a protocol │
//!                                │      that is not HTTP)              │
//!                                └────────────────────────────────────┘
//! ```
//!
//! The lock server, the store and the gateway are a [`Service`] each and bring a router; nothing here knows their
//! answers. A connection runs over any [`Transport`]: with [`Settings::tls`] that is TLS, and no handler sees a
//! difference.
//!
//! A Unix socket ([`Listen`]) has the same bounds, and lacks what is about a network: TLS, because nobody is between the two
//! processes; keep-alive and user time-out, because the kernel closes the connections of a process that is gone; and the
//! check of host names, because no browser can connect.

mod accept;
mod activity;
mod answer;
mod body;
mod budget;
mod connection;
mod descriptors;
mod headers;
mod hosts;
mod listen;
mod service;
mod settings;
mod slots;
mod socket;
mod tls;
mod trace;

pub use accept::Shell;
pub use body::{BodyError, read};
pub use headers::remove_hop_by_hop;
pub use hosts::Hosts;
pub use listen::{BindError, Listen, Listeners};
pub use service::{Caller, Exchange, Origin, Peer, Service, Transport, refusal};
pub use settings::{OutOfRange, Settings};
pub use socket::prepare;
pub use tls::keep_reloading;
pub(crate) use tls::{FAREWELL, farewell};
pub use trace::{SpanId, TraceId, TraceParent};

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
}

/// Why a shell cannot serve.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A setting is outside its range.
    #[error(transparent)]
    Settings(#[from] OutOfRange),
    /// The certificates cannot be used.
    #[error(transparent)]
    Tls(#[from] palisade_tls::Error),
    /// The limit of open files leaves no room for connections.
    #[error(
        "this process may open {limit} files: {open} are open and {reserve} are reserved for the log and other files, \
         so there is no room for connections; raise the limit (`ulimit -n 4096`, or LimitNOFILE= of the unit)"
    )]
    Descriptors {
        /// The limit in force, RLIMIT_NOFILE.
        limit: u64,
        /// Files open already.
        open: u64,
        /// Files kept free.
        reserve: u64,
    },
    /// The operating system did not report how many files may be open.
    #[error("cannot read the limit of open files: {0}")]
    System(#[from] std::io::Error),
}
