//! Checks with a server that is killed and started again, and with connections that are cut.

use std::time::Duration;

use palisade_core::Span;

use crate::conformance::Subject;
use crate::conformance::report::{CheckOutcome, Report};
use crate::conformance::steps::{
    Checked, Context, Failure, ensure, pause, run_checks, say, within,
};
use palisade_client::Client;
use palisade_client::Lease;
use palisade_client::clock::{BootClock, Clock as _};
use palisade_client::service::Released;

pub(super) async fn checks<S: Subject>(context: &Context<S>, report: &mut Report) {
    run_checks!(
        context,
        report,
        [
            a_held_lock_and_a_waiter_outlive_a_cut_connection,
            a_lease_outlives_a_killed_server_and_tokens_go_on_rising,
        ]
    );
}

/// Waits until a renewal is acknowledged. The remaining time never grows without one.
async fn renewed(lease: &Lease, patience: Duration) -> Result<(), Failure> {
    let end = BootClock.now().after(Span::from(patience));
    let mut before = lease.remaining();
    while BootClock.now() < end {
        lease.check().map_err(say)?;
        let now = lease.remaining();
        if now > before {
            return Ok(());
        }
        before = now;
        pause().await;
    }
    Err("the lease was never renewed".to_owned())
}

async fn a_held_lock_and_a_waiter_outlive_a_cut_connection<S: Subject>(
    context: &Context<S>,
) -> Checked {
    let lock = context.lock("cut");
    let (Some(near), Some(far)) = (
        context.subject.connect_through().await,
        context.subject.connect_through().await,
    ) else {
        return Ok(CheckOutcome::NotApplicable("there is no connection to cut"));
    };
    let (near, far) = (
        Client::new(near.map_err(say)?).map_err(say)?,
        Client::new(far.map_err(say)?).map_err(say)?,
    );
    let hand = context.hand(&lock).await?;
    let lease = near.lock(&lock).ttl(context.habit.long).acquire();
    let lease = lease.await.map_err(say)?;
    let wait = far
        .lock(&lock)
        .ttl(context.habit.long)
        .wait(context.habit.patience);
    let waiter = tokio::spawn(wait.acquire());
    for _ in 0..2 {
        hand.until("a waiter", |view| view.waiters == 1).await?;
        context.subject.cut().await;
        renewed(&lease, context.habit.patience).await?;
    }
    hand.until("the waiter, exactly once", |view| view.waiters == 1)
        .await?;
    let token = lease.token();
    let released = lease.release().await.map_err(say)?;
    ensure(released == Released::Released, || {
        format!("the holder's release was answered with {released:?}")
    })?;
    let next = within("the waiter's grant", context.habit.patience, async {
        waiter.await.map_err(say)?.map_err(say)
    })
    .await?;
    ensure(next.token() > token, || {
        format!("token {} after {token}", next.token())
    })?;
    context.subject.cut().await;
    next.release().await.map_err(say)?;
    hand.until("a free lock", |view| {
        view.holder.is_none() && view.waiters == 0
    })
    .await?;
    Ok(CheckOutcome::Passed)
}

async fn a_lease_outlives_a_killed_server_and_tokens_go_on_rising<S: Subject>(
    context: &Context<S>,
) -> Checked {
    let lock = context.lock("killed");
    let client = context.client().await?;
    let wish = |lock: &str| client.lock(lock).ttl(context.habit.long);
    let lease = wish(&lock).acquire().await.map_err(say)?;
    let other = wish(&context.lock("killed-other"));
    let other = other.acquire().await.map_err(say)?;
    let highest = lease.token().max(other.token());
    if !context.subject.crash().await {
        return Ok(CheckOutcome::NotApplicable("there is no server to kill"));
    }
    renewed(&lease, context.habit.patience).await?;
    let tried = context.client().await?.lock(&lock).ttl(context.habit.long);
    let tried = tried.try_acquire().await;
    ensure(matches!(tried, Ok(None)), || {
        format!("a try for a held lock was answered with {tried:?}")
    })?;
    let released = lease.release().await.map_err(say)?;
    ensure(released == Released::Released, || {
        format!("the holder's release was answered with {released:?}")
    })?;
    let next = wish(&lock).acquire().await.map_err(say)?;
    ensure(next.token() > highest, || {
        format!("token {} after {highest}", next.token())
    })?;
    next.release().await.map_err(say)?;
    other.release().await.map_err(say)?;
    Ok(CheckOutcome::Passed)
}
