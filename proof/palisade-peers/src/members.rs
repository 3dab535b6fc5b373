//! A cluster whose members change under load, as its callers see it.
//!
//! ```text
//!   loops ──► acquire ─► release, each a lock of its own ──► latency by phase · failures · tokens
//!   steady ─ a node is added ─ steady ─ a follower is removed ─ steady ─ the leader is removed ─ steady
//! ```
//!
//! An operation belongs to the phase in which it began. A phase with a change lasts until the change is done, and no
//! shorter than the others.

use std::collections::HashSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use hdrhistogram::Histogram;
use palisade_client::{Client, Options, secs};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use crate::lane::Error;
use crate::machine;
use crate::measure::now;
use crate::palisade::Cluster;

pub(crate) struct Plan {
    pub(crate) loops: u32,
    pub(crate) phase: Duration,
    pub(crate) patience: Duration,
    pub(crate) json: bool,
}

/// The event of each phase.
const PHASES: [&str; 7] = [
    "steady",
    "a node is added",
    "steady, 4 nodes",
    "a follower is removed",
    "steady, 3 nodes",
    "the leader is removed",
    "steady, 2 nodes",
];

/// More than these is a phase that is over.
const OVER: usize = PHASES.len();

/// How many connections the loops share.
const CONNECTIONS: usize = 4;

/// How long a new node may take to get its vote.
const CATCH_UP: Duration = Duration::from_secs(120);

/// The measurements of the loops in one phase.
struct Phase {
    /// Nanoseconds of each acquire and of each release.
    latency: Histogram<u64>,
    failures: Vec<String>,
}

impl Phase {
    fn new() -> Result<Phase, Error> {
        let mut latency = Histogram::new(3)?;
        latency.auto(true);
        let failures = Vec::new();
        Ok(Phase { latency, failures })
    }

    /// Records an operation that began at this time.
    fn ended<T>(&mut self, begun: u64, ended: Result<T, palisade_client::Error>) -> Option<T> {
        match ended {
            Ok(done) => {
                // It grows to any value.
                let _ = self.latency.record(now() - begun);
                Some(done)
            }
            Err(error) => {
                self.failures.push(format!("{error:#}"));
                None
            }
        }
    }
}

/// The state that all loops share.
struct Shared {
    phase: AtomicUsize,
    phases: [Mutex<Phase>; OVER],
}

impl Shared {
    /// The phase now, unless all are over.
    fn phase(&self) -> Option<&Mutex<Phase>> {
        self.phases.get(self.phase.load(Ordering::Relaxed))
    }
}

fn hold<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Runs all phases and prints the measurements.
///
/// # Errors
/// An operation failed, or a token was wrong; a change of members failed.
pub(crate) fn run(plan: &Plan) -> Result<(), Error> {
    tokio::runtime::Runtime::new()?.block_on(measure(plan))
}

async fn measure(plan: &Plan) -> Result<(), Error> {
    let machine = machine::line()?;
    let mut cluster = tokio::task::spawn_blocking(Cluster::start).await??;
    let phases: Result<Vec<_>, _> = PHASES
        .iter()
        .map(|_| Phase::new().map(Mutex::new))
        .collect();
    let shared = Arc::new(Shared {
        phase: AtomicUsize::new(0),
        phases: phases?.try_into().map_err(|_| "a phase is missing")?,
    });
    let loops = start(plan, &cluster.url(), &shared).await?;
    let mut took = Vec::new();
    for (at, name) in PHASES.into_iter().enumerate() {
        shared.phase.store(at, Ordering::Relaxed);
        let begun = now();
        let changed = tokio::task::spawn_blocking(move || {
            let change = change(&mut cluster, name)?;
            Ok::<_, Error>((cluster, change))
        });
        let is_change;
        (cluster, is_change) = changed.await??;
        let change = Duration::from_nanos(now() - begun);
        took.push((is_change.then_some(change), begun));
        tokio::time::sleep(plan.phase.saturating_sub(change)).await;
    }
    took.push((None, now()));
    shared.phase.store(OVER, Ordering::Relaxed);
    check(loops).await?;
    let rows: Vec<Value> = took
        .windows(2)
        .zip(PHASES)
        .zip(&shared.phases)
        .map(|((took, name), phase)| row(name, took[0].0, took[1].1 - took[0].1, &hold(phase)))
        .collect();
    print(plan, &machine, &rows);
    if rows.iter().all(|row| row["failed"] == 0) {
        Ok(())
    } else {
        Err("operations failed within the patience of their callers".into())
    }
}

/// Carries out the event of a phase, and returns whether it changed the members.
#[expect(
    clippy::disallowed_methods,
    reason = "another process gets its vote when it has caught up"
)]
fn change(cluster: &mut Cluster, phase: &str) -> Result<bool, Error> {
    let view = |cluster: &Cluster| cluster.command(&["status"]);
    let voters = |view: &Value| -> Vec<String> {
        let members = view["members"].as_array().into_iter().flatten();
        let voters = members.filter(|member| member["voter"] == true);
        voters
            .filter_map(|member| member["node"].as_str().map(str::to_owned))
            .collect()
    };
    let leads = |view: &Value, node: &String| view["leader"] == node.as_str();
    if phase.starts_with("steady") {
        return Ok(false);
    }
    let before = view(cluster)?;
    if phase == "a node is added" {
        cluster.add()?;
        let until = now() + u64::try_from(CATCH_UP.as_nanos())?;
        while voters(&view(cluster)?).len() <= voters(&before).len() {
            if now() > until {
                return Err("the new node got no vote".into());
            }
            std::thread::sleep(Duration::from_millis(10)); // real time: the other processes need to go on
        }
        return Ok(true);
    }
    let leader = phase == "the leader is removed";
    let mut removed = voters(&before).into_iter();
    let removed = removed.find(|node| leads(&before, node) == leader);
    let removed = removed.ok_or("there is no such node")?;
    cluster.command(&["remove", &removed])?;
    Ok(true)
}

/// The tokens of each loop, in the order in which it got them.
type Loops = JoinSet<Vec<u64>>;

async fn start(plan: &Plan, url: &str, shared: &Arc<Shared>) -> Result<Loops, Error> {
    let mut clients = Vec::new();
    for _ in 0..CONNECTIONS {
        let options = Options {
            patience: plan.patience,
            ..Options::default()
        };
        clients.push(Client::connect_with(url, options).await?);
    }
    let mut loops = JoinSet::new();
    for at in 0..plan.loops {
        let client = clients[at as usize % CONNECTIONS].clone();
        loops.spawn(work(client, format!("members/{at}"), Arc::clone(shared)));
    }
    Ok(loops)
}

async fn work(client: Client, lock: String, shared: Arc<Shared>) -> Vec<u64> {
    let mut tokens = Vec::new();
    while let Some(phase) = shared.phase() {
        let begun = now();
        let acquired = client.lock(&lock).ttl(secs(30)).acquire().await;
        let acquired = hold(phase).ended(begun, acquired);
        let (Some(lease), Some(phase)) = (acquired, shared.phase()) else {
            continue;
        };
        tokens.push(lease.token().get());
        let begun = now();
        let released = lease.release().await;
        hold(phase).ended(begun, released);
    }
    tokens
}

/// Every token once, and those of one lock in order.
async fn check(mut loops: Loops) -> Result<(), Error> {
    let (mut all, mut count) = (HashSet::new(), 0);
    while let Some(tokens) = loops.join_next().await {
        let tokens = tokens?;
        if !tokens.is_sorted_by(|a, b| a < b) {
            return Err("a lock's tokens did not rise".into());
        }
        count += tokens.len();
        all.extend(tokens);
    }
    if all.len() == count {
        Ok(())
    } else {
        Err("a token was issued twice".into())
    }
}

fn row(name: &str, change: Option<Duration>, lasted: u64, phase: &Phase) -> Value {
    let at = |quantile| phase.latency.value_at_quantile(quantile) as f64 / 1e6;
    json!({
        "phase": name,
        "change_ms": change.map(|change| change.as_millis() as u64),
        "operations": phase.latency.len(),
        "per_second": phase.latency.len() as f64 / (lasted as f64 / 1e9),
        "p50_ms": at(0.5),
        "p99_ms": at(0.99),
        "max_ms": phase.latency.max() as f64 / 1e6,
        "failed": phase.failures.len(),
        "failure": phase.failures.first(),
    })
}

fn print(plan: &Plan, machine: &str, rows: &[Value]) {
    let (loops, patience) = (plan.loops, plan.patience.as_millis() as u64);
    if plan.json {
        let all =
            json!({ "machine": machine, "loops": loops, "patience_ms": patience, "phases": rows });
        println!("{all}");
        return;
    }
    println!("{machine}; three nodes and the load on one machine\n");
    println!(
        "{loops} loops acquire and release a lock of their own; each operation is repeated for {patience} ms\n"
    );
    println!(
        "| | operations a second | p50 ms | p99 ms | longest ms | failed | the change took ms |"
    );
    println!("|---|---|---|---|---|---|---|");
    for row in rows {
        let figure = |name: &str| row[name].as_f64().unwrap_or_default();
        println!(
            "| {} | {:.0} | {:.2} | {:.2} | {:.0} | {} | {} |",
            row["phase"].as_str().unwrap_or_default(),
            figure("per_second"),
            figure("p50_ms"),
            figure("p99_ms"),
            figure("max_ms"),
            row["failed"],
            row["change_ms"]
                .as_u64()
                .map_or("–".into(), |took| took.to_string()),
        );
        if let Some(why) = row["failure"].as_str() {
            eprintln!("{}: {why}", row["phase"].as_str().unwrap_or_default());
        }
    }
}
