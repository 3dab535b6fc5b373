//! A fixed rate, independent of the server.
//!
//! ```text
//!   pacer (a thread) ── the instant an acquisition is due ──► lanes in turn ─► acquire ─► release
//! ```
//!
//! Latency counts from the instant an acquisition was due, not from when a lane started it: a server that stalls pays
//! for all acquisitions that were due meanwhile.
//!
//! [`load`](super::load) and this module import each other: one of its workloads is this, and is counted as the others are.

use rustix::thread::clock_nanosleep_relative;
use rustix::time::{ClockId, Timespec};
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinSet;

use super::load::{Contender, Sample, Tally, Window};
use super::process;
use crate::lane::Error;
use crate::measure::now;

pub(super) async fn run(
    lanes: Vec<Contender>,
    per_second: u64,
    window: Window,
    pid: u32,
) -> Result<Sample, Error> {
    let begin = now();
    let nanos = |duration: std::time::Duration| u64::try_from(duration.as_nanos());
    let measure_from = begin + nanos(window.warm_up)?;
    let end = measure_from + nanos(window.measure)?;
    let mut running = JoinSet::new();
    let mut senders = Vec::new();
    for contender in lanes {
        let (sender, due) = unbounded_channel();
        senders.push(sender);
        running.spawn(work(contender, due, measure_from));
    }
    let cpu = process::cpu(pid);
    let pacer = std::thread::spawn(move || pace(&senders, begin, end, 1_000_000_000 / per_second));
    let mut tally = Tally::new()?;
    while let Some(ended) = running.join_next().await {
        tally.add(&ended??)?;
    }
    pacer.join().map_err(|_| "the pacer panicked")?;
    // A server that did not keep up was still working after the last due instant.
    let seconds = (now().max(end) - begin) as f64 / 1e9;
    let measured = tally.measured as f64 / tally.operations.max(1) as f64;
    let cpu = process::cpu(pid) - cpu;
    Ok(tally.sample(seconds * measured, cpu * measured))
}

/// Ends with its senders dropped, which ends the lanes once they have finished.
fn pace(lanes: &[UnboundedSender<u64>], begin: u64, end: u64, every: u64) {
    // By default the kernel rounds sleeps up by 50 microseconds.
    let _ = rustix::thread::set_current_timer_slack(std::num::NonZero::new(1));
    for (due, lane) in (begin..end)
        .step_by(usize::try_from(every).unwrap_or(usize::MAX))
        .zip(lanes.iter().cycle())
    {
        if let Some(left) = due.checked_sub(now()) {
            let left = Timespec {
                tv_sec: 0,
                tv_nsec: left.min(999_999_999) as _,
            };
            // A signal would only wake it a little early.
            let _ = clock_nanosleep_relative(ClockId::Monotonic, &left);
        }
        if lane.send(due).is_err() {
            return;
        }
    }
}

async fn work(
    mut contender: Contender,
    mut due: UnboundedReceiver<u64>,
    measure_from: u64,
) -> Result<Tally, Error> {
    let mut tally = Tally::new()?;
    while let Some(due) = due.recv().await {
        let token = contender.lane.acquire().await?;
        let seen = now();
        contender.lock.granted(token)?;
        tally.operations += 1;
        if due >= measure_from {
            tally.measured += 1;
            tally.latency.record(seen.saturating_sub(due))?;
        }
        contender.lane.release().await?;
    }
    Ok(tally)
}
