//! The authorities: Palisade, other systems, and ones that are broken on purpose.

pub(super) mod authority;
mod broken;
mod foreign;
pub(crate) mod naive;
mod redlock;

use std::path::Path;
use std::sync::Arc;

use palisade_testbed::{Etcd, Postgres, Redis, ZooKeeper};

use super::args::Chaos;
use super::arm::Arm;
use super::nemesis::fault::Nemesis;
use super::nodes::Cluster;
use super::plan::Plan;
use super::program::version;
use super::server::Victim;
use super::verdict::ArmReport;
use authority::Authority;
use broken::Broken;
use foreign::Foreign;
use redlock::Primaries;

/// The fraction that the textbook fence must lose under the holder nemesis.
const VOID_BELOW: f64 = 0.05;

impl Authority {
    /// Starts it, unless each world starts its own.
    ///
    /// # Errors A program that is not installed or does not start.
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
