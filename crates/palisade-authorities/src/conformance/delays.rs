//! Checks of locks that stay closed after a grant: at-least-for, and authorities that cannot keep a lock closed.

use std::time::Duration;

use palisade_core::{GrantOptions, Span};

use crate::conformance::Subject;
use crate::conformance::report::{CheckOutcome, Report};
use crate::conformance::steps::{Checked, Context, Failure, Hand, ensure, run_checks, say};
use palisade_client::Fault;
use palisade_client::service::{AcquireRequest, Acquired, Released};

pub(super) async fn checks<S: Subject>(context: &Context<S>, report: &mut Report) {
    run_checks!(
        context,
        report,
        [
            an_authority_without_delays_says_so,
            a_released_lock_stays_closed_for_as_long_as_its_grant_asked,
        ]
    );
}

const HOUR_MS: u64 = 60 * 60 * 1_000;

impl Hand {
    fn reserves(&self, context: &Context<impl Subject>) -> Result<AcquireRequest, Failure> {
        let wish = self.wish(context.long()?, Duration::ZERO)?;
        Ok(AcquireRequest {
            options: GrantOptions::closing(0, HOUR_MS).map_err(say)?,
            ..wish
        })
    }
}

async fn an_authority_without_delays_says_so<S: Subject>(context: &Context<S>) -> Checked {
    if context.habit.shares {
        return Ok(CheckOutcome::NotApplicable("it keeps locks closed"));
    }
    let hand = context.hand(&context.lock("no-delays")).await?;
    match hand.service.acquire(hand.reserves(context)?).await {
        Err(Fault::Unsupported(what)) if what.words().contains("at-least-for") => {}
        other => return Err(format!("at-least-for was asked for: {other:?}")),
    }
    let shown = hand.show().await?;
    ensure(shown.holder.is_none(), || format!("and granted: {shown:?}"))?;
    Ok(CheckOutcome::Passed)
}

async fn a_released_lock_stays_closed_for_as_long_as_its_grant_asked<S: Subject>(
    context: &Context<S>,
) -> Checked {
    if !context.habit.shares {
        return Ok(CheckOutcome::NotApplicable("it does not keep locks closed"));
    }
    let hour = Span::from_millis(HOUR_MS);
    let hand = context.hand(&context.lock("at-least-for")).await?;
    let held = hand.hold(&hand.reserves(context)?).await?;
    match hand.release(&held.grant).await? {
        Released::Delayed { remaining } if remaining > Span::ZERO && remaining <= hour => {}
        other => return Err(format!("released early: {other:?}")),
    }
    let wish = hand.wish(context.long()?, Duration::ZERO)?;
    match hand.ask(&wish).await? {
        Acquired::Delayed(delayed) if delayed.token == held.token() => {}
        other => return Err(format!("asked for again: {other:?}")),
    }
    let shown = hand.show().await?;
    ensure(
        shown.holder.is_none() && shown.delayed.is_some_and(|rest| rest <= hour),
        || format!("{shown:?}"),
    )?;
    Ok(CheckOutcome::Passed)
}
