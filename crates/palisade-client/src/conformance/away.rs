//! A server that is killed and started again, and connections that are cut.

use std::time::Duration;

use palisade_core::Span;

use crate::client::Client;
use crate::clock::{BootClock, Clock as _};
use crate::conformance::Subject;
use crate::conformance::report::{Finding, Report};
use crate::conformance::steps::{Checked, Place, Saw, ensure, pause, run_checks, say, within};
use crate::lease::Lease;
use crate::service::Released;

pub(super) async fn checks<S: Subject>(place: &Place<S>, report: &mut Report) {
    run_checks!(
        place,
        report,
        [
            a_held_lock_and_a_waiter_outlive_a_cut_connection,
            a_lease_outlives_a_killed_server_and_tokens_go_on_rising,
        ]
    );
}

/// Waits until a renewal is acknowledged: what is left never grows by itself.
async fn renewed(lease: &Lease, patience: Duration) -> Result<(), Saw> {
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
    Err("it is never renewed".to_owned())
}

async fn a_held_lock_and_a_waiter_outlive_a_cut_connection<S: Subject>(
    place: &Place<S>,
) -> Checked {
    let lock = place.lock("cut");
    let (Some(near), Some(far)) = (
        place.subject.connect_through().await,
        place.subject.connect_through().await,
    ) else {
        return Ok(Finding::NotApplicable("there is no connection to cut"));
    };
    let (near, far) = (
        Client::new(near.map_err(say)?).map_err(say)?,
        Client::new(far.map_err(say)?).map_err(say)?,
    );
    let hand = place.hand(&lock).await?;
    let lease = near.lock(&lock).ttl(place.habit.long).acquire();
    let lease = lease.await.map_err(say)?;
    let wait = far
        .lock(&lock)
        .ttl(place.habit.long)
        .wait(place.habit.patience);
    let waiter = tokio::spawn(wait.acquire());
    for _ in 0..2 {
        hand.until("a waiter", |view| view.waiters == 1).await?;
        place.subject.cut().await;
        renewed(&lease, place.habit.patience).await?;
    }
    hand.until("the waiter, once", |view| view.waiters == 1)
        .await?;
    let token = lease.token();
    let released = lease.release().await.map_err(say)?;
    ensure(released == Released::Released, || {
        format!("the holder's release was answered with {released:?}")
    })?;
    let next = within("the waiter's grant", place.habit.patience, async {
        waiter.await.map_err(say)?.map_err(say)
    })
    .await?;
    ensure(next.token() > token, || {
        format!("token {} after {token}", next.token())
    })?;
    place.subject.cut().await;
    next.release().await.map_err(say)?;
    hand.until("a free lock", |view| {
        view.holder.is_none() && view.waiters == 0
    })
    .await?;
    Ok(Finding::Passed)
}

async fn a_lease_outlives_a_killed_server_and_tokens_go_on_rising<S: Subject>(
    place: &Place<S>,
) -> Checked {
    let lock = place.lock("killed");
    let client = place.client().await?;
    let wish = |lock: &str| client.lock(lock).ttl(place.habit.long);
    let lease = wish(&lock).acquire().await.map_err(say)?;
    let other = wish(&place.lock("killed-other"));
    let other = other.acquire().await.map_err(say)?;
    let highest = lease.token().max(other.token());
    if !place.subject.crash().await {
        return Ok(Finding::NotApplicable("there is no server to kill"));
    }
    renewed(&lease, place.habit.patience).await?;
    let tried = place.client().await?.lock(&lock).ttl(place.habit.long);
    let tried = tried.try_acquire().await;
    ensure(matches!(tried, Ok(None)), || {
        format!("a try for a lock that is held was answered with {tried:?}")
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
    Ok(Finding::Passed)
}
