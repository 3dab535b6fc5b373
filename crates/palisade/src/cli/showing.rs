//! `palisade demo` and `palisade bench`: from the command line to what they show.

use std::path::PathBuf;
use std::time::Duration;

use clap::{Args, ValueHint};
use palisade_core::Ttl;
use palisade_proto::Code;

use super::args::Connection;
use super::failure::{FAILED, Failure};
use super::output::Out;
use super::{help, value};
use crate::{bench, demo};

/// `palisade demo`.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = help::DEMO_AFTER)]
pub(crate) struct DemoArgs {
    /// Play only this act; may be given again [default: all three].
    #[arg(long = "act", value_name = "ACT")]
    acts: Vec<demo::ActName>,
    /// How long the leases last without renewal: 200ms – 60s.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = value::ttl, allow_hyphen_values = true)]
    ttl: Ttl,
    /// Where the pictures go; made if it is not there.
    #[arg(long, value_name = "DIR", default_value = ".", value_hint = ValueHint::DirPath)]
    out: PathBuf,
    /// Leave the data and the logs of all processes where they are.
    #[arg(long)]
    keep: bool,
}

/// One of the demo's own workers.
#[derive(Args, Clone, Debug)]
pub(crate) struct WorkerArgs {
    part: String,
}

/// `palisade bench`.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = help::BENCH_AFTER)]
pub(crate) struct BenchArgs {
    /// What to do to the server.
    #[arg(long, value_name = "MODE", default_value = "own")]
    mode: bench::Mode,
    /// Connections.
    #[arg(short, long, value_name = "N", default_value = "64", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    clients: u32,
    /// Loops on each connection.
    #[arg(short, long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    in_flight: u32,
    /// How long to measure.
    #[arg(short, long, value_name = "DURATION", default_value = "10s", value_parser = value::duration)]
    duration: Duration,
    /// How long to run before measuring.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = value::duration)]
    warmup: Duration,
    /// How long a lock is held (contended mode).
    #[arg(long, value_name = "DURATION", default_value = "0", value_parser = value::duration)]
    hold: Duration,
    /// The leases' time to live.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = value::ttl, allow_hyphen_values = true)]
    ttl: Ttl,
    #[command(flatten)]
    connection: Connection,
}

pub(super) fn demo(args: &DemoArgs, out: Out) -> Result<(), Failure> {
    let settings = demo::Settings {
        acts: args.acts.clone(),
        ttl: args.ttl.span().to_duration(),
        out: args.out.clone(),
        keep: args.keep,
        json: out.json,
    };
    demo::run(&settings).map_err(|error| match error {
        demo::Error::Ttl(_) => Failure::usage(error.to_string()),
        _ => Failure::local(error.to_string()),
    })
}

pub(super) fn worker(args: &WorkerArgs) -> Result<(), Failure> {
    demo::work(&args.part).map_err(|error| Failure::local(error.to_string()))
}

pub(super) fn bench(args: &BenchArgs, out: Out) -> Result<(), Failure> {
    if args.duration.is_zero() {
        return Err(Failure::usage("--duration 0 measures nothing"));
    }
    let url = &args.connection.authority;
    let settings = bench::Settings {
        authority: url.clone(),
        mode: args.mode,
        clients: args.clients as usize,
        in_flight: args.in_flight as usize,
        duration: args.duration,
        warmup: args.warmup,
        hold: args.hold,
        ttl: args.ttl.span().to_duration(),
        json: out.json,
    };
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    match runtime.block_on(bench::run(&settings)) {
        Ok(true) => Ok(()),
        Ok(false) => {
            let message = "tokens came twice or out of order: this is a bug in Palisade";
            Err(Failure::new(FAILED, Code::Internal.name(), message))
        }
        Err(error) => Err(Failure::of(&error, url)),
    }
}
