//! The one background task of a client. It renews leases, announces losses, and cleans up after callers that stopped
//! waiting.
//!
//! ```text
//!   guard ── keep / forget ──► Schedule (ordered by what is due next) ◄── alarm ── keeper task
//!   guard dropped, acquire cancelled ── cleanup ──────────────────────────────────►   │
//!                                              renewals, releases, abandons in flight ◄┘
//! ```
//!
//! A lease costs one entry in an ordered map, not a task, however many grants it has. An entry is due at the lease's
//! next renewal or at its deadline, whichever comes first. A renewal names the lease's grants in turn, and extends all
//! of them; if the named grant is over, the next one is tried at once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use palisade_core::{Span, Timestamp};
use tokio::sync::mpsc;
use tokio_util::task::AbortOnDropHandle;

use crate::clock::{Clock, Sleep};
use crate::error::Loss;
use crate::fault::Fault;
use crate::listening::{self, Unnamed};
use crate::options::Options;
use crate::reports::{self, Reports};
use crate::retry::Cleanup;
use crate::schedule::{KeptGrant, KeptLease, NEVER};
use crate::service::{LateWrite, LockService, Renewal};
use crate::state::Core;

/// A handle of the background task, shared by a client and its guards. When the last handle is dropped, the task
/// finishes its cleanups and ends. If its runtime ends first, the next request, or the next call of
/// [`Lease::lost`](crate::Lease::lost), starts it again on another runtime.
pub(crate) struct Keeper {
    core: Arc<Core>,
    /// The sender to the running task, or to the next one.
    inbox: Mutex<mpsc::UnboundedSender<Message>>,
    /// The receiver, until a task takes it.
    idle: Mutex<Option<mpsc::UnboundedReceiver<Message>>>,
    running: Arc<AtomicBool>,
}

enum Message {
    /// Something is due before the alarm.
    Look,
    Cleanup(Cleanup),
    /// A late write is to be reported.
    Report,
}

type InFlight = FuturesUnordered<std::pin::Pin<Box<dyn Future<Output = ()> + Send>>>;

impl Keeper {
    pub(crate) fn new(
        service: Arc<dyn LockService>,
        clock: Arc<dyn Clock>,
        options: &Options,
    ) -> Keeper {
        let (inbox, messages) = mpsc::unbounded_channel();
        let schedule = Mutex::default();
        let listens = options.notices && service.listen().is_some();
        Keeper {
            core: Arc::new(Core {
                service,
                clock,
                caution: options.caution,
                patience: Span::from(options.patience),
                schedule,
                reports: Reports::new(options.report_refusals),
                unnamed: Unnamed::new(listens),
            }),
            inbox: Mutex::new(inbox),
            idle: Mutex::new(Some(messages)),
            running: Arc::default(),
        }
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Starts the task on the caller's runtime if it is not running: the first time, and again if its runtime has
    /// ended.
    pub(crate) fn start(&self) -> Result<(), Fault> {
        if self.running.load(Ordering::Acquire) {
            return Ok(());
        }
        let runtime = tokio::runtime::Handle::try_current().map_err(|_| {
            Fault::invalid("a lease is renewed in the background and needs a Tokio runtime")
        })?;
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if self.running.load(Ordering::Acquire) {
            return Ok(());
        }
        let messages = match idle.take() {
            Some(messages) => messages,
            None if self.core.service.outlives_runtimes() => {
                let (inbox, messages) = mpsc::unbounded_channel();
                *self.inbox() = inbox;
                messages
            }
            None => {
                return Err(Fault::invalid(
                    "the Tokio runtime on which this client was connected has ended; connect another client on this one",
                ));
            }
        };
        self.running.store(true, Ordering::Release);
        let running = RunningTask(Arc::clone(&self.running));
        runtime.spawn(run(Arc::clone(&self.core), messages, running));
        Ok(())
    }

    fn inbox(&self) -> MutexGuard<'_, mpsc::UnboundedSender<Message>> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a grant to a lease: renews the lease for it and announces its loss.
    pub(crate) fn keep(&self, lease: &Arc<KeptLease>, kept: &Arc<KeptGrant>) {
        // The task's runtime may have ended since the request was sent. If the task cannot start again, the grant ends
        // at its deadline.
        let _ = self.start();
        lease.join(kept);
        self.core.unnamed.add(kept);
        let due = next_look(kept.hold.deadline(), self.core.clock.now());
        if self.core.schedule().put_by(lease, due) {
            let _ = self.inbox().send(Message::Look);
        }
    }

    /// Stops renewing a lease if none of its grants is left.
    pub(crate) fn forget(&self, lease: &KeptLease) {
        self.core.schedule().forget(lease);
    }

    /// Passes a cleanup to the background task. It needs no runtime. If the task has ended and cannot start again, the
    /// grant expires at the authority.
    pub(crate) fn send(&self, cleanup: Cleanup) {
        let _ = self.start();
        let _ = self.inbox().send(Message::Cleanup(cleanup));
    }

    /// Has a late write reported by the background task. It needs no runtime and never waits.
    pub(crate) fn report(&self, late: LateWrite) {
        if self.core.reports.take(late, self.core.clock.now()) {
            let _ = self.start();
            let _ = self.inbox().send(Message::Report);
        }
    }
}

impl Core {
    /// Handles every lease that is due, and starts the renewals.
    fn attend(self: &Arc<Core>, in_flight: &InFlight) {
        let now = self.clock.now();
        loop {
            let Some(lease) = self.schedule().take_due(now) else {
                return;
            };
            if let Some(kept) = lease.next(now) {
                // Schedule the next look for when this attempt should have an answer.
                let due = next_look(lease.deadline(), now);
                self.schedule().put(&lease, due);
                in_flight.push(Box::pin(renew(Arc::clone(self), lease, kept)));
            }
        }
    }

    /// Returns when the alarm must ring, and records it.
    fn arm(&self, already: Timestamp) -> Timestamp {
        self.schedule().arm(already)
    }
}

/// Set while the task runs; cleared when the task ends or its runtime drops it.
struct RunningTask(Arc<AtomicBool>);

impl Drop for RunningTask {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// The background task.
async fn run(
    core: Arc<Core>,
    mut messages: mpsc::UnboundedReceiver<Message>,
    _running: RunningTask,
) {
    let _listening = core.unnamed.listens().then(|| {
        let listening = tokio::spawn(listening::run(Arc::clone(&core)));
        AbortOnDropHandle::new(listening)
    });
    let mut in_flight = InFlight::new();
    let mut alarm: (Timestamp, Sleep) = (NEVER, Box::pin(std::future::pending()));
    let mut open = true;
    while open || !in_flight.is_empty() {
        core.attend(&in_flight);
        let at = core.arm(alarm.0);
        if at < alarm.0 {
            alarm = (at, core.clock.alarm(at));
        }
        tokio::select! {
            message = messages.recv(), if open => match message {
                Some(Message::Cleanup(cleanup)) => in_flight.push(Box::pin(cleanup.run(Arc::clone(&core)))),
                Some(Message::Report) => in_flight.push(Box::pin(reports::run(Arc::clone(&core)))),
                Some(Message::Look) => {}
                // No client and no guard is left, so no message can follow.
                None => open = false,
            },
            Some(()) = in_flight.next() => {}
            // Do not poll a completed alarm again.
            () = &mut alarm.1 => alarm = (NEVER, Box::pin(std::future::pending())),
        }
    }
}

/// Attempts one renewal. Each attempt counts from its own start, so a second may start while the answer to the first is
/// late. Any acknowledged attempt moves the deadline, only forward.
async fn renew(core: Arc<Core>, lease: Arc<KeptLease>, kept: Arc<KeptGrant>) {
    lease.renews();
    let t0 = core.clock.now();
    let answer = core.service.renew(kept.grant.clone(), None).await;
    let now = core.clock.now();
    let over = match answer {
        Ok(Renewal::Renewed(renewed)) => {
            lease.renewed(now, core.caution.deadline(t0, renewed.valid_for));
            if !core.unnamed.is_told() {
                lease.wanted(renewed.waiters);
            }
            let due = next_look(lease.deadline(), now);
            core.schedule().put(&lease, due);
            return;
        }
        Ok(Renewal::Ended(how)) => Loss::Ended(how),
        Ok(Renewal::NotHeld) => Loss::NotHeld,
        Ok(Renewal::Stale { highest }) => Loss::Stale { highest },
        // The deadline does not move; try again until then.
        Err(fault) => {
            let fault = format_args!("{fault:#}");
            tracing::debug!(lock = %kept.grant.lock, %fault, "a renewal got no answer");
            lease.suspend();
            let due = after_failure(lease.deadline(), now);
            core.schedule().put(&lease, due);
            return;
        }
    };
    let due = if lease.lose(&kept.grant, over) {
        // The lease's other grants may still be live.
        now
    } else {
        // Soon the answer to the upgrade is here.
        after_failure(lease.deadline(), now)
    };
    core.schedule().put(&lease, due);
}

/// Waits a third of the remaining time: for a fresh lease, a third of its time to live. Closer to the deadline there
/// are still several attempts.
fn next_look(deadline: Option<Timestamp>, now: Timestamp) -> Timestamp {
    after(deadline, now, Span::from_nanos(u64::MAX))
}

/// Retries soon, so that a restarted server is reached before the deadline.
fn after_failure(deadline: Option<Timestamp>, now: Timestamp) -> Timestamp {
    after(deadline, now, LONGEST_PAUSE)
}

/// Returns the instant after a third of the time to a deadline, at most `longest`; soon if the lease is lost already.
fn after(deadline: Option<Timestamp>, now: Timestamp, longest: Span) -> Timestamp {
    let left = deadline.map_or(Span::ZERO, |deadline| deadline.since(now));
    let third = Span::from_nanos(left.as_nanos() / 3);
    let due = now.after(third.clamp(SHORTEST_PAUSE, longest));
    deadline.map_or(due, |deadline| due.min(deadline))
}

const SHORTEST_PAUSE: Span = Span::from_millis(20);
const LONGEST_PAUSE: Span = Span::from_millis(500);
