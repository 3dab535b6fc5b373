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
mod settings;

use std::io::Write as _;

use palisade_client::{Error, Options};

use load::Loops;
use report::Report;

pub(crate) use settings::{LoadKind, Settings};

/// Runs the load and prints the measurements. Returns the authority's fault, if there is one: a token was out of order or was
/// issued twice, or a set was granted later than its bound.
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
        let client = palisade_authorities::client(&settings.authority, options.clone()).await?;
        clients.push(client);
    }
    let measured = Loops::new(settings, &clients)?.run().await?;
    let report = Report::new(settings, measured);
    let text = if settings.json {
        report.json().to_string()
    } else {
        report.text().trim_end().to_owned()
    };
    // A failed write means that nobody is reading.
    let _ = writeln!(std::io::stdout(), "{text}");
    Ok(report.flaw())
}
