//! Two concurrent holders: the forced schedule of the lost update, and races over many rounds.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::task::Poll;

use crate::conformance::Subject;
use crate::conformance::steps::{Answer, Failure, Probe};
use crate::fence::Fence;

/// The result of the forced schedule over many rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LateWrites {
    /// The number of rounds.
    pub rounds: u64,
    /// The number of rounds in which an acknowledged write was lost.
    pub lost: u64,
}

/// Runs the schedule of the lost update (docs/promise/rules.md) on one new resource, round after round: the old
/// holder's write arrives between the new holder's read and its write.
///
/// The claim fence loses no write. The textbook fence loses one in each round: the late write is acknowledged
/// and then overwritten.
///
/// # Errors
/// The reason why a round failed in another way.
pub async fn late_writes<S: Subject>(subject: &S, rounds: u64) -> Result<LateWrites, String> {
    let resource = Probe::fresh(subject, "late-writes").await?;
    let mut seen = LateWrites { rounds, lost: 0 };
    for round in 0..rounds {
        seen.lost += late_write_once(&resource, 2 * round + 1).await?;
    }
    Ok(seen)
}

/// Runs one round: tokens `old` and `old + 1` both add one to a counter. Returns how many acknowledged
/// additions are missing afterwards.
pub(super) async fn late_write_once<F: Fence>(r: &Probe<F>, old: u64) -> Result<u64, Failure> {
    let new = old + 1;
    let before = start(r, old)
        .await?
        .ok_or("the older holder came first and was rejected")?;
    // The old holder is paused here, its lease expires, and its write is still in flight.
    let start_of_new = start(r, new)
        .await?
        .ok_or("the newer holder was rejected")?;
    let late = adds(r, old, before).await?;
    let fresh = adds(r, new, start_of_new).await?;
    let after = counter(&r.read(new).await?)?.ok_or("the newer holder was rejected")?;
    let acknowledged = before + u64::from(late) + u64::from(fresh);
    Ok(acknowledged.saturating_sub(after))
}

/// Pairs of holders race over one counter, each round under two new tokens. Every acknowledged addition must
/// be in the counter at the end.
pub(super) async fn racing_holders<F: Fence>(r: &Probe<F>, rounds: u64) -> Result<(), Failure> {
    let mut random = Xorshift(rounds | 1);
    let mut acknowledged = 0;
    for round in 0..rounds {
        let (a, b) = (2 * round + 1, 2 * round + 2);
        let turns = both(turn(r, a, random.next()), turn(r, b, random.next())).await;
        acknowledged += u64::from(turns.0?) + u64::from(turns.1?);
    }
    let last = 2 * rounds + 1;
    let counted = counter(&r.read(last).await?)?.ok_or("the last holder was rejected")?;
    if counted == acknowledged && acknowledged >= rounds {
        Ok(())
    } else {
        Err(format!(
            "{acknowledged} additions acknowledged, {counted} in the counter"
        ))
    }
}

/// Runs one holder's turn: claim, read, pause, write. Returns whether its addition was acknowledged.
async fn turn<F: Fence>(r: &Probe<F>, token: u64, pauses: u64) -> Result<bool, Failure> {
    pause(pauses & 3).await;
    let Some(before) = start(r, token).await? else {
        return Ok(false);
    };
    pause(pauses >> 2 & 3).await;
    adds(r, token, before).await
}

/// Claims and then reads the counter; `None` if either was rejected.
pub(super) async fn start<F: Fence>(r: &Probe<F>, token: u64) -> Result<Option<u64>, Failure> {
    if r.claim(token).await?.is_err() {
        return Ok(None);
    }
    pause(1).await;
    counter(&r.read(token).await?)
}

pub(super) async fn adds<F: Fence>(r: &Probe<F>, token: u64, before: u64) -> Result<bool, Failure> {
    Ok(r.put(token, &(before + 1).to_string()).await?.is_ok())
}

pub(super) fn counter(answer: &Answer<Option<Vec<u8>>>) -> Result<Option<u64>, Failure> {
    let Ok(read) = answer else {
        return Ok(None);
    };
    let Some(bytes) = &read.value else {
        return Ok(Some(0));
    };
    let text = std::str::from_utf8(bytes).map_err(|error| error.to_string())?;
    text.parse()
        .map(Some)
        .map_err(|_| format!("the counter holds {text:?}"))
}

/// Runs two holders concurrently in one task: every `await` is a point where the other may continue.
pub(super) async fn both<A, B>(a: impl Future<Output = A>, b: impl Future<Output = B>) -> (A, B) {
    let (mut a, mut b) = (pin!(a), pin!(b));
    let (mut left, mut right) = (None, None);
    poll_fn(|cx| {
        if left.is_none()
            && let Poll::Ready(done) = a.as_mut().poll(cx)
        {
            left = Some(done);
        }
        if right.is_none()
            && let Poll::Ready(done) = b.as_mut().poll(cx)
        {
            right = Some(done);
        }
        match (left.take(), right.take()) {
            (Some(a), Some(b)) => Poll::Ready((a, b)),
            (a, b) => {
                (left, right) = (a, b);
                Poll::Pending
            }
        }
    })
    .await
}

/// Yields to the other holder this many times.
async fn pause(times: u64) {
    let mut left = times;
    poll_fn(|cx| {
        if left == 0 {
            return Poll::Ready(());
        }
        left -= 1;
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// The pseudo-random source of the pauses; it is the same in every run.
struct Xorshift(u64);

impl Xorshift {
    /// Marsaglia 2003, "Xorshift RNGs".
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }
}
