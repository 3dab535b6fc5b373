//! Many workers contend for one row. A conditional write alone keeps the data safe but makes most workers repeat their
//! work; a lock in front lets one in at a time.

use std::sync::Arc;
use std::time::Duration;

use palisade_core::Ttl;
use tokio::sync::{Mutex, Semaphore};
use tokio::task::JoinSet;

use super::counter::{Counter, Mode, Written};
use super::{Holding, Lock, Outcome, Servers};
use crate::lane::{Error, random};
use crate::measure::now;

/// The result of one arm.
pub(crate) struct ArmResult {
    pub(crate) name: &'static str,
    pub(crate) outcome: Outcome,
    /// Seconds of CPU that the database's processes spent.
    pub(crate) database_cpu: f64,
}

/// Connections that the workers share, as in a pool.
const CONNECTIONS: usize = 64;

/// The time between read and write.
const THINK: Duration = Duration::from_millis(1);

pub(super) async fn run(servers: &Servers, crowd: u32) -> Result<Vec<ArmResult>, Error> {
    Ok(vec![
        arm(servers, crowd, false).await?,
        arm(servers, crowd, true).await?,
    ])
}

async fn arm(servers: &Servers, crowd: u32, locked: bool) -> Result<ArmResult, Error> {
    let name = format!("gate-{:x}", u128::from_le_bytes(random()?));
    let url = servers.postgres.url();
    Counter::create(&url, &name).await?;
    let mode = if locked { Mode::Claim } else { Mode::Version };
    let mut pool = Vec::new();
    for _ in 0..CONNECTIONS {
        pool.push(Counter::connect(&url, &name, mode).await?);
    }
    let pool = Arc::new(Pool {
        free: Semaphore::new(CONNECTIONS),
        connections: Mutex::new(pool),
    });
    let service = servers.service(Lock::Palisade).await?;
    let (before, begin) = (cpu(servers.postgres.pid()), now());
    let mut workers = JoinSet::new();
    for _ in 0..crowd {
        let holder = locked
            .then(|| Holding::new(Arc::clone(&service), &name))
            .transpose()?;
        workers.spawn(worker(holder, Arc::clone(&pool)));
    }
    let mut outcome = Outcome::default();
    while let Some(rejected) = workers.join_next().await {
        outcome.rejected += rejected??;
        outcome.acknowledged += 1;
    }
    outcome.millis = (now() - begin) as f64 / 1e6;
    let database_cpu = cpu(servers.postgres.pid()) - before;
    let counted = Counter::total(&url, &name).await?;
    outcome.lost = outcome.acknowledged.saturating_sub(counted);
    Ok(ArmResult {
        name: if locked {
            "Palisade lock + conditional write"
        } else {
            "conditional write alone"
        },
        outcome,
        database_cpu,
    })
}

struct Pool {
    free: Semaphore,
    connections: Mutex<Vec<Counter>>,
}

/// Adds once; returns how often it was rejected before.
async fn worker(mut holder: Option<Holding>, pool: Arc<Pool>) -> Result<u64, Error> {
    let mut rejected = 0;
    loop {
        let token = match &mut holder {
            Some(holder) => Some(holder.acquire(Ttl::from_millis(10_000)?).await?),
            None => None,
        };
        let permit = pool.free.acquire().await?;
        let mut counter = pool
            .connections
            .lock()
            .await
            .pop()
            .ok_or("the pool is empty")?;
        let written = counter.add(token, THINK).await;
        pool.connections.lock().await.push(counter);
        drop(permit);
        if let Some(holder) = &mut holder {
            holder.release().await?;
        }
        match written? {
            Written::Acknowledged => return Ok(rejected),
            Written::Rejected => rejected += 1,
        }
    }
}

/// CPU seconds of a process and its children, including those that have ended.
fn cpu(parent: u32) -> f64 {
    let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    let ticks: u64 = processes
        .filter_map(|entry| std::fs::read_to_string(entry.path().join("stat")).ok())
        .filter_map(|stat| {
            let (pid, _) = stat.split_once(' ')?;
            // The fields after the name, which may contain anything: state, parent, …
            let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
            let number = |at: usize| fields.get(at)?.parse::<u64>().ok();
            let own = number(11)? + number(12)?;
            if pid.parse() == Ok(parent) {
                return Some(own + number(13)? + number(14)?);
            }
            (number(1)? == u64::from(parent)).then_some(own)
        })
        .sum();
    ticks as f64 / 100.0
}
