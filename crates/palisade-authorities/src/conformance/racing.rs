//! Checks with many clients that contend for one lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

use crate::conformance::report::{CheckOutcome, Report};
use crate::conformance::steps::{Checked, Context, Failure, ensure, run_checks, say, within};
use crate::conformance::{Habit, Subject};
use palisade_client::Client;
use palisade_client::Lease;
use palisade_client::service::Released;

pub(super) async fn checks<S: Subject>(context: &Context<S>, report: &mut Report) {
    run_checks!(
        context,
        report,
        [
            one_holder_at_a_time_and_tokens_rise_in_grant_order,
            waiters_are_granted_in_order,
            a_release_wakes_one_waiter,
        ]
    );
}

/// The state shared by racing clients: it stands for the resource, and sees every grant.
#[derive(Default)]
struct SharedResource {
    inside: AtomicBool,
    highest: AtomicU64,
}

impl SharedResource {
    fn enter(&self, token: u64) -> Result<(), Failure> {
        ensure(!self.inside.swap(true, Ordering::SeqCst), || {
            format!("two holders at once, the second with token {token}")
        })?;
        let before = self.highest.swap(token, Ordering::SeqCst);
        ensure(before < token, || {
            format!("token {token} was granted after token {before}")
        })
    }

    fn leave(&self) {
        self.inside.store(false, Ordering::SeqCst);
    }
}

async fn one_holder_at_a_time_and_tokens_rise_in_grant_order<S: Subject>(
    context: &Context<S>,
) -> Checked {
    let lock = context.lock("race");
    let resource = Arc::new(SharedResource::default());
    let mut racers = JoinSet::new();
    for _ in 0..context.habit.racers {
        let client = context.client().await?;
        racers.spawn(race(
            client,
            lock.clone(),
            context.habit,
            Arc::clone(&resource),
        ));
    }
    while let Some(racer) = racers.join_next().await {
        racer.map_err(say)??;
    }
    Ok(CheckOutcome::Passed)
}

async fn race(
    client: Client,
    lock: String,
    habit: Habit,
    resource: Arc<SharedResource>,
) -> Result<(), Failure> {
    for _ in 0..habit.grants {
        let wish = client.lock(&lock).ttl(habit.long).wait(habit.patience * 10);
        let lease = wish.acquire().await.map_err(say)?;
        resource.enter(lease.token().get())?;
        tokio::task::yield_now().await;
        lease.check().map_err(say)?;
        resource.leave();
        let released = lease.release().await.map_err(say)?;
        ensure(released == Released::Released, || {
            format!("the holder's release was answered with {released:?}")
        })?;
    }
    Ok(())
}

/// Clients that wait for a lock in a known order. Each reports its number and its token when it is granted,
/// and releases on request.
struct WaitingClients {
    order: mpsc::UnboundedReceiver<(u32, u64)>,
    go: Arc<Semaphore>,
    waiters: JoinSet<Result<(), Failure>>,
    patience: Duration,
}

impl WaitingClients {
    /// Creates a holder, and a number of waiters behind it.
    async fn behind<S: Subject>(
        context: &Context<S>,
        lock: &str,
        many: u32,
    ) -> Result<(Lease, WaitingClients), Failure> {
        let hand = context.hand(lock).await?;
        let wish = context.client().await?.lock(lock).ttl(context.habit.long);
        let holder = wish.acquire().await.map_err(say)?;
        let (granted, order) = mpsc::unbounded_channel();
        let (go, mut waiters) = (Arc::new(Semaphore::new(0)), JoinSet::new());
        for number in 0..many {
            let wish = context.client().await?.lock(lock);
            let wish = wish
                .ttl(context.habit.long)
                .wait(context.habit.patience * 2);
            let (granted, go) = (granted.clone(), Arc::clone(&go));
            waiters.spawn(async move {
                let lease = wish.acquire().await.map_err(say)?;
                granted.send((number, lease.token().get())).map_err(say)?;
                go.acquire().await.map_err(say)?.forget();
                lease.release().await.map(drop).map_err(say)
            });
            hand.until("one more waiter", |view| view.waiters > number)
                .await?;
        }
        let queue = WaitingClients {
            order,
            go,
            waiters,
            patience: context.habit.patience,
        };
        Ok((holder, queue))
    }

    /// Returns the number and the token of the next client that is granted.
    async fn next(&mut self) -> Result<(u32, u64), Failure> {
        let granted = async { self.order.recv().await.ok_or_else(|| "nobody".to_owned()) };
        within("the next waiter's grant", self.patience, granted).await
    }

    /// Lets the client that was granted last release the lock.
    fn release(&self) {
        self.go.add_permits(1);
    }

    async fn end(mut self) -> Result<(), Failure> {
        while let Some(waiter) = self.waiters.join_next().await {
            waiter.map_err(say)??;
        }
        Ok(())
    }
}

async fn waiters_are_granted_in_order<S: Subject>(context: &Context<S>) -> Checked {
    const WAITERS: u32 = 5;
    if !context.habit.fifo {
        return Ok(CheckOutcome::NotApplicable(
            "it promises no order of waiters",
        ));
    }
    let lock = context.lock("order");
    let (holder, mut queue) = WaitingClients::behind(context, &lock, WAITERS).await?;
    let tried = context.client().await?.lock(&lock).ttl(context.habit.long);
    let tried = tried.try_acquire().await;
    ensure(matches!(tried, Ok(None)), || {
        format!("a try that bypassed the queue was answered with {tried:?}")
    })?;
    let mut last = holder.token().get();
    holder.release().await.map_err(say)?;
    for turn in 0..WAITERS {
        let (number, token) = queue.next().await?;
        ensure(number == turn && token > last, || {
            format!("waiter {number} got token {token} after {last}; waiter {turn} was next")
        })?;
        last = token;
        queue.release();
    }
    queue.end().await?;
    Ok(CheckOutcome::Passed)
}

async fn a_release_wakes_one_waiter<S: Subject>(context: &Context<S>) -> Checked {
    const WAITERS: u32 = 8;
    let Some(before) = context.subject.wake_ups() else {
        return Ok(CheckOutcome::NotApplicable(
            "the authority itself grants, no waiter is woken to check",
        ));
    };
    let lock = context.lock("herd");
    let (holder, mut queue) = WaitingClients::behind(context, &lock, WAITERS).await?;
    holder.release().await.map_err(say)?;
    for _ in 0..WAITERS {
        queue.next().await?;
        queue.release();
    }
    queue.end().await?;
    let woken = context.subject.wake_ups().unwrap_or(0) - before;
    ensure(woken == u64::from(WAITERS), || {
        format!("{WAITERS} releases with a waiter in the queue woke {woken} waiters")
    })?;
    Ok(CheckOutcome::Passed)
}
