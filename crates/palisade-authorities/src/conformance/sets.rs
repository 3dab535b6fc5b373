//! Checks of several locks at once: all or none, one token, and nothing held while a request waits.

use std::time::Duration;

use palisade_core::{GrantRef, LockName};

use crate::conformance::Subject;
use crate::conformance::report::{CheckOutcome, Report};
use crate::conformance::steps::{Checked, Context, Failure, Hand, ensure, run_checks, say};
use palisade_client::Fault;
use palisade_client::service::{AcquireRequest, Acquired};

pub(super) async fn checks<S: Subject>(context: &Context<S>, report: &mut Report) {
    run_checks!(
        context,
        report,
        [
            an_authority_that_grants_one_lock_at_a_time_says_so,
            a_set_is_granted_whole_or_not_at_all,
            two_sets_in_opposite_orders_do_not_wait_for_each_other,
        ]
    );
}

const NONE: Checked = Ok(CheckOutcome::NotApplicable("it grants one lock at a time"));

/// Hands for two locks; the first name is the lower one.
async fn two<S: Subject>(context: &Context<S>, name: &str) -> Result<(Hand, Hand), Failure> {
    let a = context.hand(&context.lock(&format!("{name}/a"))).await?;
    let b = context.hand(&context.lock(&format!("{name}/b"))).await?;
    Ok((a, b))
}

impl Hand {
    /// A request for this lock and others.
    fn wants_also(
        &self,
        context: &Context<impl Subject>,
        others: &[&Hand],
        wait: Duration,
    ) -> Result<AcquireRequest, Failure> {
        let others = others.iter().map(|hand| hand.lock.clone());
        let names: Vec<LockName> = std::iter::once(self.lock.clone()).chain(others).collect();
        let (lock, also) = palisade_core::set_of(names).map_err(say)?;
        Ok(AcquireRequest {
            lock,
            also,
            ..self.wish(context.long()?, wait)?
        })
    }
}

async fn an_authority_that_grants_one_lock_at_a_time_says_so<S: Subject>(
    context: &Context<S>,
) -> Checked {
    if context.habit.shares {
        return Ok(CheckOutcome::NotApplicable(
            "it grants several locks at once",
        ));
    }
    let (a, b) = two(context, "no-sets").await?;
    let wish = a.wants_also(context, &[&b], Duration::ZERO)?;
    match a.service.acquire(wish).await {
        Err(Fault::Unsupported(what)) if what.words().contains("several locks") => {}
        other => return Err(format!("two locks were asked for: {other:?}")),
    }
    let shown = a.show().await?;
    ensure(shown.holder.is_none(), || {
        format!("and one was granted: {shown:?}")
    })?;
    Ok(CheckOutcome::Passed)
}

async fn a_set_is_granted_whole_or_not_at_all<S: Subject>(context: &Context<S>) -> Checked {
    if !context.habit.shares {
        return NONE;
    }
    let (a, b) = two(context, "whole").await?;
    let one = b.hold(&b.wish(context.long()?, Duration::ZERO)?).await?;
    match a
        .ask(&a.wants_also(context, &[&b], Duration::ZERO)?)
        .await?
    {
        Acquired::Held(holder) if holder.token == one.token() => {}
        other => return Err(format!("one of the two is held: {other:?}")),
    }
    let free = a.show().await?;
    ensure(free.holder.is_none(), || {
        format!("half of a set was granted: {free:?}")
    })?;
    b.release(&one.grant).await?;

    let set = a.wants_also(context, &[&b], Duration::ZERO)?;
    let first = a.hold(&set).await?;
    ensure(first.token() > one.token(), || {
        format!("{} and then {}", one.token(), first.token())
    })?;
    let again = a.hold(&set).await?;
    ensure(again.token() == first.token(), || {
        format!("a repeat of {first:?}: {again:?}")
    })?;
    a.is_held_by(&first).await?;
    b.is_held_by(&first).await?;

    // Any lock of a set may be released early; the others stay held.
    let part = GrantRef {
        lock: b.lock.clone(),
        ..first.grant.clone()
    };
    b.release(&part).await?;
    let next = b.hold(&b.wish(context.long()?, Duration::ZERO)?).await?;
    ensure(next.token() > first.token(), || format!("{next:?}"))?;
    a.renew(&first).await?;
    a.is_held_by(&first).await?;
    a.release(&first.grant).await?;
    b.release(&next.grant).await?;
    Ok(CheckOutcome::Passed)
}

/// A waiting set holds nothing and keeps its place: later requests wait behind it, even for a free lock.
async fn two_sets_in_opposite_orders_do_not_wait_for_each_other<S: Subject>(
    context: &Context<S>,
) -> Checked {
    if !context.habit.shares {
        return NONE;
    }
    let (a, b) = two(context, "opposite").await?;
    let one = b.hold(&b.wish(context.long()?, Duration::ZERO)?).await?;
    let patience = context.habit.patience;
    let (first, second) = (
        a.wants_also(context, &[&b], patience)?,
        b.wants_also(context, &[&a], patience)?,
    );
    let turn = async |hand: &Hand, set: &AcquireRequest| {
        let held = hand.hold(set).await?;
        for lock in [&a, &b] {
            let part = GrantRef {
                lock: lock.lock.clone(),
                ..held.grant.clone()
            };
            lock.release(&part).await?;
        }
        Ok::<_, Failure>(held.token())
    };
    let waiting = async |count| {
        a.until("the sets in the queue of a free lock", |view| {
            view.holder.is_none() && view.waiters == count
        })
        .await
    };
    let late = async {
        waiting(1).await?;
        turn(&b, &second).await
    };
    let releases = async {
        waiting(2).await?;
        // A try at the free lock does not overtake the set.
        match a.ask(&a.wish(context.long()?, Duration::ZERO)?).await? {
            Acquired::Held(_) | Acquired::Behind(_) => {}
            other => return Err(format!("the waiting set was overtaken: {other:?}")),
        }
        b.release(&one.grant).await?;
        Ok(())
    };
    let (early, late, released) = tokio::join!(turn(&a, &first), late, releases);
    released?;
    let tokens = [early?, late?];
    ensure(
        tokens.is_sorted() && tokens.iter().all(|token| *token > one.token()),
        || format!("{} and then {tokens:?}", one.token()),
    )?;
    Ok(CheckOutcome::Passed)
}
