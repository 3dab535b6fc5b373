//! Many clients after one lock.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;

use crate::client::Client;
use crate::conformance::report::{Finding, Report};
use crate::conformance::steps::{Checked, Place, Saw, ensure, run_checks, say, within};
use crate::conformance::{Habit, Subject};
use crate::lease::Lease;
use crate::service::Released;

pub(super) async fn checks<S: Subject>(place: &Place<S>, report: &mut Report) {
    run_checks!(
        place,
        report,
        [
            one_holder_at_a_time_and_tokens_rise_in_grant_order,
            waiters_are_granted_in_order,
            a_release_wakes_one_waiter,
        ]
    );
}

/// What racing clients share: it stands for the resource, and sees every grant.
#[derive(Default)]
struct Resource {
    inside: AtomicBool,
    highest: AtomicU64,
}

impl Resource {
    fn enter(&self, token: u64) -> Result<(), Saw> {
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
    place: &Place<S>,
) -> Checked {
    let lock = place.lock("race");
    let resource = Arc::new(Resource::default());
    let mut racers = JoinSet::new();
    for _ in 0..place.habit.racers {
        let client = place.client().await?;
        racers.spawn(race(
            client,
            lock.clone(),
            place.habit,
            Arc::clone(&resource),
        ));
    }
    while let Some(racer) = racers.join_next().await {
        racer.map_err(say)??;
    }
    Ok(Finding::Passed)
}

async fn race(
    client: Client,
    lock: String,
    habit: Habit,
    resource: Arc<Resource>,
) -> Result<(), Saw> {
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

/// Clients that wait for a lock one behind the other; each says its number and its token when it is
/// granted, and releases when told.
struct Queue {
    order: mpsc::UnboundedReceiver<(u32, u64)>,
    go: Arc<Semaphore>,
    waiters: JoinSet<Result<(), Saw>>,
    patience: Duration,
}

impl Queue {
    /// A holder, and so many behind it.
    async fn behind<S: Subject>(
        place: &Place<S>,
        lock: &str,
        many: u32,
    ) -> Result<(Lease, Queue), Saw> {
        let hand = place.hand(lock).await?;
        let wish = place.client().await?.lock(lock).ttl(place.habit.long);
        let holder = wish.acquire().await.map_err(say)?;
        let (granted, order) = mpsc::unbounded_channel();
        let (go, mut waiters) = (Arc::new(Semaphore::new(0)), JoinSet::new());
        for number in 0..many {
            let wish = place.client().await?.lock(lock);
            let wish = wish.ttl(place.habit.long).wait(place.habit.patience * 2);
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
        let queue = Queue {
            order,
            go,
            waiters,
            patience: place.habit.patience,
        };
        Ok((holder, queue))
    }

    /// Who is granted next, with which token.
    async fn next(&mut self) -> Result<(u32, u64), Saw> {
        let granted = async { self.order.recv().await.ok_or_else(|| "nobody".to_owned()) };
        within("the next waiter's grant", self.patience, granted).await
    }

    /// Lets the holder that was granted last go.
    fn release(&self) {
        self.go.add_permits(1);
    }

    async fn end(mut self) -> Result<(), Saw> {
        while let Some(waiter) = self.waiters.join_next().await {
            waiter.map_err(say)??;
        }
        Ok(())
    }
}

async fn waiters_are_granted_in_order<S: Subject>(place: &Place<S>) -> Checked {
    const WAITERS: u32 = 5;
    if !place.habit.fifo {
        return Ok(Finding::NotApplicable("it promises no order of waiters"));
    }
    let lock = place.lock("order");
    let (holder, mut queue) = Queue::behind(place, &lock, WAITERS).await?;
    let tried = place.client().await?.lock(&lock).ttl(place.habit.long);
    let tried = tried.try_acquire().await;
    ensure(matches!(tried, Ok(None)), || {
        format!("a try past the queue was answered with {tried:?}")
    })?;
    let mut last = holder.token().get();
    holder.release().await.map_err(say)?;
    for turn in 0..WAITERS {
        let (number, token) = queue.next().await?;
        ensure(number == turn && token > last, || {
            format!("waiter {number} got token {token} after {last}; it was the turn of {turn}")
        })?;
        last = token;
        queue.release();
    }
    queue.end().await?;
    Ok(Finding::Passed)
}

async fn a_release_wakes_one_waiter<S: Subject>(place: &Place<S>) -> Checked {
    const WAITERS: u32 = 8;
    let Some(before) = place.subject.wake_ups() else {
        return Ok(Finding::NotApplicable(
            "the authority itself grants, no waiter is woken to look",
        ));
    };
    let lock = place.lock("herd");
    let (holder, mut queue) = Queue::behind(place, &lock, WAITERS).await?;
    holder.release().await.map_err(say)?;
    for _ in 0..WAITERS {
        queue.next().await?;
        queue.release();
    }
    queue.end().await?;
    let woken = place.subject.wake_ups().unwrap_or(0) - before;
    ensure(woken == u64::from(WAITERS), || {
        format!("{WAITERS} releases with somebody waiting woke {woken} waiters")
    })?;
    Ok(Finding::Passed)
}
