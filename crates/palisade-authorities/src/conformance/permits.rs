//! Checks of semaphores: slots, their tokens, the number of permits, and its change.

use std::time::Duration;

use palisade_core::{LockMode, Permits, Slots};

use crate::conformance::Subject;
use crate::conformance::report::{CheckOutcome, Report};
use crate::conformance::steps::{Checked, Context, Failure, Hand, ensure, run_checks, say};
use palisade_client::Fault;
use palisade_client::service::{AcquireRequest, Acquired, Resized};

pub(super) async fn checks<S: Subject>(context: &Context<S>, report: &mut Report) {
    run_checks!(
        context,
        report,
        [
            an_authority_without_permits_says_so,
            permits_are_slots_and_each_grant_has_a_token_of_its_own,
            a_request_with_another_number_of_permits_is_refused_and_changes_nothing,
            the_number_of_permits_changes_while_they_are_held,
        ]
    );
}

const NONE: Checked = Ok(CheckOutcome::NotApplicable("it has no semaphores"));

impl Hand {
    fn wants(
        &self,
        context: &Context<impl Subject>,
        wanted: u32,
        of: u32,
    ) -> Result<AcquireRequest, Failure> {
        let wish = self.wish(context.long()?, Duration::ZERO)?;
        Ok(AcquireRequest {
            mode: LockMode::Permits(Permits::new(wanted, of).map_err(say)?),
            ..wish
        })
    }

    async fn is_full(&self, wish: &AcquireRequest) -> Result<(), Failure> {
        match self.ask(wish).await? {
            Acquired::Held(_) | Acquired::Behind(_) => Ok(()),
            other => Err(format!("more permits than there are: {other:?}")),
        }
    }

    /// Fails unless the request is refused, with a message that contains all of `says`.
    async fn is_refused(&self, wish: AcquireRequest, says: &[&str]) -> Result<(), Failure> {
        match self.service.acquire(wish).await {
            Err(Fault::Invalid(why)) if says.iter().all(|part| why.words().contains(part)) => {
                Ok(())
            }
            other => Err(format!("not refused with {says:?}: {other:?}")),
        }
    }
}

fn slots(numbers: &[u32]) -> Slots {
    let bits = numbers.iter().map(|number| 1 << (number - 1));
    Slots::from_bits(bits.fold(0, |all, bit: u64| all | bit))
}

async fn an_authority_without_permits_says_so<S: Subject>(context: &Context<S>) -> Checked {
    if context.habit.shares {
        return Ok(CheckOutcome::NotApplicable("it has semaphores"));
    }
    let hand = context.hand(&context.lock("no-permits")).await?;
    let wish = hand.wants(context, 1, 2)?;
    match hand.service.acquire(wish).await {
        Err(Fault::Unsupported(what)) if what.words().contains("permits") => {}
        other => return Err(format!("permits were asked for: {other:?}")),
    }
    match hand.service.resize(hand.lock.clone(), 3).await {
        Err(Fault::Unsupported(what)) if what.words().contains("permits") => {}
        other => return Err(format!("another number was asked for: {other:?}")),
    }
    let shown = hand.show().await?;
    ensure(shown.holder.is_none(), || format!("and granted: {shown:?}"))?;
    Ok(CheckOutcome::Passed)
}

async fn permits_are_slots_and_each_grant_has_a_token_of_its_own<S: Subject>(
    context: &Context<S>,
) -> Checked {
    if !context.habit.shares {
        return NONE;
    }
    let hand = context.hand(&context.lock("slots")).await?;
    let two = hand.hold(&hand.wants(context, 2, 3)?).await?;
    let one = hand.hold(&hand.wants(context, 1, 3)?).await?;
    ensure(
        two.granted.slots == slots(&[1, 2]) && one.granted.slots == slots(&[3]),
        || format!("slots of {two:?} and {one:?}"),
    )?;
    ensure(two.token() < one.token(), || {
        format!("{} and then {}", two.token(), one.token())
    })?;
    hand.is_full(&hand.wants(context, 1, 3)?).await?;
    let shown = hand.show().await?;
    let held: Vec<Slots> = shown.readers.iter().map(|holder| holder.slots).collect();
    ensure(
        shown.permits == Some(3) && held == [slots(&[1, 2]), slots(&[3])],
        || format!("{shown:?}"),
    )?;
    hand.release(&two.grant).await?;
    let next = hand.hold(&hand.wants(context, 1, 3)?).await?;
    ensure(
        next.granted.slots == slots(&[1]) && next.token() > one.token(),
        || format!("{next:?}"),
    )?;
    for held in [&one, &next] {
        hand.release(&held.grant).await?;
    }
    Ok(CheckOutcome::Passed)
}

async fn a_request_with_another_number_of_permits_is_refused_and_changes_nothing<S: Subject>(
    context: &Context<S>,
) -> Checked {
    if !context.habit.shares {
        return NONE;
    }
    let hand = context.hand(&context.lock("number")).await?;
    let held = hand.hold(&hand.wants(context, 1, 3)?).await?;
    let before = hand.show().await?;
    let plain = hand.wish(context.long()?, Duration::ZERO)?;
    let shared = AcquireRequest {
        mode: LockMode::Shared,
        ..hand.wish(context.long()?, Duration::ZERO)?
    };
    hand.is_refused(hand.wants(context, 1, 4)?, &["4 permits", "has 3"])
        .await?;
    hand.is_refused(plain, &["semaphore of 3 permits"]).await?;
    hand.is_refused(shared, &["semaphore of 3 permits"]).await?;
    let after = hand.show().await?;
    ensure(
        (after.permits, after.reader_count, after.waiters)
            == (before.permits, before.reader_count, before.waiters),
        || format!("{before:?} became {after:?}"),
    )?;
    hand.release(&held.grant).await?;
    Ok(CheckOutcome::Passed)
}

async fn the_number_of_permits_changes_while_they_are_held<S: Subject>(
    context: &Context<S>,
) -> Checked {
    if !context.habit.shares {
        return NONE;
    }
    let hand = context.hand(&context.lock("resized")).await?;
    let resize = async |of| {
        let answer = hand.service.resize(hand.lock.clone(), of).await;
        answer.map_err(say)
    };
    let answer = resize(2).await?;
    ensure(answer == Resized::NotInUse, || {
        format!("a lock that nobody uses: {answer:?}")
    })?;
    let two = hand.hold(&hand.wants(context, 2, 2)?).await?;
    let answer = resize(3).await?;
    ensure(answer == Resized::Resized, || format!("{answer:?}"))?;
    let third = hand.hold(&hand.wants(context, 1, 3)?).await?;
    ensure(third.granted.slots == slots(&[3]), || format!("{third:?}"))?;
    let answer = resize(1).await?;
    ensure(answer == Resized::Resized, || format!("{answer:?}"))?;
    // Three are held, and there is one: it is free when its slot is.
    hand.is_full(&hand.wants(context, 1, 1)?).await?;
    hand.release(&third.grant).await?;
    hand.is_full(&hand.wants(context, 1, 1)?).await?;
    hand.release(&two.grant).await?;
    let last = hand.hold(&hand.wants(context, 1, 1)?).await?;
    hand.release(&last.grant).await?;
    Ok(CheckOutcome::Passed)
}
