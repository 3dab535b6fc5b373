//! Checks of readers and writers: phases, their tokens, strict order of arrival, and the way from writer to reader.

use std::time::Duration;

use palisade_core::LockMode;

use crate::conformance::Subject;
use crate::conformance::report::{CheckOutcome, Report};
use crate::conformance::steps::{
    Checked, Context, Failure, Hand, UnrenewedGrant, ensure, run_checks, say,
};
use palisade_client::kind::Shared;
use palisade_client::service::{AcquireRequest, Acquired, Released, Renewal, Under};
use palisade_client::{Client, Error, Fault, Lease, LockRequest};

pub(super) async fn checks<S: Subject>(context: &Context<S>, report: &mut Report) {
    run_checks!(
        context,
        report,
        [
            an_authority_without_shared_locks_says_so,
            readers_hold_together_under_one_token_and_a_writer_waits_for_the_last,
            a_reader_waits_behind_a_writer_that_waits,
            a_release_names_one_reader,
            a_writer_becomes_a_reader_with_a_higher_token,
            a_reader_cannot_become_a_writer,
            a_reader_in_mode_update_becomes_the_writer_when_the_others_are_gone,
            an_upgrade_that_is_not_granted_leaves_the_reader_as_it_was,
        ]
    );
}

const NONE: Checked = Ok(CheckOutcome::NotApplicable("it has no shared locks"));

impl Hand {
    fn reads(
        &self,
        context: &Context<impl Subject>,
        wait: Duration,
    ) -> Result<AcquireRequest, Failure> {
        let wish = self.wish(context.long()?, wait)?;
        Ok(AcquireRequest {
            mode: LockMode::Shared,
            ..wish
        })
    }

    async fn read(&self, context: &Context<impl Subject>) -> Result<UnrenewedGrant, Failure> {
        self.hold(&self.reads(context, Duration::ZERO)?).await
    }

    async fn is_denied(&self, wish: &AcquireRequest) -> Result<(), Failure> {
        match self.ask(wish).await? {
            Acquired::Held(_) | Acquired::Behind(_) => Ok(()),
            other => Err(format!("a lock that is held was not denied: {other:?}")),
        }
    }
}

async fn an_authority_without_shared_locks_says_so<S: Subject>(context: &Context<S>) -> Checked {
    if context.habit.shares {
        return Ok(CheckOutcome::NotApplicable("it has shared locks"));
    }
    let hand = context.hand(&context.lock("unsupported")).await?;
    let wish = hand.reads(context, Duration::ZERO)?;
    match hand.service.acquire(wish).await {
        Err(Fault::Unsupported(what)) if what.words().contains("shared") => {}
        other => return Err(format!("a shared lock was asked for: {other:?}")),
    }
    let shown = hand.show().await?;
    ensure(shown.holder.is_none(), || format!("and granted: {shown:?}"))?;
    Ok(CheckOutcome::Passed)
}

async fn readers_hold_together_under_one_token_and_a_writer_waits_for_the_last<S: Subject>(
    context: &Context<S>,
) -> Checked {
    if !context.habit.shares {
        return NONE;
    }
    let hand = context.hand(&context.lock("readers")).await?;
    let before = hand
        .hold(&hand.wish(context.long()?, Duration::ZERO)?)
        .await?;
    hand.release(&before.grant).await?;
    let (first, second) = (hand.read(context).await?, hand.read(context).await?);
    ensure(
        first.token() == second.token() && first.token() > before.token(),
        || {
            format!(
                "one phase, {} and {}, after {}",
                first.token(),
                second.token(),
                before.token()
            )
        },
    )?;
    ensure(first.granted.number() < second.granted.number(), || {
        format!("numbers: {first:?}, {second:?}")
    })?;
    let shown = hand.show().await?;
    ensure(shown.reader_count == 2 && shown.readers.len() == 2, || {
        format!("two readers: {shown:?}")
    })?;
    let write = hand.wish(context.long()?, Duration::ZERO)?;
    hand.is_denied(&write).await?;
    // The phase continues, with the same token, after its first reader is gone.
    hand.release(&first.grant).await?;
    let third = hand.read(context).await?;
    ensure(third.token() == second.token(), || {
        format!("{} joined {}", third.token(), second.token())
    })?;
    for reader in [&second, &third] {
        hand.is_denied(&hand.wish(context.long()?, Duration::ZERO)?)
            .await?;
        hand.release(&reader.grant).await?;
    }
    let writer = hand
        .hold(&hand.wish(context.long()?, Duration::ZERO)?)
        .await?;
    ensure(writer.token() > third.token(), || {
        format!("the writer has {} after {}", writer.token(), third.token())
    })?;
    hand.is_denied(&hand.reads(context, Duration::ZERO)?)
        .await?;
    hand.release(&writer.grant).await?;
    Ok(CheckOutcome::Passed)
}

async fn a_reader_waits_behind_a_writer_that_waits<S: Subject>(context: &Context<S>) -> Checked {
    if !context.habit.shares {
        return NONE;
    }
    let lock = context.lock("order");
    let (hand, other) = (context.hand(&lock).await?, context.hand(&lock).await?);
    let reader = hand.read(context).await?;
    let write = other.wish(context.long()?, context.habit.patience)?;
    let writing = tokio::spawn(async move { other.hold(&write).await });
    hand.until("a writer that waits", |view| view.waiters == 1)
        .await?;
    hand.is_denied(&hand.reads(context, Duration::ZERO)?)
        .await?;
    let late = context.hand(&lock).await?;
    let read = late.reads(context, context.habit.patience)?;
    let reading = tokio::spawn(async move { late.hold(&read).await });
    hand.until("a reader behind it", |view| view.waiters == 2)
        .await?;
    let shown = hand.show().await?;
    let modes: Vec<LockMode> = shown.queue.iter().map(|queued| queued.mode).collect();
    ensure(modes == [LockMode::Exclusive, LockMode::Shared], || {
        format!("the queue: {shown:?}")
    })?;
    hand.release(&reader.grant).await?;
    let writer = writing.await.map_err(say)??;
    ensure(!reading.is_finished(), || {
        "the reader passed the writer".to_owned()
    })?;
    hand.is_held_by(&writer).await?;
    hand.release(&writer.grant).await?;
    let last = reading.await.map_err(say)??;
    ensure(last.token() > writer.token(), || {
        format!("{} after {}", last.token(), writer.token())
    })?;
    hand.release(&last.grant).await?;
    Ok(CheckOutcome::Passed)
}

async fn a_release_names_one_reader<S: Subject>(context: &Context<S>) -> Checked {
    if !context.habit.shares {
        return NONE;
    }
    let hand = context.hand(&context.lock("one-reader")).await?;
    let (one, other) = (hand.read(context).await?, hand.read(context).await?);
    for expected in [
        Released::Released,
        Released::Ended(palisade_core::Ending::Released),
    ] {
        let released = hand.release(&one.grant).await?;
        ensure(released == expected || !context.habit.remembers, || {
            format!("{released:?} instead of {expected:?}")
        })?;
    }
    let renewed = hand.renew(&other).await?;
    ensure(
        matches!(renewed, Renewal::Renewed(renewed) if renewed.token == other.token()),
        || format!("the other reader's renewal: {renewed:?}"),
    )?;
    hand.release(&other.grant).await?;
    let shown = hand.show().await?;
    ensure(shown.holder.is_none(), || format!("released: {shown:?}"))?;
    Ok(CheckOutcome::Passed)
}

async fn a_writer_becomes_a_reader_with_a_higher_token<S: Subject>(
    context: &Context<S>,
) -> Checked {
    if !context.habit.shares {
        return NONE;
    }
    let client = context.client().await?;
    let lock = context.lock("downgrade");
    let writer = client.lock(&lock).ttl(context.habit.long).acquire().await;
    let writer = writer.map_err(say)?;
    let (token, lease) = (writer.token(), writer.lease_id());
    let reader = client.downgrade(writer).await.map_err(say)?;
    ensure(reader.token() > token && reader.lease_id() == lease, || {
        format!("{reader:?} after token {token}")
    })?;
    let other = client.lock_shared(&lock).ttl(context.habit.long);
    let other = other.try_acquire().await.map_err(say)?;
    let Some(other) = other else {
        return Err("a second reader was denied".to_owned());
    };
    ensure(other.token() == reader.token(), || {
        format!("{other:?} beside {reader:?}")
    })?;
    for reader in [reader, other] {
        reader.release().await.map_err(say)?;
    }
    Ok(CheckOutcome::Passed)
}

async fn a_reader_cannot_become_a_writer<S: Subject>(context: &Context<S>) -> Checked {
    if !context.habit.shares {
        return NONE;
    }
    let hand = context.hand(&context.lock("upgrade")).await?;
    let wish = hand.reads(context, Duration::ZERO)?;
    let reader = hand.hold(&wish).await?;
    let upgrade = AcquireRequest {
        client: wish.client,
        under: Under::existing(reader.granted.key),
        ..hand.wish(context.long()?, Duration::ZERO)?
    };
    match hand.service.acquire(upgrade).await {
        Err(Fault::Invalid(why)) if why.words().contains("shared mode") => {}
        other => return Err(format!("a reader asked for more: {other:?}")),
    }
    hand.is_held_by(&reader).await?;
    hand.release(&reader.grant).await?;
    Ok(CheckOutcome::Passed)
}

/// A client that holds a lock in mode update, and a reader beside it.
async fn updater_and_reader<S: Subject>(
    context: &Context<S>,
    lock: &str,
) -> Result<(Client, Lease, Lease), Failure> {
    let client = context.client().await?;
    let ask = |request: LockRequest<Shared>| request.ttl(context.habit.long).acquire();
    let update = ask(client.lock_shared(lock).for_update())
        .await
        .map_err(say)?;
    let reader = ask(client.lock_shared(lock)).await.map_err(say)?;
    ensure(update.token() == reader.token(), || {
        format!("{reader:?} beside {update:?}")
    })?;
    let second = client
        .lock_shared(lock)
        .for_update()
        .ttl(context.habit.long);
    let second = second.try_acquire().await.map_err(say)?;
    ensure(second.is_none(), || {
        format!("two have it in mode update: {second:?}")
    })?;
    Ok((client, update, reader))
}

async fn a_reader_in_mode_update_becomes_the_writer_when_the_others_are_gone<S: Subject>(
    context: &Context<S>,
) -> Checked {
    if !context.habit.shares {
        return NONE;
    }
    let lock = context.lock("update");
    let (client, update, reader) = updater_and_reader(context, &lock).await?;
    let (token, lease) = (update.token(), update.lease_id());
    let (asks, patience) = (client.clone(), context.habit.patience);
    let upgrading = tokio::spawn(async move {
        let writer = asks.upgrade(&update, patience).await;
        (writer, update)
    });
    let hand = context.hand(&lock).await?;
    hand.until("the upgrade that waits", |view| view.waiters == 1)
        .await?;
    hand.is_denied(&hand.reads(context, Duration::ZERO)?)
        .await?;
    ensure(!upgrading.is_finished(), || {
        "it was upgraded beside a reader".to_owned()
    })?;
    reader.release().await.map_err(say)?;
    let (writer, update) = upgrading.await.map_err(say)?;
    let writer = writer.map_err(say)?;
    ensure(
        writer.token() > token
            && writer.lease_id() == lease
            && writer.mode() == LockMode::Exclusive
            && update.check().is_err(),
        || format!("{writer:?} after {update:?}"),
    )?;
    // The reader's guard has ended, and dropping it releases nothing.
    drop(update);
    hand.is_denied(&hand.reads(context, Duration::ZERO)?)
        .await?;
    writer.check().map_err(say)?;
    writer.release().await.map_err(say)?;
    Ok(CheckOutcome::Passed)
}

async fn an_upgrade_that_is_not_granted_leaves_the_reader_as_it_was<S: Subject>(
    context: &Context<S>,
) -> Checked {
    if !context.habit.shares {
        return NONE;
    }
    let lock = context.lock("no-upgrade");
    let (client, update, reader) = updater_and_reader(context, &lock).await?;
    for wait in [Duration::ZERO, Duration::from_millis(50)] {
        match client.upgrade(&update, wait).await {
            Err(Error::Held { holder, .. }) if holder.client == *reader.client_id() => {}
            other => return Err(format!("upgraded beside a reader: {other:?}")),
        }
        update.check().map_err(say)?;
    }
    match client.upgrade(&reader, Duration::ZERO).await {
        Err(Error::Fault(Fault::Invalid(why))) if why.words().contains("shared mode") => {}
        other => return Err(format!("a plain reader was upgraded: {other:?}")),
    }
    let late = client.lock_shared(&lock).ttl(context.habit.long);
    let late = late.try_acquire().await.map_err(say)?;
    ensure(late.is_some(), || "readers join no more".to_owned())?;
    for reader in [reader, update].into_iter().chain(late) {
        reader.release().await.map_err(say)?;
    }
    Ok(CheckOutcome::Passed)
}
