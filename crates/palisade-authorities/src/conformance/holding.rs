//! Checks of what a holder may do with its grant, and of what no client may do with a grant that has ended.

use std::time::Duration;

use palisade_core::holder::Caution;
use palisade_core::{Ending, GrantRef, LeaseKey, Renewed, Span};

use crate::conformance::Subject;
use crate::conformance::report::{CheckOutcome, Report};
use crate::conformance::steps::{
    Checked, Context, Failure, Hand, UnrenewedGrant, ensure, run_checks, say, until,
};
use palisade_client::Error;
use palisade_client::clock::{BootClock, Clock as _};
use palisade_client::service::{Acquired, Released, Renewal};

pub(super) async fn checks<S: Subject>(context: &Context<S>, report: &mut Report) {
    run_checks!(
        context,
        report,
        [
            a_try_is_answered_with_the_holder,
            a_renewal_keeps_the_token,
            an_expired_lease_goes_to_the_next_and_never_before_its_holder_stops_believing,
            an_expired_lease_is_over_though_nobody_else_wants_the_lock,
            a_renewed_lease_outlives_its_first_time,
            a_release_by_a_non_holder_changes_nothing,
            a_late_release_does_not_free_the_next_holders_lock,
            a_repeated_release_is_recognised,
            a_client_takes_its_own_lock_back_with_a_higher_token,
            a_repeated_request_is_answered_with_its_first_grant,
            a_held_lock_is_listed,
            a_ttl_out_of_range_is_an_error_that_names_the_range,
        ]
    );
}

async fn a_try_is_answered_with_the_holder<S: Subject>(context: &Context<S>) -> Checked {
    let lock = context.lock("try");
    let (one, other) = (context.hand(&lock).await?, context.hand(&lock).await?);
    let free = one.show().await?;
    ensure(free.holder.is_none() && free.waiters == 0, || {
        format!("a lock that was never requested: {free:?}")
    })?;
    let wish = one.wish(context.long()?, Duration::ZERO)?;
    let held = one.hold(&wish).await?;
    match other
        .ask(&other.wish(context.long()?, Duration::ZERO)?)
        .await?
    {
        Acquired::Held(holder) => {
            ensure(
                holder.token == held.token() && holder.client == wish.client,
                || format!("another holder was named: {holder:?}"),
            )?;
            let longest = context.habit.long.as_millis() as u64;
            ensure(holder.remaining.as_millis() <= longest, || {
                format!("{holder:?} lasts longer than its time to live")
            })?;
        }
        other => return Err(format!("{other:?}")),
    }
    let shown = one.show().await?;
    ensure(shown.waiters == 0, || {
        format!("a try was queued: {shown:?}")
    })?;
    one.release(&held.grant).await?;
    let free = other.show().await?;
    ensure(free.holder.is_none(), || format!("released: {free:?}"))?;
    Ok(CheckOutcome::Passed)
}

async fn a_renewal_keeps_the_token<S: Subject>(context: &Context<S>) -> Checked {
    let hand = context.hand(&context.lock("renewal")).await?;
    let held = hand
        .hold(&hand.wish(context.long()?, Duration::ZERO)?)
        .await?;
    for _ in 0..3 {
        match hand.renew(&held).await? {
            Renewal::Renewed(renewed) if renewed.token == held.token() => {
                let (valid, ttl) = (renewed.valid_for, renewed.ttl.span());
                ensure(valid <= ttl, || {
                    format!("valid for {valid:?} with a lease of {ttl:?}")
                })?;
            }
            other => return Err(format!("{other:?}")),
        }
        hand.is_held_by(&held).await?;
    }
    hand.release(&held.grant).await?;
    Ok(CheckOutcome::Passed)
}

/// A holder whose lease expired, and the next one, granted while waiting or by a later try.
async fn expired<S: Subject>(
    context: &Context<S>,
    lock: &str,
) -> Result<(Hand, UnrenewedGrant, UnrenewedGrant), Failure> {
    let (one, other) = (context.hand(lock).await?, context.hand(lock).await?);
    let first = one
        .hold(&one.wish(context.brief()?, Duration::ZERO)?)
        .await?;
    let second = other
        .hold(&other.wish(context.long()?, context.habit.patience)?)
        .await?;
    ensure(!first.believes(), || {
        format!(
            "token {} was granted while the holder of token {} may still believe in it",
            second.token(),
            first.token()
        )
    })?;
    ensure(second.token() > first.token(), || {
        format!("token {} after {}", second.token(), first.token())
    })?;
    Ok((other, first, second))
}

async fn an_expired_lease_goes_to_the_next_and_never_before_its_holder_stops_believing<
    S: Subject,
>(
    context: &Context<S>,
) -> Checked {
    let (hand, first, second) = expired(context, &context.lock("expiry")).await?;
    // Nothing revives the first grant, and nothing done with it affects the second.
    let renewed = hand.renew(&first).await?;
    ensure(
        match renewed {
            Renewal::Ended(how) => how == Ending::Expired,
            Renewal::NotHeld => true,
            Renewal::Stale { highest } => highest == second.token(),
            Renewal::Renewed(_) => false,
        },
        || format!("the expired grant was renewed: {renewed:?}"),
    )?;
    let released = hand.release(&first.grant).await?;
    ensure(released != Released::Released, || {
        "the expired grant was released".to_owned()
    })?;
    hand.is_held_by(&second).await?;
    hand.release(&second.grant).await?;
    Ok(CheckOutcome::Passed)
}

async fn an_expired_lease_is_over_though_nobody_else_wants_the_lock<S: Subject>(
    context: &Context<S>,
) -> Checked {
    // One lock for each operation, because either operation may be what makes the authority notice the
    // expiry.
    let (one, other) = (
        context.hand(&context.lock("unwanted-renewal")).await?,
        context.hand(&context.lock("unwanted-release")).await?,
    );
    let first = one
        .hold(&one.wish(context.brief()?, Duration::ZERO)?)
        .await?;
    let second = other
        .hold(&other.wish(context.brief()?, Duration::ZERO)?)
        .await?;
    for hand in [&one, &other] {
        hand.until("a free lock", |view| view.holder.is_none())
            .await?;
    }
    let renewed = one.renew(&first).await?;
    ensure(!matches!(renewed, Renewal::Renewed(_)), || {
        format!("the expired grant was renewed: {renewed:?}")
    })?;
    let released = other.release(&second.grant).await?;
    ensure(released != Released::Released, || {
        "the expired grant was released".to_owned()
    })?;
    Ok(CheckOutcome::Passed)
}

async fn a_renewed_lease_outlives_its_first_time<S: Subject>(context: &Context<S>) -> Checked {
    for play in 0..3 {
        let lock = context.lock(&format!("outlives-{play}"));
        if outlives(context, &lock).await? {
            return Ok(CheckOutcome::Passed);
        }
    }
    Err("this machine was too busy to renew in time, three times in a row".to_owned())
}

/// Returns whether this machine was quick enough for the lease to be held; else the run shows nothing.
async fn outlives<S: Subject>(context: &Context<S>, lock: &str) -> Result<bool, Failure> {
    let hand = context.hand(lock).await?;
    let mut held = hand
        .hold(&hand.wish(context.brief()?, Duration::ZERO)?)
        .await?;
    let other = context.hand(&hand.lock).await?;
    let waiter = other.wish(context.long()?, context.habit.patience)?;
    let asking = tokio::spawn(async move { other.hold(&waiter).await });
    // Holds for twice the time to live and renews at a third of it, as the guard does.
    let third = Span::from(context.habit.brief / 3);
    let kept = async {
        for _ in 0..6 {
            until(BootClock.now().after(third)).await;
            let t0 = BootClock.now();
            match hand.renew(&held).await? {
                Renewal::Renewed(Renewed { valid_for, .. }) => {
                    held.until = Caution::DEFAULT.deadline(t0, valid_for);
                }
                other => {
                    return Err(format!("a lease that was renewed in time ended: {other:?}"));
                }
            }
        }
        ensure(!asking.is_finished(), || {
            "another client was granted the lock meanwhile".to_owned()
        })?;
        hand.is_held_by(&held).await
    }
    .await;
    let in_time = held.believes();
    if in_time {
        kept?;
    }
    hand.release(&held.grant).await?;
    let next = asking.await.map_err(say)??;
    hand.release(&next.grant).await?;
    Ok(in_time)
}

async fn a_release_by_a_non_holder_changes_nothing<S: Subject>(context: &Context<S>) -> Checked {
    let hand = context.hand(&context.lock("non-holder")).await?;
    let held = hand
        .hold(&hand.wish(context.long()?, Duration::ZERO)?)
        .await?;
    let strange = GrantRef {
        key: LeaseKey::from_bytes([7; 16]),
        ..held.grant.clone()
    };
    for grant in [
        GrantRef {
            token: None,
            ..strange.clone()
        },
        strange,
    ] {
        let released = hand.release(&grant).await?;
        ensure(
            matches!(released, Released::NotHeld | Released::Stale { .. }),
            || format!("another client's release was answered with {released:?}"),
        )?;
        hand.is_held_by(&held).await?;
    }
    let renewed = hand.service.renew(
        GrantRef {
            key: LeaseKey::from_bytes([7; 16]),
            ..held.grant.clone()
        },
        None,
    );
    let renewed = renewed.await.map_err(say)?;
    ensure(!matches!(renewed, Renewal::Renewed(_)), || {
        format!("another client renewed the grant: {renewed:?}")
    })?;
    let released = hand.release(&held.grant).await?;
    ensure(released == Released::Released, || {
        format!("the holder's own release was answered with {released:?}")
    })?;
    Ok(CheckOutcome::Passed)
}

async fn a_late_release_does_not_free_the_next_holders_lock<S: Subject>(
    context: &Context<S>,
) -> Checked {
    let hand = context.hand(&context.lock("late-release")).await?;
    let first = hand
        .hold(&hand.wish(context.long()?, Duration::ZERO)?)
        .await?;
    hand.release(&first.grant).await?;
    let second = hand
        .hold(&hand.wish(context.long()?, Duration::ZERO)?)
        .await?;
    for token in [first.grant.token, None] {
        let late = GrantRef {
            token,
            ..first.grant.clone()
        };
        let released = hand.release(&late).await?;
        ensure(released != Released::Released, || {
            "the grant was released a second time".to_owned()
        })?;
        hand.is_held_by(&second).await?;
    }
    hand.release(&second.grant).await?;
    Ok(CheckOutcome::Passed)
}

async fn a_repeated_release_is_recognised<S: Subject>(context: &Context<S>) -> Checked {
    if !context.habit.remembers {
        return Ok(CheckOutcome::NotApplicable(
            "it forgets grants when they end",
        ));
    }
    let hand = context.hand(&context.lock("repeated-release")).await?;
    let held = hand
        .hold(&hand.wish(context.long()?, Duration::ZERO)?)
        .await?;
    hand.release(&held.grant).await?;
    let again = hand.release(&held.grant).await?;
    ensure(again == Released::Ended(Ending::Released), || {
        format!("{again:?}")
    })?;
    Ok(CheckOutcome::Passed)
}

async fn a_client_takes_its_own_lock_back_with_a_higher_token<S: Subject>(
    context: &Context<S>,
) -> Checked {
    if !context.habit.takes_back {
        return Ok(CheckOutcome::NotApplicable("a client id is a label to it"));
    }
    let hand = context.hand(&context.lock("back")).await?;
    let wish = hand.wish(context.long()?, Duration::ZERO)?;
    let first = hand.hold(&wish).await?;
    let mut again = hand.wish(context.long()?, Duration::ZERO)?;
    again.client = wish.client;
    let second = hand.hold(&again).await?;
    ensure(second.token() > first.token(), || {
        format!("token {} after {}", second.token(), first.token())
    })?;
    let released = hand.release(&first.grant).await?;
    ensure(released != Released::Released, || {
        format!("the former grant released the lock: {released:?}")
    })?;
    hand.is_held_by(&second).await?;
    hand.release(&second.grant).await?;
    Ok(CheckOutcome::Passed)
}

async fn a_repeated_request_is_answered_with_its_first_grant<S: Subject>(
    context: &Context<S>,
) -> Checked {
    let lock = context.lock("repeated-request");
    let (one, other) = (context.hand(&lock).await?, context.hand(&lock).await?);
    let wish = one.wish(context.long()?, Duration::ZERO)?;
    let first = one.hold(&wish).await?;
    // Over another connection, as after a lost answer.
    for hand in [&one, &other] {
        let again = hand.hold(&wish).await?;
        ensure(again.grant == first.grant, || {
            format!("a repeated request was granted a second time: {again:?} after {first:?}")
        })?;
    }
    one.release(&first.grant).await?;
    let free = one.show().await?;
    ensure(free.holder.is_none() && free.waiters == 0, || {
        format!("the lock is not free: {free:?}")
    })?;
    Ok(CheckOutcome::Passed)
}

async fn a_held_lock_is_listed<S: Subject>(context: &Context<S>) -> Checked {
    if !context.habit.lists {
        return Ok(CheckOutcome::NotApplicable("it cannot list"));
    }
    let client = context.client().await?;
    let mut leases = Vec::new();
    for number in 0..5 {
        let wish = client.lock(&context.lock(&format!("listed/{number}")));
        let lease = wish.ttl(context.habit.long).acquire().await.map_err(say)?;
        leases.push(lease);
    }
    let prefix = context.lock("listed/");
    let mut listed = client.list(&prefix).all().await.map_err(say)?;
    listed.sort_unstable_by(|a, b| a.lock.as_str().cmp(b.lock.as_str()));
    let seen: Vec<_> = listed
        .iter()
        .map(|view| (view.lock.clone(), view.holder.as_ref().map(|h| h.token)))
        .collect();
    let held: Vec<_> = leases
        .iter()
        .map(|lease| (lease.lock().clone(), Some(lease.token())))
        .collect();
    ensure(seen == held, || format!("listed {seen:?}, held {held:?}"))?;
    for lease in leases {
        lease.release().await.map_err(say)?;
    }
    let listed = client.list(&prefix).all().await.map_err(say)?;
    ensure(listed.is_empty(), || {
        format!("a released lock is listed: {listed:?}")
    })?;
    Ok(CheckOutcome::Passed)
}

async fn a_ttl_out_of_range_is_an_error_that_names_the_range<S: Subject>(
    context: &Context<S>,
) -> Checked {
    let client = context.client().await?;
    let lock = context.lock("range");
    for ttl in [Duration::from_millis(99), Duration::from_secs(86_401)] {
        let refused = client.lock(&lock).ttl(ttl).try_acquire().await;
        let text = refused.map_or_else(|error| error.to_string(), |lease| format!("{lease:?}"));
        ensure(text.contains("..="), || format!("{ttl:?}: {text}"))?;
    }
    // A time shorter than the shortest lease is refused with the range, never silently lengthened.
    let shortest = Duration::from_millis(100);
    if context.habit.brief > shortest {
        match client.lock(&lock).ttl(shortest).try_acquire().await {
            Ok(Some(lease)) => ensure(lease.ttl().as_millis() == 100, || {
                format!("requested 100 ms and was granted {}", lease.ttl())
            })?,
            Ok(None) => return Err("a free lock was denied".to_owned()),
            // On a busy machine so short a lease is over before its answer is here; it was granted all the same.
            Err(Error::Lost(_)) => {}
            Err(error) => ensure(error.to_string().contains("..="), || {
                format!("{shortest:?}: {error}")
            })?,
        }
    }
    Ok(CheckOutcome::Passed)
}
