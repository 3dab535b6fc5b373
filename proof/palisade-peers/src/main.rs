//! Palisade compared with other systems: the same work, on the same machine, in one run.
//!
//! ```text
//!   testbed ─► real servers ─┬─► bare lanes     each system's own client, its recipe by hand
//!                            └─► adapter lanes  the same system behind palisade-client
//!                                      │
//!                   rounds, in turns ──┴─► rates, hand-offs ─► a table of ratios
//! ```
//!
//! A lane is one client with one lock. Every lane issues tokens and checks them.

mod adapters;
mod bare;
mod echo;
mod failover;
mod lane;
mod machine;
mod measure;
mod members;
mod palisade;
mod peers;
mod strategies;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::{Parser, Subcommand};

/// Palisade compared with other systems, measured in one run. Starts Debian's servers itself.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// The server of the measurement with that name.
    #[command(hide = true)]
    Echo { port: u16, data: PathBuf },
    /// The cost of an authority behind palisade-client, compared with a bare client of the same system.
    Adapters {
        /// Lanes, with one operation at a time each.
        #[arg(long, default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1_024))]
        lanes: u32,
        /// Rounds; each measures everything once, and the medians are printed.
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=100))]
        rounds: u32,
        /// Seconds of each rate measurement.
        #[arg(long, default_value_t = 2, value_parser = clap::value_parser!(u64).range(1..=600))]
        seconds: u64,
        /// Hand-overs of one contended lock in each measurement.
        #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(10..=1_000_000))]
        hand_overs: u32,
        /// Measure only this system; may be repeated.
        #[arg(long, value_enum)]
        only: Vec<adapters::System>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// The same workloads on Palisade and on every peer, in one run; writes a report.
    Peers {
        /// Rounds; each measures everything once, in shuffled order.
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1_000))]
        rounds: u32,
        /// Milliseconds of each measurement.
        #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u64).range(20..=600_000))]
        millis: u64,
        /// Milliseconds of warm-up before it.
        #[arg(long, default_value_t = 300, value_parser = clap::value_parser!(u64).range(0..=60_000))]
        warm_up: u64,
        /// Only systems with this in their id; may be repeated.
        #[arg(long, value_name = "PART", value_delimiter = ',')]
        systems: Vec<String>,
        /// Only workloads with this in their id; may be repeated.
        #[arg(long, value_name = "PART", value_delimiter = ',')]
        workloads: Vec<String>,
        /// Also hold many locks: memory, renewals, restart.
        #[arg(long)]
        million: bool,
        /// The number of locks for --million.
        #[arg(long, default_value_t = 1_000_000, value_parser = clap::value_parser!(u32).range(100..=10_000_000))]
        locks: u32,
        /// Hold many locks, without measuring rates.
        #[arg(long, requires = "million")]
        no_rates: bool,
        /// The folder for the servers' data, all on one disk [default: target/peers/data].
        #[arg(long, value_name = "FOLDER")]
        data: Option<PathBuf>,
        /// The folder for peers.md, peers.json and peers.svg [default: target/peers].
        #[arg(long, value_name = "FOLDER")]
        report: Option<PathBuf>,
        /// Print the JSON instead of the page.
        #[arg(long)]
        json: bool,
    },
    /// A cluster's change of members as its callers see it: a node is added, a follower and the leader are removed, under
    /// load.
    Members {
        /// Loops that acquire and release a lock of their own, on four connections.
        #[arg(long, default_value_t = 32, value_parser = clap::value_parser!(u32).range(1..=4_096))]
        loops: u32,
        /// Seconds before and after each change, and of each change at least.
        #[arg(long, default_value_t = 5, value_parser = clap::value_parser!(u64).range(1..=600))]
        seconds: u64,
        /// Milliseconds for which an operation is repeated.
        #[arg(long, default_value_t = 5_000, value_parser = clap::value_parser!(u64).range(0..=600_000))]
        patience: u64,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// How long a cluster grants nothing when its leader is killed.
    Failover {
        /// How often a leader is killed.
        #[arg(long, default_value_t = 20, value_parser = clap::value_parser!(u32).range(1..=10_000))]
        times: u32,
        /// Locks that are held meanwhile.
        #[arg(long, default_value_t = 0, value_parser = clap::value_parser!(u32).range(0..=10_000_000))]
        held: u32,
        /// The nodes' `--timers`.
        #[arg(long, default_value = "region", value_parser = ["rack", "region", "multi-region"])]
        timers: String,
        /// Seconds for which each kill waits until the machine is almost idle: 0 to measure beside other work.
        #[arg(long, default_value_t = 60, value_parser = clap::value_parser!(u64).range(0..=600))]
        rest: u64,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
    /// The same job with each strategy: no fence, textbook, claim, several locks, none. Then contention: many
    /// workers on one row.
    Strategies {
        /// Workers.
        #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u32).range(2..=64))]
        workers: u32,
        /// Additions of each worker.
        #[arg(long, default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..=100_000))]
        adds: u32,
        /// Workers that contend for one row.
        #[arg(long, default_value_t = 1_000, value_parser = clap::value_parser!(u32).range(2..=1_024))]
        crowd: u32,
        /// Also draw the table as this SVG file.
        #[arg(long)]
        picture: Option<PathBuf>,
        /// Print JSON.
        #[arg(long)]
        json: bool,
    },
}

fn main() -> ExitCode {
    let Arguments { command } = Arguments::parse();
    let done = match command {
        Command::Echo { port, data } => echo::serve(port, &data),
        Command::Adapters {
            lanes,
            rounds,
            seconds,
            hand_overs,
            only,
            json,
        } => adapters::run(&adapters::Plan {
            lanes,
            rounds,
            duration: Duration::from_secs(seconds),
            hand_overs,
            only,
            json,
        }),
        Command::Peers {
            rounds,
            millis,
            warm_up,
            systems,
            workloads,
            million,
            locks,
            no_rates,
            data,
            report,
            json,
        } => built_in().and_then(|target| {
            peers::run(&peers::Plan {
                rounds,
                window: peers::Window {
                    warm_up: Duration::from_millis(warm_up),
                    measure: Duration::from_millis(millis),
                },
                systems,
                workloads,
                held: million.then_some(locks as usize),
                rates: !no_rates,
                data: data.unwrap_or_else(|| target.join("peers/data")),
                report: report.unwrap_or_else(|| target.join("peers")),
                json,
            })
        }),
        Command::Members {
            loops,
            seconds,
            patience,
            json,
        } => members::run(&members::Plan {
            loops,
            phase: Duration::from_secs(seconds),
            patience: Duration::from_millis(patience),
            json,
        }),
        Command::Failover {
            times,
            held,
            timers,
            rest,
            json,
        } => failover::run(&failover::Plan {
            times,
            held,
            timers,
            rest: Duration::from_secs(rest),
            json,
        }),
        Command::Strategies {
            workers,
            adds,
            crowd,
            picture,
            json,
        } => strategies::run(&strategies::Plan {
            workers,
            adds,
            crowd,
            json,
            picture,
        }),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("palisade-peers: {error}");
            ExitCode::FAILURE
        }
    }
}

/// The target folder of the build.
fn built_in() -> Result<PathBuf, lane::Error> {
    let program = std::env::current_exe()?;
    let target = program.ancestors().nth(2).ok_or("no target folder")?;
    Ok(target.to_owned())
}
