//! How long a cluster grants nothing when its leader is killed.
//!
//! ```text
//!   three nodes ─ locks are held ─► SIGKILL to the leader ─► the next grant ─► the node starts again ─ all are idle ─┐
//!                                          ▲                                                                      │
//!                                          └──────────────────────────────────────────────────────────────────────┘
//! ```
//!
//! The time runs from before the signal to the answer to an acquire that began when the process was gone. The new leader says
//! how long its phases took, by its own clock; what remains is the caller's: it notices that its connection broke, looks for
//! the leader, and asks. The first phase begins with the last message of the leader that was killed, up to a heartbeat before
//! the signal, so the caller's part comes out too small by as much.

use std::sync::Arc;
use std::time::Duration;

use palisade_client::service::LockService;
use palisade_client::{Client, Options, connect, secs};
use serde_json::{Value, json};
use tokio::task::{JoinSet, spawn_blocking};

use crate::lane::{Adapter, Error, Lane as _, new_client};
use crate::machine;
use crate::measure::{median, now};
use crate::palisade::Cluster;

pub(crate) struct Plan {
    pub(crate) times: u32,
    pub(crate) held: u32,
    pub(crate) timers: String,
    /// How long the machine may take to have nothing to do: nodes make snapshots, and one of them catches up.
    pub(crate) rest: Duration,
    pub(crate) json: bool,
}

/// How long a caller repeats an acquire.
const PATIENCE: Duration = Duration::from_secs(60);

/// How many locks are acquired at once.
const IN_FLIGHT: u32 = 1_024;

/// For leases that nobody renews: longer than any measurement here.
const HELD_MS: u64 = 12 * 3_600_000;

/// Kills leaders and prints how long it took until the next grant.
///
/// # Errors
/// A node or an operation failed, or a token did not rise.
pub(crate) fn run(plan: &Plan) -> Result<(), Error> {
    tokio::runtime::Runtime::new()?.block_on(measure(plan))
}

async fn measure(plan: &Plan) -> Result<(), Error> {
    let machine = machine::line()?;
    let timers = plan.timers.clone();
    let mut cluster = spawn_blocking(move || Cluster::with_timers(&timers)).await??;
    let mut last = hold(&cluster.url(), plan.held).await?;
    let options = Options {
        patience: PATIENCE,
        ..Options::default()
    };
    let client = Client::connect_with(&cluster.url(), options).await?;
    let (mut steady, mut took, mut phases) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..plan.times {
        machine::wait_until_idle(plan.rest).await?;
        steady.push(grant(&client, &mut last, now()).await?);
        let begun = now();
        cluster = spawn_blocking(move || {
            cluster.kill_leader()?;
            Ok::<_, Error>(cluster)
        })
        .await??;
        took.push(grant(&client, &mut last, begun).await?);
        let view;
        (cluster, view) = spawn_blocking(move || {
            let view = cluster.command(&["status"])?;
            cluster.start_again()?;
            Ok::<_, Error>((cluster, view))
        })
        .await??;
        phases.push(Phases::of(&view, took.last().copied().unwrap_or_default())?);
    }
    print(plan, &machine, median(steady), took, &phases);
    Ok(())
}

/// The phases of one take-over, in milliseconds.
struct Phases([f64; PHASES.len()]);

const PHASES: [&str; 5] = ["silence", "vote", "log", "grace", "caller"];

impl Phases {
    /// As the new leader shows them; the rest of the whole is the caller's.
    fn of(view: &Value, whole: f64) -> Result<Phases, Error> {
        let takeover = &view["takeover"];
        if view["term"] != takeover["term"] {
            return Err(format!("another node leads than the one that took over: {view}").into());
        }
        let mut phases = [0.0; PHASES.len()];
        let (caller, of_leader) = phases.split_last_mut().ok_or("no phases")?;
        for (phase, name) in of_leader.iter_mut().zip(PHASES) {
            *phase = takeover[format!("{name}_ms")].as_f64().unwrap_or_default();
        }
        *caller = whole - of_leader.iter().sum::<f64>();
        Ok(Phases(phases))
    }
}

/// Acquires a lock and releases it, checks its token, and gives the milliseconds from `begun` to the grant.
async fn grant(client: &Client, last: &mut u64, begun: u64) -> Result<f64, Error> {
    let lease = client.lock("failover").ttl(secs(30)).acquire().await?;
    let took = (now() - begun) as f64 / 1e6;
    let token = lease.token().get();
    if token <= *last {
        return Err(format!("token {token} came after {last}").into());
    }
    *last = token;
    lease.release().await?;
    Ok(took)
}

/// Acquires this many locks, and gives the highest token.
async fn hold(url: &str, locks: u32) -> Result<u64, Error> {
    let service: Arc<dyn LockService> = connect(url, &Options::default()).await?;
    let client = new_client()?;
    let mut running = JoinSet::new();
    for share in 0..IN_FLIGHT {
        let (service, client) = (Arc::clone(&service), client.clone());
        running.spawn(async move {
            let mut highest = 0;
            for number in (share..locks).step_by(IN_FLIGHT as usize) {
                let name = format!("held/{number:08}");
                let lane = Adapter::new(Arc::clone(&service), client.clone(), &name)?;
                highest = lane.lasting(HELD_MS)?.acquire().await?.max(highest);
            }
            Ok::<_, Error>(highest)
        });
    }
    let mut highest = 0;
    while let Some(done) = running.join_next().await {
        highest = done??.max(highest);
    }
    Ok(highest)
}

fn print(plan: &Plan, machine: &str, steady: f64, mut took: Vec<f64>, phases: &[Phases]) {
    let each = took.clone();
    took.sort_by(f64::total_cmp);
    let (times, held) = (plan.times, plan.held);
    let (least, most) = (took[0], took[took.len() - 1]);
    if plan.json {
        let all = json!({
            "machine": machine, "held": held, "times": times, "steady_ms": steady,
            "took_ms": each, "p50_ms": median(took.clone()), "max_ms": most, "timers": plan.timers,
            "phases": PHASES, "phases_ms": phases.iter().map(|phases| phases.0).collect::<Vec<_>>(),
        });
        println!("{all}");
        return;
    }
    println!("{machine}; three nodes and their caller on one machine\n");
    println!(
        "| locks held | a grant before, p50 ms | leader killed → next grant, p50 ms | least | longest | kills |"
    );
    println!("|---|---|---|---|---|---|");
    let middle = median(took);
    println!("| {held} | {steady:.2} | {middle:.0} | {least:.0} | {most:.0} | {times} |");
    println!(
        "\n| phase, --timers {} | p50 ms | longest | of the slowest take-over |",
        plan.timers
    );
    println!("|---|---|---|---|");
    let slowest = each
        .iter()
        .zip(phases)
        .max_by(|one, two| one.0.total_cmp(two.0));
    for (at, name) in PHASES.into_iter().enumerate() {
        let took: Vec<f64> = phases.iter().map(|phases| phases.0[at]).collect();
        let longest = took.iter().copied().fold(0.0, f64::max);
        let of_slowest = slowest.map_or(0.0, |(_, phases)| phases.0[at]);
        println!(
            "| {name} | {:.0} | {longest:.0} | {of_slowest:.0} |",
            median(took)
        );
    }
}
