//! Operations that must reach the authority although nobody waits for them, and the one way in which
//! an operation is repeated.

use std::sync::Arc;

use palisade_core::{GrantRef, RequestId, Span, Timestamp};

use crate::clock::Clock;
use crate::fault::Fault;
use crate::keeper::Core;
use crate::service::Operation;

/// What is done in the background, until it is acknowledged or no longer matters.
#[derive(Debug)]
pub(crate) struct Errand {
    pub(crate) task: Task,
    /// From here on the authority has forgotten the grant by itself.
    pub(crate) until: Timestamp,
}

#[derive(Debug)]
pub(crate) enum Task {
    /// A guard was dropped.
    Release(GrantRef),
    /// An acquire was cancelled or got no answer.
    Abandon(RequestId),
}

impl Errand {
    pub(crate) async fn run(self, core: Arc<Core>) {
        let until = self.until;
        let result = match &self.task {
            Task::Release(grant) => insist(&core, until, || core.service.release(grant.clone()))
                .await
                .map(drop),
            Task::Abandon(request) => insist(&core, until, || core.service.abandon(*request)).await,
        };
        if let Err(fault) = result {
            tracing::debug!(errand = ?self.task, %fault, "left to expire");
        }
    }
}

/// Repeats an operation until it has an answer, or a fault that repeating does not cure, or `until`.
pub(crate) async fn insist<'a, T>(
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

/// Of two attempts, one that may have happened outweighs one that did not.
pub(crate) fn graver(earlier: Option<Fault>, later: Fault) -> Fault {
    match earlier {
        Some(unknown @ Fault::UnknownOutcome(_)) => unknown,
        _ => later,
    }
}

/// The future's output, or `None` if `until` comes first.
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

    /// Pauses; `false`, at once, if there would be no time left after it.
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
