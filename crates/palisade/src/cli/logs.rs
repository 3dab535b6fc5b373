//! Where log lines go: to standard error, as text or as JSON.

use std::io::{self, IsTerminal as _};

use tracing_subscriber::layer::SubscriberExt as _;
use tracing_subscriber::util::SubscriberInitExt as _;
use tracing_subscriber::{EnvFilter, Layer as _, Registry};

use super::Cli;
use super::failure::Failure;
use super::output::colour_is_wanted;
use super::settings;

/// A server logs its actions; other commands log only problems, unless asked for more.
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
    // Logs of libraries appear only if their target is named. Its errors tell people all they need of the consensus; its
    // own log lines are for its developers.
    let ours = || EnvFilter::new(format!("error,openraft=off,palisade={level}"));
    let (filter, mut warnings) = match settings::environment("PALISADE_LOG").map(wanted) {
        None => (ours(), Vec::new()),
        Some(Ok(filter)) => (filter, Vec::new()),
        Some(Err(why)) => (ours(), vec![why]),
    };
    let logs = tracing_subscriber::fmt::layer()
        .with_ansi(io::stderr().is_terminal() && colour_is_wanted())
        .with_writer(io::stderr);
    let logs = if cli.json {
        logs.json().with_filter(filter).boxed()
    } else {
        logs.with_target(false).with_filter(filter).boxed()
    };
    let registry = Registry::default().with(logs);
    let spans = spans(cli, &mut warnings)?;
    // This is the first and only subscriber of the process.
    let _ = registry.with(spans).try_init();
    for why in warnings {
        tracing::warn!("{why}");
    }
    Ok(())
}

/// Parses the filter in PALISADE_LOG, or describes its mistake.
fn wanted(text: std::ffi::OsString) -> Result<EnvFilter, String> {
    let text = text.to_string_lossy();
    EnvFilter::try_new(&text).map_err(|error| {
        format!(
            "PALISADE_LOG is ignored: {text:?} is not a log filter ({error}); write for example info, \
             or error,palisade=debug"
        )
    })
}

/// The layer that makes spans, if the command has a collector. It sees its events whatever the log leaves out. A collector
/// that only a variable of other programs names does not keep a server from its start.
fn spans<S>(
    cli: &Cli,
    warnings: &mut Vec<String>,
) -> Result<Option<impl tracing_subscriber::Layer<S> + use<S>>, Failure>
where
    S: tracing::Subscriber + for<'a> tracing_subscriber::registry::LookupSpan<'a>,
{
    use crate::otlp::{Export, SpanLayer};
    use tracing_subscriber::filter::filter_fn;

    let Some((command, endpoint)) = cli.command.collector() else {
        let is_server = cli.command.is_server();
        let why = settings::passed_over(&settings::environment).filter(|_| is_server);
        warnings.extend(why.map(|why| format!("no spans are sent: {why}")));
        return Ok(None);
    };
    let (export, layer) = match Export::new(endpoint, command) {
        Ok(prepared) => prepared,
        Err(error) if settings::is_usual(endpoint, &settings::environment) => {
            warnings.push(format!("no spans are sent to {endpoint}: {error}"));
            return Ok(None);
        }
        Err(error) => return Err(Failure::usage(format!("--otlp {endpoint}: {error}"))),
    };
    crate::export::prepare_export(export);
    Ok(Some(layer.with_filter(filter_fn(SpanLayer::needs))))
}
