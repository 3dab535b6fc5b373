//! Checks with clients that leave in every possible way: no lock may stay held without a holder.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::conformance::Subject;
use crate::conformance::report::{CheckOutcome, Report};
use crate::conformance::steps::{Checked, Context, Failure, ensure, run_checks, say, within};
use palisade_client::Client;
use palisade_client::service::{AcquireRequest, Acquired, Released};

pub(super) async fn checks<S: Subject>(context: &Context<S>, report: &mut Report) {
    run_checks!(
        context,
        report,
        [
            a_dropped_guard_frees_the_lock,
            a_cancelled_acquire_leaves_nothing,
            a_request_cut_off_anywhere_and_abandoned_leaves_nothing,
            an_abandoned_grant_is_given_back,
            a_wait_that_is_over_leaves_the_queue,
            a_dead_waiter_is_skipped,
            a_client_stopped_past_its_lease_knows_it_when_it_continues,
        ]
    );
}

async fn a_dropped_guard_frees_the_lock<S: Subject>(context: &Context<S>) -> Checked {
    let lock = context.lock("dropped");
    let hand = context.hand(&lock).await?;
    let client = context.client().await?;
    let wish = || {
        client
            .lock(&lock)
            .ttl(context.habit.long)
            .wait(context.habit.patience)
    };
    let lease = wish().acquire().await.map_err(say)?;
    let token = lease.token();
    let next = tokio::spawn(wish().acquire());
    hand.until("a waiter", |view| view.waiters == 1).await?;
    drop(lease);
    let next = next.await.map_err(say)?.map_err(say)?;
    ensure(next.token() > token, || {
        format!("token {} after {token}", next.token())
    })?;
    // The last handle may be dropped first: the release has already started.
    drop(client);
    drop(next);
    hand.until("a free lock", |view| view.holder.is_none())
        .await?;
    Ok(CheckOutcome::Passed)
}

async fn a_cancelled_acquire_leaves_nothing<S: Subject>(context: &Context<S>) -> Checked {
    let lock = context.lock("cancelled");
    let hand = context.hand(&lock).await?;
    let client = context.client().await?;
    let wish = || client.lock(&lock).ttl(context.habit.long);
    let holder = wish().acquire().await.map_err(say)?;
    let waiter = tokio::spawn(wish().wait(context.habit.patience).acquire());
    hand.until("a waiter", |view| view.waiters == 1).await?;
    waiter.abort();
    hand.until("an empty queue", |view| view.waiters == 0)
        .await?;
    holder.release().await.map_err(say)?;
    match wish().try_acquire().await.map_err(say)? {
        Some(lease) => lease.release().await.map(drop).map_err(say)?,
        None => return Err("the lock was granted to a client that had left".to_owned()),
    }
    Ok(CheckOutcome::Passed)
}

/// The attempt is dropped at many points: before it is sent, in flight, granted but not yet read.
async fn a_request_cut_off_anywhere_and_abandoned_leaves_nothing<S: Subject>(
    context: &Context<S>,
) -> Checked {
    const POINTS: u32 = 24;
    let hand = context.hand(&context.lock("cut-off")).await?;
    for point in 0..POINTS {
        let wish = hand.wish(context.long()?, context.habit.patience)?;
        let patience = Duration::from_micros(150) * point;
        let _ = tokio::time::timeout(patience, hand.service.acquire(wish.clone())).await;
        hand.service.abandon(wish.request).await.map_err(say)?;
        let next = hand.wish(context.long()?, Duration::ZERO)?;
        match hand.ask(&next).await? {
            Acquired::Granted(_) => {}
            other => return Err(format!("cut off after {patience:?}: {other:?}")),
        }
        hand.service.abandon(next.request).await.map_err(say)?;
        let shown = hand.show().await?;
        ensure(shown.holder.is_none() && shown.waiters == 0, || {
            format!("cut off after {patience:?}: {shown:?}")
        })?;
    }
    Ok(CheckOutcome::Passed)
}

async fn an_abandoned_grant_is_given_back<S: Subject>(context: &Context<S>) -> Checked {
    let lock = context.lock("abandoned");
    let (one, other) = (context.hand(&lock).await?, context.hand(&lock).await?);
    let wish = one.wish(context.long()?, Duration::ZERO)?;
    let held = one.hold(&wish).await?;
    // Over another connection, and twice, because a cleanup is repeated until it is acknowledged.
    for hand in [&other, &one] {
        hand.service.abandon(wish.request).await.map_err(say)?;
    }
    let next = other
        .hold(&other.wish(context.long()?, Duration::ZERO)?)
        .await?;
    ensure(next.token() > held.token(), || {
        format!("token {} after {}", next.token(), held.token())
    })?;
    one.service.abandon(wish.request).await.map_err(say)?;
    other.is_held_by(&next).await?;
    other.release(&next.grant).await?;
    Ok(CheckOutcome::Passed)
}

async fn a_wait_that_is_over_leaves_the_queue<S: Subject>(context: &Context<S>) -> Checked {
    let lock = context.lock("wait-over");
    let (one, other) = (context.hand(&lock).await?, context.hand(&lock).await?);
    let held = one
        .hold(&one.wish(context.long()?, Duration::ZERO)?)
        .await?;
    let wish = other.wish(context.long()?, Duration::from_millis(80))?;
    match within("a wait of 80 ms", context.habit.patience, other.ask(&wish)).await? {
        Acquired::Held(holder) if holder.token == held.token() => {}
        answer => return Err(format!("{answer:?}")),
    }
    let shown = one.show().await?;
    ensure(shown.waiters == 0, || {
        format!("the request still waits: {shown:?}")
    })?;
    one.release(&held.grant).await?;
    let shown = one.show().await?;
    ensure(shown.holder.is_none(), || {
        format!("the request was granted after its wait: {shown:?}")
    })?;
    Ok(CheckOutcome::Passed)
}

/// A client on its own runtime: when its thread stops or ends, all of the client's background work stops with
/// it, as if the process were stopped or killed.
struct SeparateClient {
    thread: std::thread::JoinHandle<Result<(), Failure>>,
    end: oneshot::Sender<()>,
}

impl SeparateClient {
    /// Sends one request that waits until it is killed.
    fn waiter<S: Subject>(context: &Context<S>, wish: AcquireRequest) -> SeparateClient {
        let subject = Arc::clone(&context.subject);
        let (end, ended) = oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = runtime()?;
            let result = runtime.block_on(async {
                let service = subject.connect().await.map_err(say)?;
                tokio::select! {
                    answer = service.acquire(wish) => Err(format!("the waiter got {answer:?}")),
                    _ = ended => Ok(()),
                }
            });
            // Background work that is still pending is not done.
            runtime.shutdown_background();
            result
        });
        SeparateClient { thread, end }
    }

    async fn kill(self) -> Result<(), Failure> {
        let _ = self.end.send(());
        join(self.thread).await
    }
}

fn runtime() -> Result<tokio::runtime::Runtime, Failure> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(say)
}

async fn join<T: Send + 'static>(
    thread: std::thread::JoinHandle<Result<T, Failure>>,
) -> Result<T, Failure> {
    tokio::task::spawn_blocking(|| thread.join())
        .await
        .map_err(say)?
        .map_err(|_| "the thread panicked".to_owned())?
}

async fn a_dead_waiter_is_skipped<S: Subject>(context: &Context<S>) -> Checked {
    let lock = context.lock("dead-waiter");
    let hand = context.hand(&lock).await?;
    let held = hand
        .hold(&hand.wish(context.long()?, Duration::ZERO)?)
        .await?;
    let dead = SeparateClient::waiter(
        context,
        hand.wish(context.brief()?, context.habit.patience)?,
    );
    hand.until("a waiter", |view| view.waiters == 1).await?;
    let (next, wish) = (
        hand.clone(),
        hand.wish(context.long()?, context.habit.patience)?,
    );
    let next = tokio::spawn(async move { next.hold(&wish).await });
    hand.until("a second waiter or only the second", |view| {
        view.waiters == 2
    })
    .await?;
    dead.kill().await?;
    hand.release(&held.grant).await?;
    let next = within("the living waiter's grant", context.habit.patience, async {
        next.await.map_err(say)?
    })
    .await?;
    ensure(next.token() > held.token(), || {
        format!("token {} after {}", next.token(), held.token())
    })?;
    hand.is_held_by(&next).await?;
    hand.release(&next.grant).await?;
    Ok(CheckOutcome::Passed)
}

/// The observations of a holder that was stopped past its lease.
struct Observations {
    believes: bool,
    released: Option<Released>,
}

async fn a_client_stopped_past_its_lease_knows_it_when_it_continues<S: Subject>(
    context: &Context<S>,
) -> Checked {
    let lock = context.lock("stopped");
    let hand = context.hand(&lock).await?;
    let (held, holding) = oneshot::channel();
    let (go_on, stopped) = mpsc::channel();
    let thread = {
        let (subject, lock, ttl) = (
            Arc::clone(&context.subject),
            lock.clone(),
            context.habit.brief,
        );
        std::thread::spawn(move || {
            runtime()?.block_on(async {
                let client = Client::new(subject.connect().await.map_err(say)?).map_err(say)?;
                let lease = client.lock(&lock).ttl(ttl).acquire().await.map_err(say)?;
                let _ = held.send(lease.token());
                // The thread is blocked, and so is every renewal.
                let _ = stopped.recv();
                let believes = lease.check().is_ok();
                let released = lease.release().await.ok();
                Ok(Observations { believes, released })
            })
        })
    };
    let token = holding.await.map_err(say)?;
    let next = hand
        .hold(&hand.wish(context.long()?, context.habit.patience)?)
        .await?;
    ensure(next.token() > token, || {
        format!("token {} after {token}", next.token())
    })?;
    let _ = go_on.send(());
    let awoken = join(thread).await?;
    ensure(!awoken.believes, || {
        format!("the stopped holder of token {token} still believes that it holds the lock")
    })?;
    ensure(awoken.released != Some(Released::Released), || {
        "its late release worked".to_owned()
    })?;
    hand.is_held_by(&next).await?;
    hand.release(&next.grant).await?;
    Ok(CheckOutcome::Passed)
}
