//! `palisade bench`: load, measured from the client's side, with every token checked.
//!
//! ```text
//!   clients × in-flight loops ──► acquire ─► (hold) ─► release ──► histograms ─┐
//!                                    └► tokens ────────────────────────────────┴─► report
//! ```
//!
//! Closed loops: each waits for its answer before it asks again, so the latency printed is that of a
//! server kept busy by that many loops, not of one under a fixed rate.

mod bound;
mod load;
mod report;

use std::io::Write as _;
use std::time::Duration;

use clap::ValueEnum;
use palisade_client::{BearerToken, Client, Error, Options, TlsFiles};

use load::Loops;
use report::Report;

/// Which load to put on the server.
#[derive(Clone, Debug)]
pub(crate) struct Settings {
    /// The authority's URL.
    pub(crate) authority: String,
    /// The certificates for an `https://` URL.
    pub(crate) tls: TlsFiles,
    /// The token that shows who asks.
    pub(crate) token: Option<BearerToken>,
    /// The kind of load.
    pub(crate) mode: Mode,
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
pub(crate) enum Mode {
    /// Each loop acquires and releases a lock of its own.
    Own,
    /// All loops wait for one lock: measures the hand-off.
    Contended,
    /// Each loop renews a lease of its own.
    Renew,
    /// All loops wait for one of eight locks, and from half of the time on one more loop for all eight at once.
    Sets,
}

/// Runs the load and prints what it measured. Returns what is wrong with the authority, if anything: a token was out of order
/// or was issued twice, or a set was granted later than its bound.
///
/// # Errors
/// If the server cannot be reached, or an operation failed.
pub(crate) async fn run(settings: &Settings) -> Result<Option<&'static str>, Error> {
    let mut clients = Vec::with_capacity(settings.clients);
    let options = Options {
        tls: settings.tls.clone(),
        token: settings.token.clone(),
        ..Options::default()
    };
    for _ in 0..settings.clients {
        let client = Client::connect_with(&settings.authority, options.clone()).await?;
        clients.push(client);
    }
    let measured = Loops::new(settings, &clients)?.run().await?;
    let report = Report::new(settings, measured);
    let text = match settings.json {
        true => report.json().to_string(),
        false => report.text().trim_end().to_owned(),
    };
    // A failed write means that nobody is reading.
    let _ = writeln!(std::io::stdout(), "{text}");
    Ok(report.flaw())
}
