//! Many locks held at once: their memory, how much they slow the server down, and how soon it is back after a crash.
//!
//! ```text
//!   a few held, some work ─► memory ─► many held ─► rest ─► memory ─► rates ─► rest ─► idle ─► all renew ─► others work too ─► SIGKILL ─► first grant ─► rest ─► SIGKILL ─► first grant
//!                                                                      ▲
//!   another server: a few held ────────────────────────────────────────┘ alternately
//! ```
//!
//! Each system has the machine to itself, one after the other.

use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::task::JoinSet;

use super::drivers::{Connection, Terms};
use super::load::{Load, Window};
use super::process;
use super::system::{Profile, Server};
use super::workload::{Work, Workload};
use crate::lane::{Error, Renewing};
use crate::measure::{median, now};

/// The results of one system.
#[derive(Clone, Debug)]
pub(crate) struct Held {
    pub(crate) fill_per_second: f64,
    /// Memory for each lock beyond its name, when the server is idle.
    pub(crate) bytes: f64,
    /// The same at its peak before that: the log's maintenance needs memory too.
    pub(crate) most_bytes: f64,
    /// Pairs per second with a thousand locks held, and with all; the median of the turns.
    pub(crate) rates: [f64; 2],
    /// The median ratio of each turn with all locks to the preceding one with a thousand.
    pub(crate) slowed: f64,
    /// Cores in use without requests.
    pub(crate) idle: f64,
    pub(crate) renewing: Renewals,
    /// The time from the start to the first grant, after a kill under load and after a kill when idle.
    pub(crate) restarts_ms: [f64; 2],
    /// Whether the first token after each restart is above all earlier ones.
    pub(crate) token_rose: bool,
}

/// All leases renew every 10 s, as a time to live of 30 s needs, while 64 clients acquire and release locks.
#[derive(Clone, Debug)]
pub(crate) struct Renewals {
    pub(crate) per_second: f64,
    /// Of the server, without other load.
    pub(crate) cores: f64,
    pub(crate) pairs_per_second: f64,
    /// Of the server, with that load.
    pub(crate) cores_beside: f64,
}

const FEW: usize = 1_000;
const CONNECTIONS: usize = 16;
const IN_FLIGHT: usize = 64;
const EVERY: Duration = Duration::from_secs(10);
const TURNS: usize = 5;

/// Longer than any measurement here.
const TERMS: Terms = Terms {
    contended: false,
    alone: false,
    ttl_ms: 3_600_000,
};

type Lanes = Vec<Box<dyn Renewing>>;

pub(crate) async fn run(profile: &Profile, locks: usize, window: Window) -> Result<Held, Error> {
    let few = FEW.min(locks / 2);
    let server = Server::start(profile.system).await?;
    let pid = server.instance().pid();
    let connections = open(&server).await?;
    let mut highest = 0;
    let (mut lanes, _) = hold(&connections, 0..few, &mut highest).await?;
    pairs(&server, IN_FLIGHT, window, "before").await?;
    wait_until_server_idle(pid).await;
    let before = process::memory(pid);
    let fill = async {
        let filled = hold(&connections, few..locks, &mut highest).await;
        wait_until_server_idle(pid).await;
        filled
    };
    let (filled, most) = with_most_memory(pid, fill).await;
    let (more, seconds) = filled?;
    let beyond_name =
        |memory: f64| (memory - before) / more.len() as f64 - name(locks - 1).len() as f64;
    let (bytes, most_bytes) = (beyond_name(process::memory(pid)), beyond_name(most));
    let held = more.len();
    lanes.extend(more);
    let (rates, slowed) = in_turns(profile, few, &server, window).await?;
    wait_until_server_idle(pid).await;
    let (began, cpu) = (now(), process::cpu(pid));
    tokio::time::sleep(window.measure).await;
    let idle = (process::cpu(pid) - cpu) / since(began);
    let renewing = renew_all(&server, profile, lanes, window).await?;
    drop(connections);
    let (first, at_work) = killed(&server, "after-work").await?;
    wait_until_server_idle(server.instance().pid()).await;
    let (second, rested) = killed(&server, "after-rest").await?;
    let token_rose = highest < first && first < second;
    if profile.is_palisade() && !token_rose {
        let why = format!("tokens {first} and {second} after restarts, {highest} before them");
        return Err(why.into());
    }
    Ok(Held {
        fill_per_second: held as f64 / seconds,
        bytes,
        most_bytes,
        rates,
        slowed,
        idle,
        renewing,
        restarts_ms: [at_work, rested],
        token_rose,
    })
}

async fn open(server: &Server) -> Result<Vec<Box<dyn Connection>>, Error> {
    let mut connections = Vec::new();
    for _ in 0..CONNECTIONS {
        connections.push(server.open(TERMS).await?);
    }
    Ok(connections)
}

/// Pairs per second on other locks, alternately for a server that holds few and for this one, so that both measure
/// under the same conditions.
async fn in_turns(
    profile: &Profile,
    few: usize,
    many: &Server,
    window: Window,
) -> Result<([f64; 2], f64), Error> {
    let other = Server::start(profile.system).await?;
    let connections = open(&other).await?;
    let (_held, _) = hold(&connections, 0..few, &mut 0).await?;
    let (mut with_few, mut with_all, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    for turn in 0..TURNS {
        let first = pairs(&other, IN_FLIGHT, window, &format!("few-{turn}")).await?;
        let second = pairs(many, IN_FLIGHT, window, &format!("many-{turn}")).await?;
        with_few.push(first);
        with_all.push(second);
        ratios.push(second / first);
    }
    Ok(([median(with_few), median(with_all)], median(ratios)))
}

/// Waits until a server has been almost idle for three seconds, after writing its snapshots and cleaning up. Some of
/// that waits for the disk without using a processor. A minute at most.
async fn wait_until_server_idle(pid: u32) {
    let mut quiet = 0;
    for _ in 0..120 {
        let cpu = process::cpu(pid);
        tokio::time::sleep(Duration::from_millis(500)).await;
        quiet = if process::cpu(pid) - cpu < 0.03 {
            quiet + 1
        } else {
            0
        };
        if quiet == 6 {
            break;
        }
    }
}

/// Does some work; also returns the server's peak memory meanwhile.
async fn with_most_memory<T>(pid: u32, work: impl Future<Output = T>) -> (T, f64) {
    let mut work = pin!(work);
    let mut most = process::memory(pid);
    loop {
        tokio::select! {
            done = &mut work => return (done, most.max(process::memory(pid))),
            () = tokio::time::sleep(Duration::from_millis(200)) => {
                most = most.max(process::memory(pid));
            }
        }
    }
}

fn since(begin: u64) -> f64 {
    (now() - begin) as f64 / 1e9
}

/// All names have the same length.
fn name(number: usize) -> String {
    format!("held/{number:08}")
}

/// Acquires these locks over all connections; returns the time it took.
async fn hold(
    connections: &[Box<dyn Connection>],
    numbers: std::ops::Range<usize>,
    highest: &mut u64,
) -> Result<(Lanes, f64), Error> {
    let mut shares: Vec<Lanes> = (0..CONNECTIONS * IN_FLIGHT).map(|_| Vec::new()).collect();
    for (turn, number) in numbers.enumerate() {
        let connection = &connections[turn % connections.len()];
        let share = turn % shares.len();
        shares[share].push(connection.lane(&name(number)).await?);
    }
    let began = now();
    let mut running = JoinSet::new();
    for mut share in shares {
        running.spawn(async move {
            let mut highest = 0;
            for lane in &mut share {
                highest = lane.acquire().await?.max(highest);
            }
            Ok::<_, Error>((share, highest))
        });
    }
    let mut lanes = Vec::new();
    while let Some(done) = running.join_next().await {
        let (share, token) = done??;
        lanes.extend(share);
        *highest = token.max(*highest);
    }
    Ok((lanes, since(began)))
}

/// Pairs per second on other locks.
async fn pairs(
    server: &Server,
    in_flight: usize,
    window: Window,
    name: &str,
) -> Result<f64, Error> {
    let workload = Workload {
        id: "",
        title: "",
        work: Work::Pairs,
        connections: CONNECTIONS,
        lanes: in_flight,
    };
    let load = Load::open(server, &workload, name).await?;
    Ok(load.run(window).await?.per_second)
}

async fn renew_all(
    server: &Server,
    profile: &Profile,
    lanes: Lanes,
    window: Window,
) -> Result<Renewals, Error> {
    let over = Arc::new(AtomicBool::new(false));
    let renewed = Arc::new(AtomicU64::new(0));
    let mut running = JoinSet::new();
    let mut idle = Vec::new();
    let pid = server.instance().pid();
    let (began, cpu) = (now(), process::cpu(pid));
    if profile.renews_each() {
        let share = lanes.len().div_ceil(CONNECTIONS * IN_FLIGHT).max(1);
        let mut lanes = lanes.into_iter();
        loop {
            let share: Lanes = lanes.by_ref().take(share).collect();
            if share.is_empty() {
                break;
            }
            running.spawn(keep(share, Arc::clone(&over), Arc::clone(&renewed)));
        }
    } else {
        idle = lanes;
    }
    tokio::time::sleep(window.measure * 4).await;
    let (seconds, cores) = (since(began), process::cpu(pid) - cpu);
    let renewed = renewed.load(Ordering::Relaxed);
    let (per_second, cores) = (renewed as f64 / seconds, cores / seconds);
    let (began, cpu) = (now(), process::cpu(pid));
    let window = Window {
        measure: window.measure * 4,
        ..window
    };
    let pairs_per_second = pairs(server, 4, window, "beside").await?;
    let cores_beside = (process::cpu(pid) - cpu) / since(began);
    over.store(true, Ordering::Relaxed);
    while let Some(ended) = running.join_next().await {
        ended??;
    }
    drop(idle);
    Ok(Renewals {
        per_second,
        cores,
        pairs_per_second,
        cores_beside,
    })
}

/// Renews each of its leases once per period, evenly distributed.
async fn keep(
    mut lanes: Lanes,
    over: Arc<AtomicBool>,
    renewed: Arc<AtomicU64>,
) -> Result<(), Error> {
    let step = EVERY / u32::try_from(lanes.len())?;
    let mut turns = tokio::time::interval(step);
    for lane in 0.. {
        turns.tick().await;
        if over.load(Ordering::Relaxed) {
            break;
        }
        let count = lanes.len();
        lanes[lane % count].renew().await?;
        renewed.fetch_add(1, Ordering::Relaxed);
    }
    Ok(())
}

/// Kills a server and restarts it: the first token it grants, and how many milliseconds that took.
async fn killed(server: &Server, lock: &str) -> Result<(u64, f64), Error> {
    server.instance().kill();
    let began = now();
    server.instance().start_again();
    let token = first_grant(server, lock).await?;
    Ok((token, since(began) * 1e3))
}

/// Retries until a lock is granted.
async fn first_grant(server: &Server, lock: &str) -> Result<u64, Error> {
    let attempt = async || {
        let connection = server.open(TERMS).await?;
        let mut lane = connection.lane(lock).await?;
        lane.acquire().await
    };
    let give_up = now() + 600_000_000_000;
    loop {
        match attempt().await {
            Err(error) if now() > give_up => return Err(error),
            Err(_) => tokio::time::sleep(Duration::from_millis(2)).await,
            granted => return granted,
        }
    }
}
