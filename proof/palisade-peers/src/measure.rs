//! The measurements, the same for every kind of lane.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use rustix::time::{ClockId, clock_gettime};
use tokio::task::JoinSet;

use crate::lane::{Error, Lane};

/// Pairs of acquire and release per second over all lanes; each lane has its own lock.
pub(crate) async fn pairs(lanes: Vec<Box<dyn Lane>>, duration: Duration) -> Result<f64, Error> {
    let over = Arc::new(AtomicBool::new(false));
    let begin = now();
    let mut running = JoinSet::new();
    for mut lane in lanes {
        let over = Arc::clone(&over);
        running.spawn(async move {
            let mut tokens = Vec::new();
            while !over.load(Ordering::Relaxed) {
                tokens.push(lane.acquire().await?);
                lane.release().await?;
            }
            Ok::<_, Error>(tokens)
        });
    }
    tokio::time::sleep(duration).await;
    over.store(true, Ordering::Relaxed);
    let mut all = HashSet::new();
    let mut count = 0;
    while let Some(done) = running.join_next().await {
        let tokens = done??;
        if !tokens.is_sorted_by(|a, b| a < b) {
            return Err("a lane's tokens did not rise".into());
        }
        count += tokens.len();
        all.extend(tokens);
    }
    let elapsed = now() - begin;
    if all.len() != count {
        return Err("a token was issued twice".into());
    }
    Ok(count as f64 / (elapsed as f64 / 1e9))
}

/// The median time in microseconds from the call of a release to the next holder's grant, for two lanes that alternate
/// on one lock.
pub(crate) async fn hand_off(lanes: [Box<dyn Lane>; 2], hand_overs: u32) -> Result<f64, Error> {
    let shared = Arc::new(Turns {
        left: AtomicU64::new(u64::from(hand_overs)),
        last: AtomicU64::new(0),
        released_at: AtomicU64::new(0),
    });
    let mut running = JoinSet::new();
    for lane in lanes {
        running.spawn(take_turns(lane, Arc::clone(&shared)));
    }
    let mut all = Vec::new();
    while let Some(done) = running.join_next().await {
        all.extend(done??);
    }
    all.sort_unstable();
    let middle = all.get(all.len() / 2).ok_or("no lock was handed over")?;
    Ok(*middle as f64 / 1e3)
}

struct Turns {
    left: AtomicU64,
    last: AtomicU64,
    released_at: AtomicU64,
}

/// Holds the lock for a while, so that the other lane can queue.
async fn take_turns(mut lane: Box<dyn Lane>, turns: Arc<Turns>) -> Result<Vec<u64>, Error> {
    let mut took = Vec::new();
    while turns.left.load(Ordering::SeqCst) > 0 {
        let token = lane.acquire().await?;
        let seen = now();
        let released = turns.released_at.swap(0, Ordering::SeqCst);
        if turns.last.swap(token, Ordering::SeqCst) >= token {
            return Err("tokens did not rise from holder to holder".into());
        }
        if released > 0 {
            took.push(seen.saturating_sub(released));
        }
        let _ = turns
            .left
            .try_update(Ordering::SeqCst, Ordering::SeqCst, |left| {
                left.checked_sub(1)
            });
        tokio::time::sleep(HOLD).await;
        turns.released_at.store(now(), Ordering::SeqCst);
        lane.release().await?;
    }
    Ok(took)
}

/// Long enough for the other lane to queue.
const HOLD: Duration = Duration::from_millis(5);

pub(crate) fn now() -> u64 {
    let time = clock_gettime(ClockId::Monotonic);
    time.tv_sec.unsigned_abs() * 1_000_000_000 + time.tv_nsec.unsigned_abs()
}

/// The lower median for an even number of figures.
pub(crate) fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    let middle = figures.len().saturating_sub(1) / 2;
    figures.get(middle).copied().unwrap_or(f64::NAN)
}
