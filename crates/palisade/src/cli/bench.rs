//! The command line of `palisade bench`.

use std::time::Duration;

use clap::Args;
use palisade_core::Ttl;
use palisade_proto::Code;

use super::args::AuthorityArgs;
use super::failure::{FAILED, Failure};
use super::output::Out;
use super::{help, value};
use crate::bench;

/// `palisade bench`.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = help::BENCH_AFTER)]
pub(crate) struct BenchArgs {
    /// The kind of load.
    #[arg(long, value_name = "MODE", default_value = "own")]
    mode: bench::LoadKind,
    /// The number of connections, 1 – 10000.
    #[arg(short, long, value_name = "N", default_value = "64", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    clients: u32,
    /// Loops on each connection, 1 – 10000.
    #[arg(short, long, value_name = "N", default_value = "1", value_parser = clap::value_parser!(u32).range(1..=10_000))]
    in_flight: u32,
    /// How long to measure, longer than 0.
    #[arg(short, long, value_name = "DURATION", default_value = "10s", value_parser = value::duration)]
    duration: Duration,
    /// How long to run before measuring.
    #[arg(long, value_name = "DURATION", default_value = "1s", value_parser = value::duration)]
    warmup: Duration,
    /// How long a lock is held (all modes but renew).
    #[arg(long, value_name = "DURATION", default_value = "0", value_parser = value::duration)]
    hold: Duration,
    /// The leases' time to live: 100ms – 24h.
    #[arg(long, value_name = "DURATION", default_value = "30s", value_parser = value::ttl, allow_hyphen_values = true)]
    ttl: Ttl,
    #[command(flatten)]
    connection: AuthorityArgs,
}

pub(super) fn bench(args: &BenchArgs, out: Out) -> Result<(), Failure> {
    if args.duration.is_zero() {
        return Err(Failure::usage("--duration 0 measures nothing"));
    }
    let url = &args.connection.authority;
    let settings = bench::Settings {
        authority: url.clone(),
        tls: args.connection.tls(),
        token: args
            .connection
            .token()
            .map_err(|fault| Failure::usage(fault.to_string()))?,
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
        Ok(None) => Ok(()),
        Ok(Some(flaw)) => {
            let message = format!("{flaw}: this is a bug in Palisade");
            Err(Failure::new(FAILED, Code::Internal, message))
        }
        Err(error) => Err(Failure::of(&error, url)),
    }
}
