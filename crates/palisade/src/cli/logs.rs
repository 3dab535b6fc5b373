//! Where log lines go: to standard error, as text or as JSON.

use std::io::{self, IsTerminal as _};

use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _, Registry};

use super::Cli;
use super::failure::Failure;
use super::output::colour_is_wanted;

/// A server logs what it does; other commands log only problems, unless asked for more.
///
/// # Errors
/// Spans are wanted, and cannot be sent.
pub(super) fn start(cli: &Cli) -> Result<(), Failure> {
    let level = match (cli.command.is_server(), cli.verbose) {
        (false, 0) => "error",
        (true, 0) | (false, 1) => "info",
        (true, 1) | (false, 2) => "debug",
        _ => "trace",
    };
    // Logs of libraries appear only if their target is named.
    // Consensus says by its errors what people are to know; its own lines are for those who work on it.
    let ours = || EnvFilter::new(format!("error,openraft=off,palisade={level}"));
    let filter = EnvFilter::try_from_env("PALISADE_LOG").unwrap_or_else(|_| ours());
    let logs = tracing_subscriber::fmt::layer()
        .with_ansi(io::stderr().is_terminal() && colour_is_wanted())
        .with_writer(io::stderr);
    let logs = if cli.json {
        logs.json().with_filter(filter).boxed()
    } else {
        logs.with_target(false).with_filter(filter).boxed()
    };
    let registry = Registry::default().with(logs);
    // This is the first and only subscriber of the process.
    let _ = registry.with(spans(cli)?).try_init();
    Ok(())
}

/// The layer that makes spans, if the command has a collector. It sees its events whatever the log leaves out.
fn spans<S>(cli: &Cli) -> Result<Option<impl tracing_subscriber::Layer<S>>, Failure>
where
    S: tracing::Subscriber + for<'a> tracing_subscriber::registry::LookupSpan<'a>,
{
    use crate::otlp::{Export, SpanLayer};
    use tracing_subscriber::filter::filter_fn;

    let Some((command, endpoint)) = cli.command.collector() else {
        return Ok(None);
    };
    let prepared = Export::new(endpoint, command);
    let (export, layer) =
        prepared.map_err(|error| Failure::usage(format!("--otlp {endpoint}: {error}")))?;
    crate::export::prepare_export(export);
    Ok(Some(layer.with_filter(filter_fn(SpanLayer::needs))))
}
