//! Writers that stop wherever they wait: frozen for a while, or forever.
//!
//! ```text
//!   old    claim ─ read ─ write ···k waits···▓▓▓ frozen ▓▓▓········ continues, or never
//!   new                               claim ─ read ─ write
//! ```
//!
//! A step of a resource ends where its future waits, so a freeze after every wait covers every point between
//! a check and its effect. This finds a fence whose check and effect are two steps (rule F1); races rarely
//! hit the gap.

use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use std::time::{Duration, Instant};

use crate::conformance::race::{adds, both, counter, start};
use crate::conformance::steps::{Failure, Probe, admitted, reads};
use crate::conformance::{Habit, Subject};
use crate::fence::{Edit, Fence};

/// Freezes the old holder's write after a number of waits. The new holder's turn comes before the write
/// continues, or around it. Every acknowledged addition must be present afterwards.
pub(super) async fn a_frozen_writer_loses_nothing<S: Subject>(s: &S) -> Result<(), Failure> {
    let r = Probe::fresh(s, "frozen").await?;
    let mut token = 0;
    for waits in 0..MOST_WAITS {
        let mut frozen = false;
        for order in [Order::NewIsDone, Order::NewHasRead] {
            token += 2;
            frozen |= freeze_once(&r, token - 1, waits, order)
                .await
                .map_err(|saw| format!("frozen after {waits} waits, {order:?}: {saw}"))?;
        }
        if !frozen {
            return Ok(());
        }
    }
    Ok(())
}

/// How far the new holder is when the old one continues.
#[derive(Clone, Copy, Debug)]
enum Order {
    NewIsDone,
    NewHasRead,
}

/// Freezes the write once; returns whether it was still in flight at that moment.
async fn freeze_once<F: Fence>(
    r: &Probe<F>,
    old: u64,
    waits: u32,
    order: Order,
) -> Result<bool, Failure> {
    let new = old + 1;
    #[expect(
        clippy::disallowed_methods,
        reason = "how fast the machine is now, no clock of a model knows"
    )]
    let began = Instant::now();
    let before = start(r, old)
        .await?
        .ok_or("the older holder came first and was rejected")?;
    let patience = LEAST_PATIENCE.max(began.elapsed().saturating_mul(TURNS_OF_PATIENCE));
    let mut late = Stepped::new(adds(r, old, before));
    let early = late.advance(waits).await;
    let frozen = early.is_none();
    let goes_on = async {
        match early {
            Some(done) => done,
            None => late.finish().await,
        }
    };
    let newer = "the newer holder was rejected";
    let (late, fresh) = match order {
        Order::NewIsDone => {
            let turn = async {
                let seen = start(r, new).await?.ok_or(newer)?;
                adds(r, new, seen).await
            };
            first(turn, goes_on, patience).await
        }
        Order::NewHasRead => {
            let (late, seen) = first(start(r, new), goes_on, patience).await;
            let seen = seen?.ok_or(newer)?;
            (late, adds(r, new, seen).await)
        }
    };
    let acknowledged = before + u64::from(late?) + u64::from(fresh?);
    match counter(&r.read(new).await?)?.ok_or(newer)? {
        after if after >= acknowledged => Ok(frozen),
        after => Err(format!(
            "{acknowledged} additions acknowledged, {after} in the counter"
        )),
    }
}

/// The old holder dies during its write: the resource has the state before or after that write, and the new
/// holder's write stays.
pub(super) async fn a_writer_that_dies_leaves_all_or_nothing<S: Subject>(
    s: &S,
) -> Result<(), Failure> {
    let r = Probe::fresh(s, "dead").await?;
    for waits in 0..MOST_WAITS {
        let first = 3 * u64::from(waits) + 1;
        let (old, new) = (first + 1, first + 2);
        admitted(r.put(first, "before").await?)?;
        admitted(r.claim(old).await?)?;
        let text = "a longer text than before".repeat(40);
        let mut write = Stepped::new(r.put(old, &text));
        let done = write.advance(waits).await.is_some();
        drop(write);
        admitted(r.claim(new).await?)?;
        let seen = admitted(r.read(new).await?)?;
        let whole = [b"before".as_slice(), text.as_bytes()];
        if !whole.contains(&seen.as_deref().unwrap_or_default()) {
            return Err(format!("torn after {waits} waits"));
        }
        admitted(r.put(new, "after").await?)?;
        reads(r.read(new).await?, Some("after"))
            .map_err(|saw| format!("died after {waits} waits: {saw}"))?;
        if done {
            return Ok(());
        }
    }
    Ok(())
}

/// A numbered append whose answer was lost is sent again: it is applied once (rule F5).
pub(super) async fn a_write_given_up_and_repeated_is_there_once<S: Subject>(
    s: &S,
    habit: Habit,
) -> Result<(), Failure> {
    let r = Probe::fresh(s, "given-up").await?;
    let mut expect = String::new();
    for waits in 0..MOST_WAITS {
        let (token, piece) = (u64::from(waits) + 1, format!("{waits};"));
        expect = if habit.appends {
            expect + &piece
        } else {
            piece.clone()
        };
        let change = || {
            if habit.appends {
                Edit::Append(piece.as_bytes())
            } else {
                Edit::Put(piece.as_bytes())
            }
        };
        let mut write = Stepped::new(r.numbered(token, 1, change()));
        let done = write.advance(waits).await.is_some();
        drop(write);
        match r.numbered(token, 1, change()).await? {
            Ok(_) => {}
            Err(reject) => return Err(format!("the repeat was rejected: {reject}")),
        }
        reads(r.read(token).await?, Some(&expect))
            .map_err(|saw| format!("given up after {waits} waits: {saw}"))?;
        if done {
            return Ok(());
        }
    }
    Ok(())
}

/// A future that is polled only a given number of times.
struct Stepped<'a, T>(Pin<Box<dyn Future<Output = T> + Send + 'a>>);

impl<'a, T> Stepped<'a, T> {
    fn new(future: impl Future<Output = T> + Send + 'a) -> Stepped<'a, T> {
        Stepped(Box::pin(future))
    }

    /// Continues until the future has waited this often; returns its output if it ends earlier.
    async fn advance(&mut self, waits: u32) -> Option<T> {
        let mut left = waits;
        poll_fn(|cx| {
            if left == 0 {
                return Poll::Ready(None);
            }
            match self.0.as_mut().poll(cx) {
                Poll::Ready(done) => Poll::Ready(Some(done)),
                Poll::Pending => {
                    left -= 1;
                    match left {
                        0 => Poll::Ready(None),
                        _ => Poll::Pending,
                    }
                }
            }
        })
        .await
    }

    async fn finish(self) -> T {
        self.0.await
    }
}

/// Runs the newer holder's part first, and the older one's after it, or concurrently if the older one blocks
/// it (a transaction that holds the row), which is assumed after `patience`. Returns the older one's answer first.
async fn first<N, O>(
    new: impl Future<Output = N>,
    old: impl Future<Output = O>,
    patience: Duration,
) -> (O, N) {
    let mut new = pin!(new);
    let alarm = Arc::new(AtomicBool::new(false));
    let mut set = false;
    let alone = poll_fn(|cx| {
        if let Poll::Ready(done) = new.as_mut().poll(cx) {
            return Poll::Ready(Some(done));
        }
        if alarm.load(Ordering::Acquire) {
            return Poll::Ready(None);
        }
        if !set {
            set = true;
            let (alarm, waker) = (alarm.clone(), cx.waker().clone());
            std::thread::spawn(move || {
                // A lock at the resource is not visible here.
                std::thread::park_timeout(patience);
                alarm.store(true, Ordering::Release);
                waker.wake();
            });
        }
        Poll::Pending
    })
    .await;
    match alone {
        Some(done) => (old.await, done),
        None => both(old, new).await,
    }
}

/// Writes that wait more often than this are not followed further.
const MOST_WAITS: u32 = 64;

/// After this time, or after so many times the duration of the older holder's own claim and read, the newer holder is
/// assumed to wait for the frozen one. It decides only which schedule runs, never which result is right; but a newer
/// holder that is slow and not blocked, on a busy machine, would let a fence pass whose check and effect are two steps.
const LEAST_PATIENCE: Duration = Duration::from_millis(150);
const TURNS_OF_PATIENCE: u32 = 16;
