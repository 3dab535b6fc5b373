//! Checks of elections: the holder's value, and how it changes.

use std::time::Duration;

use crate::conformance::Subject;
use crate::conformance::report::{CheckOutcome, Report};
use crate::conformance::steps::{Checked, Context, Failure, Hand, ensure, run_checks};
use palisade_client::Fault;
use palisade_client::service::Proclamation;

pub(super) async fn checks<S: Subject>(context: &Context<S>, report: &mut Report) {
    run_checks!(
        context,
        report,
        [
            an_authority_whose_values_do_not_change_says_so,
            a_leader_changes_its_value_and_a_former_one_does_not,
        ]
    );
}

impl Hand {
    async fn says(&self, expected: Option<&str>) -> Result<(), Failure> {
        let shown = self.show().await?;
        ensure(shown.metadata.as_deref() == expected, || {
            format!("not {expected:?} but {shown:?}")
        })
    }
}

async fn an_authority_whose_values_do_not_change_says_so<S: Subject>(
    context: &Context<S>,
) -> Checked {
    if context.habit.shares {
        return Ok(CheckOutcome::NotApplicable("its values change"));
    }
    let hand = context.hand(&context.lock("no-election")).await?;
    let held = hand
        .hold(&hand.wish(context.long()?, Duration::ZERO)?)
        .await?;
    match hand.service.proclaim(held.grant.clone(), "here").await {
        Err(Fault::Unsupported(_)) => {}
        other => return Err(format!("a value was proclaimed: {other:?}")),
    }
    hand.release(&held.grant).await?;
    Ok(CheckOutcome::Passed)
}

async fn a_leader_changes_its_value_and_a_former_one_does_not<S: Subject>(
    context: &Context<S>,
) -> Checked {
    if !context.habit.shares {
        return Ok(CheckOutcome::NotApplicable("its values do not change"));
    }
    let hand = context.hand(&context.lock("election")).await?;
    let mut wish = hand.wish(context.long()?, Duration::ZERO)?;
    wish.metadata = Some("at first".into());
    let held = hand.hold(&wish).await?;
    hand.says(Some("at first")).await?;
    let mut last = 0;
    for value in ["later", "in the end"] {
        let answer = hand.service.proclaim(held.grant.clone(), value).await;
        match answer {
            Ok(Proclamation::Proclaimed { revision }) if revision > last => last = revision,
            other => return Err(format!("{value:?} after revision {last}: {other:?}")),
        }
        hand.says(Some(value)).await?;
    }
    hand.release(&held.grant).await?;
    hand.says(None).await?;
    let answer = hand.service.proclaim(held.grant.clone(), "still").await;
    ensure(
        matches!(
            answer,
            Ok(Proclamation::Ended(_) | Proclamation::NotHeld | Proclamation::Stale { .. })
        ),
        || format!("after its release: {answer:?}"),
    )?;
    hand.says(None).await?;
    Ok(CheckOutcome::Passed)
}
