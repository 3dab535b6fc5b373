//! One measurement: lanes at work, and their cost to the server.
//!
//! ```text
//!   open connections, lanes ─► warm up ─► measure ─► let all lanes finish
//!                                │           │
//!                    every grant's token is compared with the lock's previous one
//! ```

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use hdrhistogram::Histogram;
use tokio::task::JoinSet;

use super::drivers::{Connection, Terms};
use super::system::Server;
use super::workload::{Work, Workload};
use super::{open_loop, process};
use crate::lane::{Error, Renewing};
use crate::measure::now;

/// The durations of a measurement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Window {
    pub(crate) warm_up: Duration,
    pub(crate) measure: Duration,
}

/// The result of a measurement.
#[derive(Clone, Debug)]
pub(crate) struct Sample {
    pub(crate) per_second: f64,
    /// Microseconds.
    pub(crate) p50: f64,
    pub(crate) p99: f64,
    pub(crate) p999: f64,
    /// Microseconds of the server's processor time for each operation.
    pub(crate) cpu: f64,
    /// Operations of the whole run, including those outside the measured time.
    pub(crate) operations: u64,
}

/// Lanes that are ready, with their connections.
pub(crate) struct Load {
    work: Work,
    pid: u32,
    lanes: Vec<Contender>,
    connections: Vec<Box<dyn Connection>>,
}

/// A lane and the lock that it shares with others.
pub(super) struct Contender {
    pub(super) lane: Box<dyn Renewing>,
    pub(super) lock: Arc<Lock>,
}

/// The state of a lock that its holders share.
#[derive(Default)]
pub(super) struct Lock {
    last: AtomicU64,
    released_at: AtomicU64,
    released_by: AtomicUsize,
}

impl Lock {
    /// Called by each holder with its token.
    ///
    /// # Errors
    /// The token is not above the last holder's.
    pub(super) fn granted(&self, token: u64) -> Result<(), Error> {
        let last = self.last.swap(token, Ordering::SeqCst);
        if token > last {
            return Ok(());
        }
        Err(format!("token {token} was granted after {last}").into())
    }
}

/// The work of one lane, or of all.
pub(super) struct Tally {
    pub(super) latency: Histogram<u64>,
    /// Operations in the measured time.
    pub(super) measured: u64,
    pub(super) operations: u64,
}

impl Tally {
    pub(super) fn new() -> Result<Tally, Error> {
        let mut latency = Histogram::new(3)?;
        latency.auto(true);
        Ok(Tally {
            latency,
            measured: 0,
            operations: 0,
        })
    }

    pub(super) fn add(&mut self, other: &Tally) -> Result<(), Error> {
        self.latency.add(&other.latency)?;
        self.measured += other.measured;
        self.operations += other.operations;
        Ok(())
    }

    pub(super) fn sample(&self, seconds: f64, cpu_seconds: f64) -> Sample {
        let micros = |quantile| self.latency.value_at_quantile(quantile) as f64 / 1e3;
        Sample {
            per_second: self.measured as f64 / seconds,
            p50: micros(0.5),
            p99: micros(0.99),
            p999: micros(0.999),
            cpu: cpu_seconds * 1e6 / self.measured.max(1) as f64,
            operations: self.operations,
        }
    }
}

impl Load {
    /// Opens the connections and lanes of a workload. `name` is not used for other locks.
    pub(crate) async fn open(
        server: &Server,
        workload: &Workload,
        name: &str,
    ) -> Result<Load, Error> {
        let terms = Terms {
            contended: workload.contended(),
            alone: workload.lanes == 1,
            ttl_ms: 30_000,
        };
        let count = match workload.work {
            Work::Contended { locks, .. } => locks,
            _ => workload.connections * workload.lanes,
        };
        let locks: Vec<Arc<Lock>> = (0..count).map(|_| Arc::default()).collect();
        let (mut lanes, mut connections) = (Vec::new(), Vec::new());
        for _ in 0..workload.connections {
            let connection = server.open(terms).await?;
            for _ in 0..workload.lanes {
                let number = lanes.len() % count;
                lanes.push(Contender {
                    lane: connection.lane(&format!("{name}/{number}")).await?,
                    lock: Arc::clone(&locks[number]),
                });
            }
            connections.push(connection);
        }
        Ok(Load {
            work: workload.work,
            pid: server.instance().pid(),
            lanes,
            connections,
        })
    }

    pub(crate) async fn run(self, window: Window) -> Result<Sample, Error> {
        let Load {
            work,
            pid,
            lanes,
            connections,
        } = self;
        let sample = match work {
            Work::Open { per_second } => open_loop::run(lanes, per_second, window, pid).await,
            work => closed(lanes, work, window, pid).await,
        };
        drop(connections);
        sample
    }
}

const WARMING: u8 = 0;
const MEASURING: u8 = 1;
const DONE: u8 = 2;

/// The state that all lanes of a run share.
struct Shared {
    phase: AtomicU8,
    hold: Duration,
    contended: bool,
    /// Whether a latency was recorded.
    measured: AtomicBool,
}

impl Shared {
    fn record(&self, tally: &mut Tally, nanos: u64) -> Result<(), Error> {
        if !self.measured.load(Ordering::Relaxed) {
            self.measured.store(true, Ordering::Relaxed);
        }
        Ok(tally.latency.record(nanos)?)
    }

    fn is(&self, phase: u8) -> bool {
        self.phase.load(Ordering::Relaxed) == phase
    }
}

/// Each lane begins its next operation when the previous one is answered.
async fn closed(
    lanes: Vec<Contender>,
    work: Work,
    window: Window,
    pid: u32,
) -> Result<Sample, Error> {
    let hold_ms = match work {
        Work::Contended { hold_ms, .. } => hold_ms,
        _ => 0,
    };
    let shared = Arc::new(Shared {
        phase: AtomicU8::new(WARMING),
        hold: Duration::from_millis(hold_ms),
        contended: matches!(work, Work::Contended { .. }),
        measured: AtomicBool::new(false),
    });
    let lanes = match work {
        Work::Renewals => acquired(lanes).await?,
        _ => lanes,
    };
    let mut running = JoinSet::new();
    for (number, contender) in lanes.into_iter().enumerate() {
        let shared = Arc::clone(&shared);
        match work {
            Work::Renewals => running.spawn(renew(contender, shared)),
            _ => running.spawn(take_and_give(contender, number, shared)),
        };
    }
    tokio::time::sleep(window.warm_up).await;
    let (begin, cpu) = (now(), process::cpu(pid));
    shared.phase.store(MEASURING, Ordering::Relaxed);
    tokio::time::sleep(window.measure).await;
    // On a busy machine a short window may pass before any answer.
    let mut tally = Tally::new()?;
    while !shared.measured.load(Ordering::Relaxed) {
        match running.try_join_next() {
            // Only a failure ends a lane this early.
            Some(ended) => tally.add(&ended??)?,
            None => tokio::time::sleep(Duration::from_millis(1)).await,
        }
    }
    shared.phase.store(DONE, Ordering::Relaxed);
    let seconds = (now() - begin) as f64 / 1e9;
    let cpu = process::cpu(pid) - cpu;
    while let Some(ended) = running.join_next().await {
        tally.add(&ended??)?;
    }
    Ok(tally.sample(seconds, cpu))
}

/// The lanes after each has acquired its lock.
async fn acquired(lanes: Vec<Contender>) -> Result<Vec<Contender>, Error> {
    let mut running = JoinSet::new();
    for mut contender in lanes {
        running.spawn(async move {
            let token = contender.lane.acquire().await?;
            contender.lock.granted(token)?;
            Ok::<_, Error>(contender)
        });
    }
    let mut lanes = Vec::new();
    while let Some(ended) = running.join_next().await {
        lanes.push(ended??);
    }
    Ok(lanes)
}

async fn take_and_give(
    mut contender: Contender,
    number: usize,
    shared: Arc<Shared>,
) -> Result<Tally, Error> {
    let mut tally = Tally::new()?;
    let lock = Arc::clone(&contender.lock);
    while !shared.is(DONE) {
        let sent = now();
        let token = contender.lane.acquire().await?;
        let seen = now();
        lock.granted(token)?;
        tally.operations += 1;
        if shared.is(MEASURING) {
            tally.measured += 1;
            if !shared.contended {
                shared.record(&mut tally, seen - sent)?;
            }
            let released = lock.released_at.load(Ordering::SeqCst);
            // A hand-off counts only if this lane was already waiting when the other one released.
            let by_another = lock.released_by.load(Ordering::SeqCst) != number;
            if shared.contended && by_another && sent < released {
                shared.record(&mut tally, seen.saturating_sub(released))?;
            }
        }
        if !shared.hold.is_zero() {
            tokio::time::sleep(shared.hold).await;
        }
        if shared.contended {
            lock.released_by.store(number, Ordering::SeqCst);
            lock.released_at.store(now(), Ordering::SeqCst);
        }
        contender.lane.release().await?;
    }
    Ok(tally)
}

async fn renew(mut contender: Contender, shared: Arc<Shared>) -> Result<Tally, Error> {
    let mut tally = Tally::new()?;
    while !shared.is(DONE) {
        let sent = now();
        contender.lane.renew().await?;
        tally.operations += 1;
        if shared.is(MEASURING) {
            tally.measured += 1;
            shared.record(&mut tally, now() - sent)?;
        }
    }
    contender.lane.release().await?;
    Ok(tally)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lane::{Lane, LaneFuture};

    /// Grants rising tokens, but repeats the previous one now and then.
    struct Repeats(u64, u64);

    impl Lane for Repeats {
        fn acquire(&mut self) -> LaneFuture<'_, u64> {
            Box::pin(async {
                tokio::task::yield_now().await;
                self.0 += 1;
                Ok(self.0 - u64::from(self.0.is_multiple_of(self.1)))
            })
        }

        fn release(&mut self) -> LaneFuture<'_, ()> {
            Box::pin(async { Ok(()) })
        }
    }

    impl Renewing for Repeats {
        fn renew(&mut self) -> LaneFuture<'_, ()> {
            Box::pin(async { Ok(()) })
        }
    }

    async fn measure(lane: Repeats) -> Result<Sample, Error> {
        let contender = Contender {
            lane: Box::new(lane),
            lock: Arc::default(),
        };
        let window = Window {
            warm_up: Duration::from_millis(1),
            measure: Duration::from_millis(20),
        };
        closed(vec![contender], Work::Pairs, window, std::process::id()).await
    }

    #[tokio::test]
    async fn a_token_that_does_not_rise_ends_the_run() {
        assert!(measure(Repeats(0, u64::MAX)).await.is_ok());
        let error = measure(Repeats(0, 10)).await.unwrap_err().to_string();
        assert_eq!(error, "token 9 was granted after 9");
    }
}
