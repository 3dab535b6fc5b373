//! The cost of an authority behind palisade-client, compared with a bare client of the same system that follows the
//! same recipe by hand.

use std::sync::Arc;
use std::time::Duration;

use palisade_authorities::connect;
use palisade_client::Options;
use palisade_client::service::LockService;
use palisade_testbed::{Etcd, Postgres, Redis, ZooKeeper};
use serde_json::json;

use crate::bare;
use crate::lane::{Adapter, Error, Lane, new_client};
use crate::machine;
use crate::measure::{hand_off, median, pairs};

/// The plan of the measurement.
pub(crate) struct Plan {
    pub(crate) lanes: u32,
    pub(crate) rounds: u32,
    pub(crate) duration: Duration,
    pub(crate) hand_overs: u32,
    /// All systems if empty.
    pub(crate) only: Vec<System>,
    pub(crate) json: bool,
}

/// A system under test.
#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum System {
    Redis,
    Etcd,
    #[value(name = "zookeeper")]
    ZooKeeper,
    Postgres,
}

/// The servers, each as durable as its settings allow.
struct Servers {
    redis: Redis,
    etcd: Etcd,
    zookeeper: ZooKeeper,
    postgres: Postgres,
}

/// The results of one system, round by round.
#[derive(Default)]
struct Reached {
    pairs: Vec<f64>,
    hand_off: Vec<f64>,
}

const SYSTEMS: [(System, &str); 4] = [
    (System::Redis, "Redis 7, appendfsync always"),
    (System::Etcd, "etcd 3.4"),
    (System::ZooKeeper, "ZooKeeper 3.8"),
    (System::Postgres, "PostgreSQL 15"),
];

impl Servers {
    fn start() -> Servers {
        Servers {
            redis: Redis::start(&["--appendonly", "yes", "--appendfsync", "always"]),
            etcd: Etcd::start(&[]),
            zookeeper: ZooKeeper::start(&[]),
            postgres: Postgres::start(&[]),
        }
    }

    fn url(&self, system: System) -> String {
        match system {
            System::Redis => self.redis.url(),
            System::Etcd => self.etcd.url(),
            System::ZooKeeper => self.zookeeper.url(),
            System::Postgres => self.postgres.url(),
        }
    }

    /// A lane with its own connection, through the adapter or bare.
    async fn lane(
        &self,
        system: System,
        adapter: bool,
        lock: &str,
    ) -> Result<Box<dyn Lane>, Error> {
        let url = self.url(system);
        if adapter {
            let options = Options {
                connections: 1,
                ..Options::default()
            };
            let service: Arc<dyn LockService> = connect(&url, &options).await?;
            return Ok(Box::new(Adapter::new(service, new_client()?, lock)?));
        }
        Ok(match system {
            System::Redis => Box::new(bare::redis::Lane::connect(&url, lock).await?),
            System::Etcd => Box::new(bare::etcd::Lane::connect(self.etcd.port(), lock).await?),
            System::ZooKeeper => {
                Box::new(bare::zookeeper::Lane::connect(self.zookeeper.port(), lock).await?)
            }
            System::Postgres => Box::new(bare::postgres::Lane::connect(&url, lock).await?),
        })
    }
}

pub(crate) fn run(plan: &Plan) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let machine = machine::line()?;
    eprintln!("starting the servers");
    let servers = Servers::start();
    let reached = runtime.block_on(measure(plan, &servers))?;
    if plan.json {
        println!("{}", as_json(plan, &machine, &reached));
    } else {
        print!("{}", as_text(plan, &machine, &reached));
    }
    Ok(())
}

/// For each system, the results of the adapter and of the bare client.
type Table = Vec<((System, &'static str), [Reached; 2])>;

async fn measure(plan: &Plan, servers: &Servers) -> Result<Table, Error> {
    bare::postgres::prepare(&servers.postgres.url()).await?;
    let systems = SYSTEMS.into_iter();
    let systems = systems.filter(|(one, _)| plan.only.is_empty() || plan.only.contains(one));
    let mut table: Table = systems.map(|named| (named, Default::default())).collect();
    for round in 0..plan.rounds {
        eprintln!("round {} of {}", round + 1, plan.rounds);
        for ((system, _), row) in &mut table {
            // In turns, so that changes on the machine affect both.
            let order = if round % 2 == 0 { [0, 1] } else { [1, 0] };
            for which in order {
                let adapter = which == 0;
                let name = |lane: u32| format!("peers/{round}/{which}/{lane}");
                let mut lanes = Vec::new();
                for lane in 0..plan.lanes {
                    lanes.push(servers.lane(*system, adapter, &name(lane)).await?);
                }
                row[which].pairs.push(pairs(lanes, plan.duration).await?);
                let contended = format!("peers/{round}/{which}/contended");
                let two = [
                    servers.lane(*system, adapter, &contended).await?,
                    servers.lane(*system, adapter, &contended).await?,
                ];
                row[which]
                    .hand_off
                    .push(hand_off(two, plan.hand_overs).await?);
            }
        }
    }
    Ok(table)
}

fn as_text(plan: &Plan, machine: &str, table: &Table) -> String {
    let mut text = format!(
        "{machine}\n{} lanes, medians of {} rounds; ratios are medians of the rounds' ratios\n\n{:<30}{:>12}{:>12}{:>8}{:>14}{:>12}{:>8}\n",
        plan.lanes, plan.rounds, "", "pairs/s", "bare", "ratio", "hand-off us", "bare", "ratio"
    );
    for ((_, name), [adapter, bare]) in table {
        let (rate, bare_rate) = (median(adapter.pairs.clone()), median(bare.pairs.clone()));
        let (off, bare_off) = (
            median(adapter.hand_off.clone()),
            median(bare.hand_off.clone()),
        );
        text.push_str(&format!(
            "{name:<30}{rate:>12.0}{bare_rate:>12.0}{:>8.2}{off:>14.0}{bare_off:>12.0}{:>8.2}\n",
            ratio(&adapter.pairs, &bare.pairs),
            ratio(&adapter.hand_off, &bare.hand_off),
        ));
    }
    text
}

/// Computed for each round, because the machine's other load changes from round to round.
fn ratio(adapter: &[f64], bare: &[f64]) -> f64 {
    median(
        adapter
            .iter()
            .zip(bare)
            .map(|(one, other)| one / other)
            .collect(),
    )
}

fn as_json(plan: &Plan, machine: &str, table: &Table) -> serde_json::Value {
    let rows = table.iter().map(|((_, name), [adapter, bare])| {
        let side = |reached: &Reached| json!({"pairs_per_second": reached.pairs, "hand_off_us": reached.hand_off});
        json!({"system": name, "adapter": side(adapter), "bare": side(bare)})
    });
    json!({
        "machine": machine,
        "lanes": plan.lanes,
        "rounds": plan.rounds,
        "systems": rows.collect::<Vec<_>>(),
    })
}
