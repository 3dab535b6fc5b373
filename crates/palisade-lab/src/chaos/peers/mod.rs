//! The authorities: Palisade, other systems, and ones that are broken on purpose.

mod broken;
mod foreign;
pub(crate) mod naive;
mod redlock;

use std::path::Path;
use std::sync::Arc;

use clap::ValueEnum;
use palisade_testbed::{Etcd, Postgres, Redis, ZooKeeper};
use serde::Serialize;

use super::arm::Arm;
use super::kind::LockKind;
use super::nemesis::Nemesis;
use super::nodes::Cluster;
use super::report::version;
use super::server::Victim;
use super::verdict::ArmReport;
use super::world::Plan;
use super::{Chaos, VOID_BELOW};
use broken::Broken;
use foreign::Foreign;
use redlock::Primaries;

/// Who grants the lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, ValueEnum)]
#[serde(rename_all = "kebab-case")]
pub(crate) enum Authority {
    /// `palisade serve`
    Palisade,
    /// etcd, through its adapter: the token is a revision
    Etcd,
    /// ZooKeeper, through its adapter: the token is a zxid
    Zookeeper,
    /// A table in PostgreSQL, through its adapter
    Postgres,
    /// One Redis, naively: INCR for a token, then SET NX
    RedisIncr,
    /// Redlock on five Redis primaries: no token at all
    Redlock,
    /// Broken on purpose: grants every request at once, with rising tokens
    Broken,
    /// Broken on purpose: like `broken`, but one token repeats
    Repeating,
    /// Broken on purpose: single servers, `--nodes` of them, that pass for one cluster
    Split,
}

impl Authority {
    /// Starts it, unless each world starts its own.
    ///
    /// # Errors
    /// What is not installed or does not start.
    pub(super) fn start(
        self,
        chaos: &Chaos,
        plan: &Plan,
        folder: &Path,
    ) -> Result<Option<Arc<dyn Victim>>, String> {
        let cluster = |nodes: u64, joined| {
            Cluster::start(&plan.program, folder, nodes as usize, plan.seed, joined)
        };
        let victim: Arc<dyn Victim> = match (self, chaos.nodes) {
            (Authority::Palisade, Some(nodes)) => Arc::new(cluster(nodes, true)?),
            (Authority::Split, nodes) => Arc::new(cluster(nodes.unwrap_or(3), false)?),
            (other, _) => return other.single(folder),
        };
        Ok(Some(victim))
    }

    fn single(self, folder: &Path) -> Result<Option<Arc<dyn Victim>>, String> {
        let victim: Arc<dyn Victim> = match self {
            Authority::Palisade | Authority::Split => return Ok(None),
            Authority::Etcd => Arc::new(Foreign::start(|| Etcd::start(&[]), Etcd::url)?),
            Authority::Zookeeper => {
                // Sessions of 1 s and more.
                Arc::new(Foreign::start(|| ZooKeeper::start(&[]), ZooKeeper::url)?)
            }
            Authority::Postgres => {
                Arc::new(Foreign::start(|| Postgres::start(&[]), Postgres::url)?)
            }
            Authority::RedisIncr => Arc::new(Foreign::start(
                || Redis::start(&[]),
                |redis| format!("naive+{}", redis.url()),
            )?),
            Authority::Redlock => Arc::new(Primaries::start(folder)?),
            Authority::Broken => Arc::new(Broken::start(false)?),
            Authority::Repeating => Arc::new(Broken::start(true)?),
        };
        Ok(Some(victim))
    }

    /// Its version.
    pub(super) fn version(self, program: &Path) -> String {
        let of = |program: &str, flag: &str| version(Path::new(program), flag);
        match self {
            Authority::Palisade | Authority::Split => version(program, "--version"),
            Authority::Etcd => of("etcd", "--version"),
            Authority::Zookeeper => {
                let query = ["-W", "-f", "ZooKeeper ${Version}", "zookeeper"];
                foreign::says("dpkg-query", &query)
            }
            Authority::Postgres => {
                of("postgres", "--version").replace("unknown", "PostgreSQL, as installed")
            }
            Authority::RedisIncr | Authority::Redlock => of("redis-server", "--version"),
            Authority::Broken | Authority::Repeating => "broken on purpose".to_owned(),
        }
    }

    /// The default lease for this authority.
    pub(super) fn ttl_ms(self) -> u64 {
        match self {
            // The shortest lease that etcd grants.
            Authority::Etcd | Authority::Zookeeper => 2_000,
            Authority::Redlock => 1_000,
            _ => 300,
        }
    }

    /// The requested arms that make sense with it.
    ///
    /// # Errors
    /// The arms that do not.
    pub(super) fn arms(self, asked: &[Arm]) -> Result<Vec<Arm>, String> {
        match (self, asked) {
            (Authority::Redlock, [] | [Arm::Unfenced]) => Ok(vec![Arm::Unfenced]),
            (Authority::Redlock, _) => {
                Err("Redlock has no fencing token, so it works with --arm unfenced only".to_owned())
            }
            (_, []) => Ok(Arm::ALL.to_vec()),
            (_, asked) => Ok(asked.to_vec()),
        }
    }

    /// The nemeses for it.
    ///
    /// # Errors
    /// The requested nemeses that do not apply to it.
    pub(super) fn nemeses(self, asked: &[Nemesis], cluster: bool) -> Result<Vec<Nemesis>, String> {
        let own: Vec<Nemesis> = match self {
            Authority::Palisade => Nemesis::value_variants()
                .iter()
                .copied()
                .filter(|nemesis| match cluster {
                    true => nemesis.fits_cluster(),
                    false => *nemesis != Nemesis::OneClock && !nemesis.needs_cluster(),
                })
                .collect(),
            Authority::Etcd | Authority::Zookeeper | Authority::Postgres => {
                vec![Nemesis::Clients, Nemesis::Holder]
            }
            Authority::RedisIncr => vec![Nemesis::Clients, Nemesis::Holder],
            Authority::Redlock => vec![Nemesis::None, Nemesis::OneClock],
            Authority::Broken | Authority::Repeating | Authority::Split => vec![Nemesis::None],
        };
        if let Some(wrong) = asked.iter().find(|nemesis| !own.contains(nemesis)) {
            let own: Vec<String> = own.iter().map(|nemesis| nemesis.word()).collect();
            let (wrong, own) = (wrong.word(), own.join(", "));
            return Err(format!(
                "--nemesis {wrong} does not apply to this authority; it supports {own}"
            ));
        }
        Ok(match asked {
            [] => own,
            asked => asked.to_vec(),
        })
    }

    /// Whether it has these kinds of locks.
    ///
    /// # Errors
    /// The kind that it lacks.
    pub(super) fn kinds(self, asked: &[LockKind]) -> Result<(), String> {
        match asked.iter().find(|kind| **kind != LockKind::Exclusive) {
            Some(kind) if self != Authority::Palisade => Err(format!(
                "--kind {} does not apply to this authority; it has exclusive locks",
                kind.word()
            )),
            _ => Ok(()),
        }
    }

    /// Whether, without failures, it never makes a fence reject the lock's holder.
    pub(super) fn is_orderly(self) -> bool {
        !matches!(
            self,
            Authority::RedisIncr | Authority::Broken | Authority::Repeating | Authority::Split
        )
    }

    /// Why a run is void although its claim arm lost nothing: the expected failure did not happen.
    pub(super) fn is_void(self, nemesis: Nemesis, report: &ArmReport) -> Option<String> {
        let (arm, word) = (report.arm, report.arm.word());
        let lost = report.lost.len();
        let percent = report.share_lost() * 100.0;
        match (self, nemesis) {
            (Authority::RedisIncr, _) if report.inverted_grants == Some(0) => {
                Some(format!("{word}: no token was granted after a higher one"))
            }
            (Authority::Redlock, Nemesis::OneClock) | (Authority::Broken, _)
                if arm != Arm::Claim && lost == 0 =>
            {
                Some(format!("{word}: nothing was lost"))
            }
            (Authority::RedisIncr, _) => None,
            (_, Nemesis::Holder) if arm != Arm::Claim && percent < VOID_BELOW * 100.0 => {
                Some(format!(
                    "{word}: lost only {percent:.1} % of its acknowledged adds, so the schedule proves nothing"
                ))
            }
            _ => None,
        }
    }
}
