//! A request that is under way, and what becomes of it when nobody waits for it any more.

use std::ops::ControlFlow;
use std::sync::Arc;

use palisade_core::{RequestId, Span, Timestamp, Ttl};

use crate::errand::{Backoff, Errand, Task, before, graver};
use crate::fault::Fault;
use crate::keeper::Keeper;
use crate::service::{AcquireRequest, Acquired, Under};

/// A request that may have reached the authority. Dropping it before its outcome is known abandons
/// it in the background.
pub(crate) struct Pending {
    keeper: Arc<Keeper>,
    request: RequestId,
    /// How long the authority may remember the grant by itself, from the last attempt on.
    lingers: Span,
    /// An attempt is under way, or one ended without saying that nothing happened.
    may_have_happened: bool,
    last_sent: Timestamp,
}

/// What is known now, or why to try again.
type Judged = ControlFlow<Result<Acquired, Fault>, Fault>;

impl Pending {
    pub(crate) fn new(keeper: Arc<Keeper>, request: &AcquireRequest) -> Pending {
        let ttl = match request.under {
            Under::New(ttl) => ttl.span(),
            // The lease it goes under may be renewed by its own guard for long.
            Under::Existing(_) => Ttl::MAX.span(),
        };
        // Twice, because neither clock is exact and a renewal cannot happen without a guard.
        let lingers = request.wait.unwrap_or(Span::ZERO).plus(ttl).plus(ttl);
        Pending {
            keeper,
            request: request.request,
            lingers,
            may_have_happened: false,
            last_sent: Timestamp::ZERO,
        }
    }

    /// Attempts with one request id until the outcome is known; with it comes the clock's reading
    /// from before the attempt that was answered was sent, which a grant is valid from.
    pub(crate) async fn resolve(
        mut self,
        request: &AcquireRequest,
    ) -> Result<(Timestamp, Acquired), Fault> {
        let core = Arc::clone(self.keeper.core());
        let wait_until = core.clock.now().after(request.wait.unwrap_or(Span::ZERO));
        let give_up = wait_until.after(core.patience);
        let (mut backoff, mut worst) = (Backoff::new(), None);
        loop {
            let uncertain = self.may_have_happened;
            let t0 = core.clock.now();
            self.sent(t0);
            let wait = Some(wait_until.since(t0)).filter(|left| *left != Span::ZERO);
            let attempt = core.service.acquire(AcquireRequest {
                wait,
                ..request.clone()
            });
            let answer = before(&*core.clock, give_up, attempt).await;
            let fault = match self.judge(uncertain, answer) {
                ControlFlow::Break(known) => return known.map(|acquired| (t0, acquired)),
                ControlFlow::Continue(fault) => fault,
            };
            let fault = graver(worst.take(), fault);
            if !backoff.pause(&*core.clock, give_up).await {
                return Err(fault);
            }
            worst = Some(fault);
        }
    }

    /// Whether an attempt settles the matter. `uncertain`: one before it may have happened.
    fn judge(&mut self, uncertain: bool, answer: Option<Result<Acquired, Fault>>) -> Judged {
        match answer {
            Some(Ok(acquired)) => {
                self.may_have_happened = false;
                ControlFlow::Break(Ok(if uncertain {
                    repeated(acquired)
                } else {
                    acquired
                }))
            }
            Some(Err(fault @ Fault::UnknownOutcome(_))) => ControlFlow::Continue(fault),
            Some(Err(fault)) => {
                // This attempt did nothing, which says nothing of those before it.
                self.may_have_happened = uncertain;
                if fault.is_transient() {
                    ControlFlow::Continue(fault)
                } else {
                    ControlFlow::Break(Err(fault))
                }
            }
            None => ControlFlow::Continue(Fault::unknown_outcome("there was no answer in time")),
        }
    }

    fn sent(&mut self, at: Timestamp) {
        self.may_have_happened = true;
        self.last_sent = at;
    }
}

impl Drop for Pending {
    fn drop(&mut self) {
        if self.may_have_happened {
            let until = self.last_sent.after(self.lingers);
            self.keeper.send(Errand {
                task: Task::Abandon(self.request),
                until,
            });
        }
    }
}

/// The answer to a request id that may have been sent before.
///
/// If the first sending still waited in the queue, `valid_for` counts from that one, before this
/// attempt's reading of the clock: believing it would be believing too long. Without the time spent
/// waiting it counts from the grant, and what was still waiting when this attempt arrived was granted
/// after it was sent. The millisecond is for rounding on the wire.
fn repeated(acquired: Acquired) -> Acquired {
    match acquired {
        Acquired::Granted(mut granted) => {
            let before = match granted.waited {
                Span::ZERO => Span::ZERO,
                waited => waited.plus(Span::from_millis(1)),
            };
            let valid = granted
                .valid_for
                .as_nanos()
                .saturating_sub(before.as_nanos());
            granted.valid_for = Span::from_nanos(valid);
            Acquired::Granted(granted)
        }
        other => other,
    }
}
