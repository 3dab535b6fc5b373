//! Which load to put on a server.

use std::time::Duration;

use clap::ValueEnum;
use palisade_client::{BearerToken, TlsFiles};

/// Which load to put on the server.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The authority's URL.
    pub(crate) authority: String,
    /// The certificates for an `https://` URL.
    pub(crate) tls: TlsFiles,
    /// The token that identifies the caller.
    pub(crate) token: Option<BearerToken>,
    /// The kind of load.
    pub(crate) mode: LoadKind,
    /// The number of connections.
    pub(crate) clients: usize,
    /// Loops on each connection.
    pub(crate) in_flight: usize,
    /// How long to measure.
    pub(crate) duration: Duration,
    /// How long to run before measuring.
    pub(crate) warmup: Duration,
    /// How long a lock is held.
    pub(crate) hold: Duration,
    /// The leases' time to live.
    pub(crate) ttl: Duration,
    /// Print one line of JSON.
    pub(crate) json: bool,
}

/// The kinds of load.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum LoadKind {
    /// Each loop acquires and releases a lock of its own.
    Own,
    /// All loops wait for one lock: measures the hand-off.
    Contended,
    /// Each loop renews a lease of its own.
    Renew,
    /// All loops wait for one of eight locks, and from half of the time on one more loop for all eight at once.
    Sets,
}
