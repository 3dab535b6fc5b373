//! The same job with each strategy: several workers add to one counter, and holders pause past the end of their lease
//! at the worst moment.
//!
//! ```text
//!   acquire ─► (claim) ─► read ─► think, or pause past the lease ─► write ─► release
//!                                                                    │
//!                 stale: start again ◄──────────── rejected ◄────────┤
//!                                                                    └─► acknowledged
//!   at the end: acknowledged − counted = lost
//! ```
//!
//! A lost addition was acknowledged to a worker but is not in the counter. The pause is timed to end while the next
//! holder is between its read and its write.

mod contention;
mod counter;
mod dynamo;
mod picture;

use std::sync::Arc;
use std::time::Duration;

use palisade_authorities::connect;
use palisade_client::Options;
use palisade_client::service::{AcquireRequest, Acquired, LockService, Under};
use palisade_core::{ClientId, GrantRef, LockName, RequestId, Span, Token, Ttl};
use palisade_testbed::{Moto, Postgres, ZooKeeper};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::lane::{Error, random};
use crate::machine;
use crate::measure::now;
use crate::palisade::Server;
use counter::{Counter, Mode, Written};
use dynamo::Item;

pub(crate) struct Plan {
    pub(crate) workers: u32,
    pub(crate) adds: u32,
    pub(crate) crowd: u32,
    pub(crate) json: bool,
    pub(crate) picture: Option<std::path::PathBuf>,
}

/// A way to prevent two workers from undoing each other's work.
struct Strategy {
    name: &'static str,
    lock: Option<Lock>,
    resource: Resource,
    /// Advice for operators, in a few words.
    when: &'static str,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Lock {
    Palisade,
    ZooKeeper,
    Postgres,
}

#[derive(Clone, Copy)]
enum Resource {
    Row(Mode),
    Item,
}

const STRATEGIES: &[Strategy] = &[
    Strategy {
        name: "no lock, no fence",
        lock: None,
        resource: Resource::Row(Mode::Plain),
        when: "never",
    },
    Strategy {
        name: "Palisade lock, no fence",
        lock: Some(Lock::Palisade),
        resource: Resource::Row(Mode::Plain),
        when: "work that is only wasted when done twice",
    },
    Strategy {
        name: "Palisade lock, textbook fence",
        lock: Some(Lock::Palisade),
        resource: Resource::Row(Mode::Textbook),
        when: "writes that do not depend on a read",
    },
    Strategy {
        name: "Palisade lock, claim + conditional write",
        lock: Some(Lock::Palisade),
        resource: Resource::Row(Mode::Claim),
        when: "read, think, write; nothing kept open while thinking",
    },
    Strategy {
        name: "Palisade lock, claim + SELECT FOR UPDATE",
        lock: Some(Lock::Palisade),
        resource: Resource::Row(Mode::ForUpdate),
        when: "the effect spans several rows of one transaction",
    },
    Strategy {
        name: "ZooKeeper lock, claim + conditional write",
        lock: Some(Lock::ZooKeeper),
        resource: Resource::Row(Mode::Claim),
        when: "an ensemble is there already; leases of seconds",
    },
    Strategy {
        name: "PostgreSQL lock, claim + conditional write",
        lock: Some(Lock::Postgres),
        resource: Resource::Row(Mode::Claim),
        when: "the database is the only server",
    },
    Strategy {
        name: "no lock, conditional write on a version",
        lock: None,
        resource: Resource::Row(Mode::Version),
        when: "little contention, and repeating the work is cheap",
    },
    Strategy {
        name: "no lock, DynamoDB conditional write",
        lock: None,
        resource: Resource::Item,
        when: "the same, with the data in DynamoDB",
    },
];

/// The result of a strategy.
#[derive(Clone, Debug, Default)]
pub(crate) struct Outcome {
    pub(crate) acknowledged: u64,
    pub(crate) rejected: u64,
    pub(crate) lost: u64,
    pub(crate) millis: f64,
}

pub(crate) fn run(plan: &Plan) -> Result<(), Error> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let machine = machine::line()?;
    eprintln!("starting the servers");
    let servers = Servers {
        palisade: Server::start()?,
        postgres: Postgres::start(&[]),
        zookeeper: ZooKeeper::start(&[]),
        moto: Moto::start(&[]),
    };
    let mut rows = Vec::new();
    for strategy in STRATEGIES {
        eprintln!("{}", strategy.name);
        rows.push((strategy, runtime.block_on(servers.job(strategy, plan))?));
    }
    eprintln!("contention: {} workers on one row", plan.crowd);
    let contention = runtime.block_on(contention::run(&servers, plan.crowd))?;
    let facts = as_json(plan, &machine, &rows, &contention);
    if let Some(path) = &plan.picture {
        std::fs::write(path, picture::draw(&rows_of(&rows), &contention, &machine))?;
        eprintln!("drawn: {}", path.display());
    }
    if plan.json {
        println!("{facts}");
    } else {
        print!("{}", as_text(plan, &machine, &rows, &contention));
    }
    Ok(())
}

/// The servers of one run.
struct Servers {
    palisade: Server,
    postgres: Postgres,
    zookeeper: ZooKeeper,
    moto: Moto,
}

impl Servers {
    async fn service(&self, lock: Lock) -> Result<Arc<dyn LockService>, Error> {
        let url = match lock {
            Lock::Palisade => self.palisade.url(),
            Lock::ZooKeeper => self.zookeeper.url(),
            Lock::Postgres => self.postgres.url(),
        };
        Ok(connect(&url, &Options::default()).await?)
    }

    async fn job(&self, strategy: &Strategy, plan: &Plan) -> Result<Outcome, Error> {
        let name = format!("job-{:x}", u128::from_le_bytes(random()?));
        let ttl = match strategy.lock {
            // Sessions there last at least two ticks.
            Some(Lock::ZooKeeper) => Ttl::from_millis(1_000)?,
            _ => Ttl::from_millis(300)?,
        };
        match strategy.resource {
            Resource::Row(_) => Counter::create(&self.postgres.url(), &name).await?,
            Resource::Item => Item::create(self.moto.port(), &name).await?,
        }
        let mut workers = JoinSet::new();
        let begin = now();
        for number in 0..plan.workers {
            let service = match strategy.lock {
                Some(lock) => Some(self.service(lock).await?),
                None => None,
            };
            let worker = Worker {
                holder: service
                    .map(|service| Holding::new(service, &name))
                    .transpose()?,
                target: match strategy.resource {
                    Resource::Row(mode) => {
                        Target::Row(Counter::connect(&self.postgres.url(), &name, mode).await?)
                    }
                    Resource::Item => Target::Item(Item::connect(self.moto.port(), &name)),
                },
                ttl,
                number,
                adds: plan.adds,
                outcome: Outcome::default(),
            };
            workers.spawn(worker.run());
        }
        let mut all = Outcome::default();
        while let Some(done) = workers.join_next().await {
            let one = done??;
            all.acknowledged += one.acknowledged;
            all.rejected += one.rejected;
        }
        all.millis = (now() - begin) as f64 / 1e6;
        let counted = match strategy.resource {
            Resource::Row(_) => Counter::total(&self.postgres.url(), &name).await?,
            Resource::Item => Item::connect(self.moto.port(), &name).read().await?.1,
        };
        all.lost = all.acknowledged.saturating_sub(counted);
        Ok(all)
    }
}

/// A worker's lock. Nothing renews it: a worker that thinks too long loses it, like one that was stopped.
pub(crate) struct Holding {
    service: Arc<dyn LockService>,
    lock: LockName,
    client: ClientId,
    grant: Option<GrantRef>,
}

impl Holding {
    pub(crate) fn new(service: Arc<dyn LockService>, lock: &str) -> Result<Holding, Error> {
        let id = RequestId::from_bytes(random()?).to_hex();
        Ok(Holding {
            service,
            lock: LockName::new(lock)?,
            client: ClientId::new(&format!("worker-{id}"))?,
            grant: None,
        })
    }

    pub(crate) async fn acquire(&mut self, ttl: Ttl) -> Result<Token, Error> {
        let request = AcquireRequest {
            wait: Some(Span::from_millis(600_000)),
            ..AcquireRequest::new(
                self.lock.clone(),
                self.client.clone(),
                Under::new(ttl),
                RequestId::from_bytes(random()?),
            )
        };
        match self.service.acquire(request).await? {
            Acquired::Granted(granted) => {
                self.grant = Some(GrantRef {
                    lock: self.lock.clone(),
                    key: granted.key,
                    token: Some(granted.token),
                });
                Ok(granted.token)
            }
            other => Err(format!("not granted: {other:?}").into()),
        }
    }

    /// Releases; whether the lock was still held does not matter.
    pub(crate) async fn release(&mut self) -> Result<(), Error> {
        if let Some(grant) = self.grant.take() {
            self.service.release(grant).await?;
        }
        Ok(())
    }
}

enum Target {
    Row(Counter),
    Item(Item),
}

struct Worker {
    holder: Option<Holding>,
    target: Target,
    ttl: Ttl,
    number: u32,
    adds: u32,
    outcome: Outcome,
}

impl Worker {
    async fn run(mut self) -> Result<Outcome, Error> {
        for turn in 0..self.adds {
            // Each pauses once in ten turns, and not all in the same turn.
            let mut stops = (turn + self.number) % 10 == 9;
            while !self.add(stops).await? {
                self.outcome.rejected += 1;
                stops = false;
            }
            self.outcome.acknowledged += 1;
        }
        Ok(self.outcome)
    }

    async fn add(&mut self, stops: bool) -> Result<bool, Error> {
        let token = match &mut self.holder {
            Some(holder) => Some(holder.acquire(self.ttl).await?),
            None => None,
        };
        let think = if stops {
            // Until just after the lease's end, when the next holder has read and not yet written.
            let spread = u64::from(random()?[0] % 10);
            self.ttl.span().to_duration() + Duration::from_millis(spread)
        } else {
            THINK
        };
        let written = match &mut self.target {
            Target::Row(counter) => counter.add(token, think).await?,
            Target::Item(item) => {
                let (version, total) = item.read().await?;
                tokio::time::sleep(think).await;
                item.write(version, total + 1).await?
            }
        };
        if let Some(holder) = &mut self.holder {
            holder.release().await?;
        }
        Ok(written == Written::Acknowledged)
    }
}

/// The time between read and write.
const THINK: Duration = Duration::from_millis(10);

type Rows<'a> = [(&'a Strategy, Outcome)];

fn rows_of(rows: &Rows<'_>) -> Vec<(&'static str, Outcome)> {
    rows.iter()
        .map(|(strategy, outcome)| (strategy.name, outcome.clone()))
        .collect()
}

fn as_text(
    plan: &Plan,
    machine: &str,
    rows: &Rows<'_>,
    contention: &[contention::ArmResult],
) -> String {
    let mut text = format!(
        "{machine}\n{} workers, {} additions each; a holder pauses past its lease once in ten additions\n\n\
         {:<44}{:>8}{:>10}{:>7}{:>9}  when to use it\n",
        plan.workers, plan.adds, "strategy", "acked", "rejected", "lost", "seconds"
    );
    for (strategy, outcome) in rows {
        text.push_str(&format!(
            "{:<44}{:>8}{:>10}{:>7}{:>9.1}  {}\n",
            strategy.name,
            outcome.acknowledged,
            outcome.rejected,
            outcome.lost,
            outcome.millis / 1e3,
            strategy.when
        ));
    }
    text.push_str(&format!(
        "\ncontention: {} workers add once each to one PostgreSQL row\n\n\
         {:<44}{:>8}{:>10}{:>7}{:>9}{:>16}\n",
        plan.crowd, "strategy", "acked", "rejected", "lost", "seconds", "database CPU s"
    ));
    for passed in contention {
        text.push_str(&format!(
            "{:<44}{:>8}{:>10}{:>7}{:>9.1}{:>16.2}\n",
            passed.name,
            passed.outcome.acknowledged,
            passed.outcome.rejected,
            passed.outcome.lost,
            passed.outcome.millis / 1e3,
            passed.database_cpu
        ));
    }
    text
}

fn as_json(
    plan: &Plan,
    machine: &str,
    rows: &Rows<'_>,
    contention: &[contention::ArmResult],
) -> Value {
    let facts = |name: &str, outcome: &Outcome| {
        json!({
            "strategy": name,
            "acknowledged": outcome.acknowledged,
            "rejected": outcome.rejected,
            "lost": outcome.lost,
            "seconds": outcome.millis / 1e3,
        })
    };
    let gatekeeper = contention.iter().map(|passed| {
        let mut row = facts(passed.name, &passed.outcome);
        row["database_cpu_seconds"] = json!(passed.database_cpu);
        row
    });
    json!({
        "machine": machine,
        "workers": plan.workers,
        "adds": plan.adds,
        "crowd": plan.crowd,
        "job": rows.iter().map(|(strategy, outcome)| facts(strategy.name, outcome)).collect::<Vec<_>>(),
        "gatekeeper": gatekeeper.collect::<Vec<_>>(),
    })
}
