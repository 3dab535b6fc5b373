//! A request in flight, and its cleanup when its caller stops waiting.

use std::ops::ControlFlow;
use std::sync::Arc;

use palisade_core::{RequestId, Span, Timestamp, Ttl};

use crate::fault::Fault;
use crate::keeper::Keeper;
use crate::retry::{Backoff, Cleanup, CleanupTask, before, graver};
use crate::schedule::Upgrading;
use crate::service::{AcquireRequest, Acquired, Under};

/// A request that may have reached the authority. Dropping it before its outcome is known abandons it in the
/// background.
pub(crate) struct Pending {
    keeper: Arc<Keeper>,
    request: RequestId,
    /// The reader to upgrade; set only for an upgrade.
    reader: Option<Arc<Upgrading>>,
    /// How long after the last attempt the authority may still hold the grant without a renewal.
    lingers: Span,
    /// Whether an attempt is in flight, or one ended with an unknown outcome.
    may_have_happened: bool,
    last_sent: Timestamp,
}

/// The outcome, if it is known now, or the reason to try again.
type Judged = ControlFlow<Result<Acquired, Fault>, Fault>;

impl Pending {
    /// `reader` is the reader to upgrade; set only for an upgrade.
    pub(crate) fn new(
        keeper: Arc<Keeper>,
        request: &AcquireRequest,
        reader: Option<Arc<Upgrading>>,
    ) -> Pending {
        let ttl = match request.under {
            Under::New { ttl, .. } => ttl.span(),
            // The parent lease may be renewed by its own guard for a long time.
            Under::Existing { .. } => Ttl::MAX.span(),
        };
        // Twice the time to live, because neither clock is exact and a renewal cannot happen without a guard.
        let lingers = request.wait.unwrap_or(Span::ZERO).plus(ttl).plus(ttl);
        Pending {
            keeper,
            request: request.request,
            reader,
            lingers,
            may_have_happened: false,
            last_sent: Timestamp::ZERO,
        }
    }

    /// Repeats the request under one request id until the outcome is known. Returns the outcome with two instants: the
    /// clock's reading before the answered attempt was sent, from which a grant's validity counts, and the end of the
    /// wait.
    ///
    /// The client's patience extends the wait only for an outstanding answer. If every attempt certainly failed, the
    /// request ends with its wait: a caller who waits for a second gets the error after a second.
    pub(crate) async fn resolve(
        mut self,
        request: &AcquireRequest,
    ) -> Result<(Timestamp, Acquired, Timestamp), Fault> {
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
                ControlFlow::Break(known) => {
                    return known.map(|acquired| (t0, acquired, wait_until));
                }
                ControlFlow::Continue(fault) => fault,
            };
            let fault = graver(worst.take(), fault);
            let until = match request.wait {
                Some(_) if !self.may_have_happened => wait_until,
                _ => give_up,
            };
            if !backoff.pause(&*core.clock, until).await {
                return Err(fault);
            }
            worst = Some(fault);
        }
    }

    /// Decides whether an answer settles the request. `uncertain`: an earlier attempt may have happened.
    fn judge(&mut self, uncertain: bool, answer: Option<Result<Acquired, Fault>>) -> Judged {
        match answer {
            Some(Ok(acquired)) => {
                self.may_have_happened = false;
                ControlFlow::Break(Ok(acquired))
            }
            Some(Err(fault @ Fault::UnknownOutcome(_))) => ControlFlow::Continue(fault),
            Some(Err(fault)) => {
                // This attempt did nothing; an earlier one may have.
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
            let task = match self.reader.take() {
                Some(reader) => CleanupTask::GiveUp(self.request, reader),
                None => CleanupTask::Abandon(self.request),
            };
            self.keeper.send(Cleanup { task, until });
        }
    }
}
