//! Retries, and the cleanups that are retried in the background after their caller has stopped waiting.

use std::sync::Arc;

use palisade_core::{GrantRef, RequestId, Span, Timestamp};

use crate::clock::Clock;
use crate::error::Loss;
use crate::fault::Fault;
use crate::schedule::{KeptGrant, Upgrading};
use crate::service::{Operation, Renewal};
use crate::state::Core;

/// A release or an abandon, retried in the background until it is acknowledged or no longer matters.
#[derive(Debug)]
pub(crate) struct Cleanup {
    pub(crate) task: CleanupTask,
    /// The instant by which the grant has expired at the authority anyway.
    pub(crate) until: Timestamp,
}

#[derive(Debug)]
pub(crate) enum CleanupTask {
    /// A guard was dropped.
    Release(GrantRef),
    /// An acquire was cancelled or got no answer.
    Abandon(RequestId),
    /// The upgrade of this reader was cancelled or got no answer.
    GiveUp(RequestId, Arc<Upgrading>),
}

impl Cleanup {
    pub(crate) async fn run(self, core: Arc<Core>) {
        let until = self.until;
        let result = match &self.task {
            CleanupTask::Release(grant) => {
                repeat_until(&core, until, || core.service.release(grant.clone()))
                    .await
                    .map(drop)
            }
            CleanupTask::Abandon(request) => {
                repeat_until(&core, until, || core.service.abandon(*request)).await
            }
            CleanupTask::GiveUp(upgrade, reader) => give_up(&core, until, *upgrade, reader).await,
        };
        if let Err(fault) = result {
            let fault = format_args!("{fault:#}");
            tracing::debug!(cleanup = ?self.task, %fault, "left to expire");
        }
    }
}

/// Gives an upgrade up. Abandoning an upgrade that was granted frees the lock, so the reader must learn of that first.
/// It checks again afterwards, because the upgrade may have been granted in between.
async fn give_up(
    core: &Core,
    until: Timestamp,
    upgrade: RequestId,
    reader: &KeptGrant,
) -> Result<(), Fault> {
    find_out(core, reader).await;
    repeat_until(core, until, || core.service.abandon(upgrade)).await?;
    find_out(core, reader).await;
    Ok(())
}

/// Asks the authority whether a reader still has its grant, and records a loss.
async fn find_out(core: &Core, reader: &KeptGrant) {
    let Some(deadline) = reader.hold.deadline() else {
        return;
    };
    let renew = || core.service.renew(reader.grant.clone(), None);
    match repeat_until(core, deadline, renew).await {
        Ok(Renewal::Ended(how)) => reader.hold.lose(Loss::Ended(how)),
        Ok(Renewal::NotHeld) => reader.hold.lose(Loss::NotHeld),
        Ok(Renewal::Stale { highest }) => reader.hold.lose(Loss::Stale { highest }),
        // The reader's deadline still applies.
        Ok(Renewal::Renewed(_)) | Err(_) => {}
    }
}

/// Repeats an operation until it is answered, fails with a fault that repeating cannot fix, or `until` comes.
pub(crate) async fn repeat_until<'a, T>(
    core: &Core,
    until: Timestamp,
    mut attempt: impl FnMut() -> Operation<'a, T>,
) -> Result<T, Fault> {
    let mut backoff = Backoff::new();
    let mut worst = None;
    loop {
        let fault = match before(&*core.clock, until, attempt()).await {
            Some(Err(fault)) if fault.is_transient() => fault,
            Some(answer) => return answer,
            None => Fault::unknown_outcome("there was no answer in time"),
        };
        let fault = graver(worst.take(), fault);
        if !backoff.pause(&*core.clock, until).await {
            return Err(fault);
        }
        worst = Some(fault);
    }
}

/// Returns the more serious fault of two attempts: an unknown outcome outweighs a certain failure.
pub(crate) fn graver(earlier: Option<Fault>, later: Fault) -> Fault {
    match earlier {
        Some(unknown @ Fault::UnknownOutcome(_)) => unknown,
        _ => later,
    }
}

/// Returns the future's output, or `None` if `until` comes first.
pub(crate) async fn before<F: Future + Unpin>(
    clock: &dyn Clock,
    until: Timestamp,
    operation: F,
) -> Option<F::Output> {
    tokio::select! {
        biased;
        output = operation => Some(output),
        () = clock.sleep_until(until) => None,
    }
}

/// Pauses between attempts, doubling from 10 ms to half a second.
pub(crate) struct Backoff {
    next: Span,
}

impl Backoff {
    pub(crate) fn new() -> Backoff {
        Backoff {
            next: Span::from_millis(10),
        }
    }

    /// Pauses. Returns `false` at once if `until` would come before the end of the pause.
    pub(crate) async fn pause(&mut self, clock: &dyn Clock, until: Timestamp) -> bool {
        let end = clock.now().after(self.next);
        if end >= until {
            return false;
        }
        self.next = self.next.plus(self.next).min(LONGEST);
        clock.sleep_until(end).await;
        true
    }
}

const LONGEST: Span = Span::from_millis(500);
