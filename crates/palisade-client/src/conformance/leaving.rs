//! Clients that go away in every way there is: no lock stays behind that nobody holds.

use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;

use tokio::sync::oneshot;

use crate::client::Client;
use crate::conformance::Subject;
use crate::conformance::report::{Finding, Report};
use crate::conformance::steps::{Checked, Place, Saw, ensure, run_checks, say, within};
use crate::service::{AcquireRequest, Acquired, Released};

pub(super) async fn checks<S: Subject>(place: &Place<S>, report: &mut Report) {
    run_checks!(
        place,
        report,
        [
            a_dropped_guard_frees_the_lock,
            a_cancelled_acquire_leaves_nothing,
            a_request_cut_off_anywhere_and_abandoned_leaves_nothing,
            an_abandoned_grant_is_given_back,
            a_wait_that_is_over_leaves_the_queue,
            a_dead_waiter_is_skipped,
            a_client_stopped_past_its_lease_knows_it_when_it_goes_on,
        ]
    );
}

async fn a_dropped_guard_frees_the_lock<S: Subject>(place: &Place<S>) -> Checked {
    let lock = place.lock("dropped");
    let hand = place.hand(&lock).await?;
    let client = place.client().await?;
    let wish = || {
        client
            .lock(&lock)
            .ttl(place.habit.long)
            .wait(place.habit.patience)
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
    // The last handle may go first: the release is on its way.
    drop(client);
    drop(next);
    hand.until("a free lock", |view| view.holder.is_none())
        .await?;
    Ok(Finding::Passed)
}

async fn a_cancelled_acquire_leaves_nothing<S: Subject>(place: &Place<S>) -> Checked {
    let lock = place.lock("cancelled");
    let hand = place.hand(&lock).await?;
    let client = place.client().await?;
    let wish = || client.lock(&lock).ttl(place.habit.long);
    let holder = wish().acquire().await.map_err(say)?;
    let waiter = tokio::spawn(wish().wait(place.habit.patience).acquire());
    hand.until("a waiter", |view| view.waiters == 1).await?;
    waiter.abort();
    hand.until("an empty queue", |view| view.waiters == 0)
        .await?;
    holder.release().await.map_err(say)?;
    match wish().try_acquire().await.map_err(say)? {
        Some(lease) => lease.release().await.map(drop).map_err(say)?,
        None => return Err("the lock was granted to who had gone".to_owned()),
    }
    Ok(Finding::Passed)
}

/// The attempt is dropped at many points: before it is sent, in flight, granted but unread.
async fn a_request_cut_off_anywhere_and_abandoned_leaves_nothing<S: Subject>(
    place: &Place<S>,
) -> Checked {
    const POINTS: u32 = 24;
    let hand = place.hand(&place.lock("cut-off")).await?;
    for point in 0..POINTS {
        let wish = hand.wish(place.long()?, place.habit.patience)?;
        let patience = Duration::from_micros(150) * point;
        let _ = tokio::time::timeout(patience, hand.service.acquire(wish.clone())).await;
        hand.service.abandon(wish.request).await.map_err(say)?;
        let next = hand.wish(place.long()?, Duration::ZERO)?;
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
    Ok(Finding::Passed)
}

async fn an_abandoned_grant_is_given_back<S: Subject>(place: &Place<S>) -> Checked {
    let lock = place.lock("abandoned");
    let (one, other) = (place.hand(&lock).await?, place.hand(&lock).await?);
    let wish = one.wish(place.long()?, Duration::ZERO)?;
    let held = one.hold(&wish).await?;
    // Over another connection, and twice: an errand is repeated until it is acknowledged.
    for hand in [&other, &one] {
        hand.service.abandon(wish.request).await.map_err(say)?;
    }
    let next = other
        .hold(&other.wish(place.long()?, Duration::ZERO)?)
        .await?;
    ensure(next.token() > held.token(), || {
        format!("token {} after {}", next.token(), held.token())
    })?;
    one.service.abandon(wish.request).await.map_err(say)?;
    other.is_held_by(&next).await?;
    other.release(&next.grant).await?;
    Ok(Finding::Passed)
}

async fn a_wait_that_is_over_leaves_the_queue<S: Subject>(place: &Place<S>) -> Checked {
    let lock = place.lock("wait-over");
    let (one, other) = (place.hand(&lock).await?, place.hand(&lock).await?);
    let held = one.hold(&one.wish(place.long()?, Duration::ZERO)?).await?;
    let wish = other.wish(place.long()?, Duration::from_millis(80))?;
    match within("a wait of 80 ms", place.habit.patience, other.ask(&wish)).await? {
        Acquired::Held(holder) if holder.token == held.token() => {}
        answer => return Err(format!("{answer:?}")),
    }
    let shown = one.show().await?;
    ensure(shown.waiters == 0, || format!("it still waits: {shown:?}"))?;
    one.release(&held.grant).await?;
    let shown = one.show().await?;
    ensure(shown.holder.is_none(), || {
        format!("granted after its wait: {shown:?}")
    })?;
    Ok(Finding::Passed)
}

/// A client on a runtime of its own: when its thread stands still or ends, so does everything the
/// client does in the background, as if the process were stopped or killed.
struct Elsewhere {
    thread: std::thread::JoinHandle<Result<(), Saw>>,
    end: oneshot::Sender<()>,
}

impl Elsewhere {
    /// Sends one request that waits, until it is killed.
    fn waiter<S: Subject>(place: &Place<S>, wish: AcquireRequest) -> Elsewhere {
        let subject = Arc::clone(&place.subject);
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
            // Nothing that was left for the background is done.
            runtime.shutdown_background();
            result
        });
        Elsewhere { thread, end }
    }

    async fn kill(self) -> Result<(), Saw> {
        let _ = self.end.send(());
        join(self.thread).await
    }
}

fn runtime() -> Result<tokio::runtime::Runtime, Saw> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(say)
}

async fn join<T: Send + 'static>(
    thread: std::thread::JoinHandle<Result<T, Saw>>,
) -> Result<T, Saw> {
    tokio::task::spawn_blocking(|| thread.join())
        .await
        .map_err(say)?
        .map_err(|_| "the thread panicked".to_owned())?
}

async fn a_dead_waiter_is_skipped<S: Subject>(place: &Place<S>) -> Checked {
    let lock = place.lock("dead-waiter");
    let hand = place.hand(&lock).await?;
    let held = hand
        .hold(&hand.wish(place.long()?, Duration::ZERO)?)
        .await?;
    let dead = Elsewhere::waiter(place, hand.wish(place.brief()?, place.habit.patience)?);
    hand.until("a waiter", |view| view.waiters == 1).await?;
    let (next, wish) = (
        hand.clone(),
        hand.wish(place.long()?, place.habit.patience)?,
    );
    let next = tokio::spawn(async move { next.hold(&wish).await });
    hand.until("a second waiter or only the second", |view| {
        view.waiters == 2
    })
    .await?;
    dead.kill().await?;
    hand.release(&held.grant).await?;
    let next = within("the living waiter's grant", place.habit.patience, async {
        next.await.map_err(say)?
    })
    .await?;
    ensure(next.token() > held.token(), || {
        format!("token {} after {}", next.token(), held.token())
    })?;
    hand.is_held_by(&next).await?;
    hand.release(&next.grant).await?;
    Ok(Finding::Passed)
}

/// What a holder saw that was stopped past its lease.
struct Awoken {
    believes: bool,
    released: Option<Released>,
}

async fn a_client_stopped_past_its_lease_knows_it_when_it_goes_on<S: Subject>(
    place: &Place<S>,
) -> Checked {
    let lock = place.lock("stopped");
    let hand = place.hand(&lock).await?;
    let (held, holding) = oneshot::channel();
    let (go_on, stopped) = mpsc::channel();
    let thread = {
        let (subject, lock, ttl) = (Arc::clone(&place.subject), lock.clone(), place.habit.brief);
        std::thread::spawn(move || {
            runtime()?.block_on(async {
                let client = Client::new(subject.connect().await.map_err(say)?).map_err(say)?;
                let lease = client.lock(&lock).ttl(ttl).acquire().await.map_err(say)?;
                let _ = held.send(lease.token());
                // The thread stands still, and with it every renewal.
                let _ = stopped.recv();
                let believes = lease.check().is_ok();
                let released = lease.release().await.ok();
                Ok(Awoken { believes, released })
            })
        })
    };
    let token = holding.await.map_err(say)?;
    let next = hand
        .hold(&hand.wish(place.long()?, place.habit.patience)?)
        .await?;
    ensure(next.token() > token, || {
        format!("token {} after {token}", next.token())
    })?;
    let _ = go_on.send(());
    let awoken = join(thread).await?;
    ensure(!awoken.believes, || {
        format!("the stopped holder of token {token} believes in it")
    })?;
    ensure(awoken.released != Some(Released::Released), || {
        "its late release worked".to_owned()
    })?;
    hand.is_held_by(&next).await?;
    hand.release(&next.grant).await?;
    Ok(Finding::Passed)
}
