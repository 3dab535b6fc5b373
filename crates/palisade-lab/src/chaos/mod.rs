//! Real processes under real faults: release binaries, signals, sockets and disks.
//!
//! ```text
//!            seed ─► nemesis ──┬── SIGSTOP · SIGKILL · network · clocks · disks
//!                              ▼
//!   world "no fence"         world "textbook fence"      world "claim fence"      one schedule
//!   authority · store        authority · store           authority · store        a world each
//!   workers: lock, read,     …                           workers: lock, claim,
//!   think, write the set                                 read, think, write
//!   locks of every kind: exclusive · readers and writers · permits · several at once
//!                              │ every step, one line each
//!                              │ one line for each step
//!        event log ─► verdict: acknowledged − final set = lost; rejects; repeated tokens
//!                              ▼
//!                     chaos.json · chaos.html
//! ```
//!
//! A run proves something only if the control arms lose data: if holders were paused and the textbook fence loses less
//! than 5 % of its acknowledged adds, the run is void.

mod arm;
mod event;
mod event_log;
pub(crate) mod fixture;
mod kind;
mod nemesis;
mod nodes;
mod peers;
pub(crate) mod process;
mod report;
mod run;
pub(crate) mod server;
mod stop;
mod verdict;
mod worker;
mod world;

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Duration;

use clap::Args;

use arm::Arm;
pub use fixture::shim::wall_seconds;
use kind::LockKind;
use nemesis::Nemesis;
use peers::Authority;
pub use worker::work;

/// The fraction that the textbook fence must lose under the holder nemesis.
const VOID_BELOW: f64 = 0.05;

/// Runs real servers and workers under faults and reports what each kind of fence lost
#[derive(Debug, Args)]
#[command(after_help = EXITS)]
pub struct Chaos {
    /// Which faults; may be repeated [default: all, one after the other]
    #[arg(long, value_enum, value_name = "NAME")]
    nemesis: Vec<Nemesis>,
    /// Who grants the lock
    #[arg(long, value_enum, value_name = "NAME", default_value = "palisade")]
    authority: Authority,
    /// Which fences, side by side; may be repeated [default: all]
    #[arg(long, value_enum, value_name = "NAME")]
    arm: Vec<Arm>,
    /// Which kinds of locks, one lane after the other; may be repeated [default: all that the authority has]
    #[arg(long, value_enum, value_name = "NAME")]
    kind: Vec<LockKind>,
    /// Run until each arm has this many acknowledged adds, under each nemesis, and each kind of lock a twentieth of them
    #[arg(long, env = "PALISADE_CHAOS_ADDS", default_value_t = 300)]
    adds: u64,
    /// After how many seconds a nemesis that has not finished is void
    #[arg(long, value_name = "SECONDS", default_value_t = 900)]
    limit: u64,
    /// Run the authority as a cluster of this many nodes, 3 ..= 5, with relays between them [default: one server]
    #[arg(long, value_parser = clap::value_parser!(u64).range(3..=5))]
    nodes: Option<u64>,
    /// With --nodes: at least so many faults of the cluster, each healed, in each arm [default: one of each kind]
    #[arg(long, requires = "nodes", value_name = "N")]
    faults: Option<u64>,
    /// How long a lease lasts without renewal, in milliseconds: 100 ..= 60000
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(100..=60_000))]
    ttl: Option<u64>,
    /// The seed of all random choices; printed [default: from the clock]
    #[arg(long)]
    seed: Option<u64>,
    /// Teams in each world: 1 ..= 64
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=64))]
    teams: u64,
    /// Workers in each team, one process each: 1 ..= 16
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=16))]
    workers: u64,
    /// Lanes, each a lock with its own set, that the workers of a team contend for: 1 ..= 256
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=256))]
    lanes: u64,
    /// The folder for the report
    #[arg(long, value_name = "DIR", default_value = "./palisade-chaos")]
    report: PathBuf,
    /// The program under test [default: the one beside this program]
    #[arg(long, value_name = "FILE")]
    palisade: Option<PathBuf>,
}

const EXITS: &str = "Exit status: 0 nothing was lost behind the claim fence, and the control arms lost as much as they \
    must; 1 something was lost, a token was issued twice, or a cluster broke a rule; 2 usage; 3 void: the run proves nothing; 4 the run failed.";

impl Chaos {
    /// Runs to the end and writes the report. The help lists the exit statuses.
    #[must_use]
    pub fn run(&self) -> ExitCode {
        let exit = run::all(self).and_then(|report| {
            report.write(&self.report)?;
            println!("{}", report.summary());
            Ok(report.exit())
        });
        exit.unwrap_or_else(|why| {
            eprintln!("palisade-lab: {why}");
            ExitCode::from(4)
        })
    }

    /// The kinds of locks, each once.
    fn kinds(&self) -> Vec<LockKind> {
        let all = match self.kind.as_slice() {
            [] if self.authority == Authority::Palisade => LockKind::ALL.as_slice(),
            [] => &[LockKind::Exclusive],
            asked => asked,
        };
        let all: std::collections::BTreeSet<LockKind> = all.iter().copied().collect();
        all.into_iter().collect()
    }

    fn ttl(&self) -> Duration {
        Duration::from_millis(self.ttl.unwrap_or(self.authority.ttl_ms()))
    }
}

/// The program under test: the given one, or the one beside this program. `flag` selects another.
pub(crate) fn program(named: Option<&PathBuf>, flag: &str) -> Result<PathBuf, String> {
    let beside = || {
        let own = std::env::current_exe().map_err(|error| error.to_string())?;
        Ok::<_, String>(own.with_file_name("palisade"))
    };
    let program = named.cloned().map_or_else(beside, Ok)?;
    if program.exists() {
        return Ok(program);
    }
    let program = program.display();
    Err(format!(
        "{program} is missing: build it with cargo build --release -p palisade, or select another with {flag}"
    ))
}
