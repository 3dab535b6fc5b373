//! Where log lines go: to standard error, as text or as JSON.

use std::io::{self, IsTerminal as _};

use tracing_subscriber::EnvFilter;

use super::Cli;
use super::output::colour_is_wanted;

/// A server logs what it does; other commands log only problems, unless asked for more.
pub(super) fn start(cli: &Cli) {
    let level = match (cli.command.is_server(), cli.verbose) {
        (false, 0) => "error",
        (true, 0) | (false, 1) => "info",
        (true, 1) | (false, 2) => "debug",
        _ => "trace",
    };
    // Logs of libraries appear only if their target is named.
    let ours = || EnvFilter::new(format!("error,palisade={level}"));
    let filter = EnvFilter::try_from_env("PALISADE_LOG").unwrap_or_else(|_| ours());
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(io::stderr().is_terminal() && colour_is_wanted())
        .with_writer(io::stderr);
    // This is the first and only subscriber of the process.
    let _ = if cli.json {
        logs.json().try_init()
    } else {
        logs.with_target(false).try_init()
    };
}
