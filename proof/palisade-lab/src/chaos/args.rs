//! The command line of a run.

use std::path::PathBuf;
use std::time::Duration;

use clap::Args;

use super::arm::Arm;
use super::kind::LockKind;
use super::nemesis::fault::Nemesis;
use super::peers::authority::Authority;

/// Runs real servers and workers under faults and reports the losses of each kind of fence
#[derive(Debug, Args)]
#[command(after_help = EXITS)]
pub struct Chaos {
    /// Which faults; may be repeated [default: all, one after the other]
    #[arg(long, value_enum, value_name = "NAME")]
    pub(super) nemesis: Vec<Nemesis>,
    /// The authority that grants the lock
    #[arg(long, value_enum, value_name = "NAME", default_value = "palisade")]
    pub(super) authority: Authority,
    /// Which fences, side by side; may be repeated [default: all]
    #[arg(long, value_enum, value_name = "NAME")]
    pub(super) arm: Vec<Arm>,
    /// Which kinds of locks, one lane after the other; may be repeated [default: all that the authority has]
    #[arg(long, value_enum, value_name = "NAME")]
    pub(super) kind: Vec<LockKind>,
    /// Run until each arm has this many acknowledged adds, under each nemesis, and each kind of lock a twentieth of them
    #[arg(long, env = "PALISADE_CHAOS_ADDS", default_value_t = 300)]
    pub(super) adds: u64,
    /// After how many seconds a nemesis that has not finished is void
    #[arg(long, value_name = "SECONDS", default_value_t = 900)]
    pub(super) limit: u64,
    /// Run the authority as a cluster of this many nodes, 3 ..= 5, with relays between them [default: one server]
    #[arg(long, value_parser = clap::value_parser!(u64).range(3..=5))]
    pub(super) nodes: Option<u64>,
    /// With --nodes: at least so many faults of the cluster, each healed, in each arm [default: one of each kind]
    #[arg(long, requires = "nodes", value_name = "N")]
    pub(super) faults: Option<u64>,
    /// How long a lease lasts without renewal, in milliseconds: 100 ..= 60000
    #[arg(long, value_name = "MS", value_parser = clap::value_parser!(u64).range(100..=60_000))]
    pub(super) ttl: Option<u64>,
    /// The seed of all random choices; printed [default: from the clock]
    #[arg(long)]
    pub(super) seed: Option<u64>,
    /// Teams in each world: 1 ..= 64
    #[arg(long, default_value_t = 8, value_parser = clap::value_parser!(u64).range(1..=64))]
    pub(super) teams: u64,
    /// Workers in each team, one process each: 1 ..= 16
    #[arg(long, default_value_t = 3, value_parser = clap::value_parser!(u64).range(1..=16))]
    pub(super) workers: u64,
    /// Lanes, each a lock with its own set, that the workers of a team contend for: 1 ..= 256
    #[arg(long, default_value_t = 4, value_parser = clap::value_parser!(u64).range(1..=256))]
    pub(super) lanes: u64,
    /// The folder for the report
    #[arg(long, value_name = "DIR", default_value = "./palisade-chaos")]
    pub(super) report: PathBuf,
    /// Also write the observations of locks and resources, as histories for another checker [default: no]
    #[arg(long, value_name = "DIR")]
    pub(super) record: Option<PathBuf>,
    /// The program under test [default: the one beside this program]
    #[arg(long, value_name = "FILE")]
    pub(super) palisade: Option<PathBuf>,
}

const EXITS: &str = "Exit status: 0 nothing was lost behind the claim fence, and the control arms lost as much as they \
    must; 1 something was lost, a token was issued twice, or a cluster broke a rule; 2 usage; 3 void: the run proves nothing; 4 the run failed.";

impl Chaos {
    /// The kinds of locks, each once.
    pub(super) fn kinds(&self) -> Vec<LockKind> {
        let all = match self.kind.as_slice() {
            [] if self.authority == Authority::Palisade => LockKind::ALL.as_slice(),
            [] => &[LockKind::Exclusive],
            asked => asked,
        };
        let all: std::collections::BTreeSet<LockKind> = all.iter().copied().collect();
        all.into_iter().collect()
    }

    pub(super) fn ttl(&self) -> Duration {
        Duration::from_millis(self.ttl.unwrap_or(self.authority.ttl_ms()))
    }
}
