//! The command line of `palisade demo`.

use std::path::PathBuf;

use clap::{Args, ValueHint};
use palisade_core::Ttl;

use super::failure::Failure;
use super::output::Out;
use super::{help, value};
use crate::demo;

/// `palisade demo`.
#[derive(Args, Clone, Debug)]
#[command(after_long_help = help::DEMO_AFTER)]
pub(crate) struct DemoArgs {
    /// Run only this act; may be repeated [default: all three].
    #[arg(long = "act", value_name = "ACT")]
    acts: Vec<demo::ActName>,
    /// How long the leases last without renewal: 200ms – 60s.
    #[arg(long, value_name = "DURATION", default_value = "2s", value_parser = value::ttl, allow_hyphen_values = true)]
    ttl: Ttl,
    /// The directory for the pictures; created if it does not exist.
    #[arg(long, value_name = "DIR", default_value = ".", value_hint = ValueHint::DirPath)]
    out: PathBuf,
    /// Keep the data and the logs of all processes.
    #[arg(long)]
    keep: bool,
}

/// A worker process that the demo starts.
#[derive(Args, Clone, Debug)]
pub(crate) struct WorkerArgs {
    part: String,
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
