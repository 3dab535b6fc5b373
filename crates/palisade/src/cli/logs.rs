//! Where log lines go: to standard error, as text or as JSON.

use std::io::{self, IsTerminal as _};

use tracing_subscriber::EnvFilter;

use super::Cli;
use super::output::colour_is_wanted;

/// A server logs what it does; other commands only what went wrong, unless asked.
pub(super) fn start(cli: &Cli) {
    let level = match (cli.command.is_server(), cli.verbose) {
        (false, 0) => "error",
        (true, 0) | (false, 1) => "info",
        (true, 1) | (false, 2) => "debug",
        _ => "trace",
    };
    // What libraries have to say helps only whoever asks for it by name.
    let ours = || EnvFilter::new(format!("error,palisade={level}"));
    let filter = EnvFilter::try_from_env("PALISADE_LOG").unwrap_or_else(|_| ours());
    let logs = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_ansi(io::stderr().is_terminal() && colour_is_wanted())
        .with_writer(io::stderr);
    // Only the first subscriber of a process counts, and this is it.
    let _ = if cli.json {
        logs.json().try_init()
    } else {
        logs.with_target(false).try_init()
    };
}
