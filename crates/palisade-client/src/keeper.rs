//! The one background task of a client: it renews leases, announces losses and cleans up after
//! callers that left.
//!
//! ```text
//!   guard ── keep / forget ──► Schedule (ordered by what is due next) ◄── alarm ── keeper task
//!   guard dropped, acquire cancelled ── cleanup ──────────────────────────────────►   │
//!                                              renewals, releases, abandons in flight ◄┘
//! ```
//!
//! A lease costs one entry in an ordered map, not a task, however many grants it has. An entry is due when its
//! lease wants to be renewed or a deadline is reached, whichever is first. A renewal names one of the lease's
//! grants, each in its turn, and counts for all of them; if that one is over, the next is named at once.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::stream::{FuturesUnordered, StreamExt as _};
use palisade_core::holder::Caution;
use palisade_core::{Span, Timestamp};
use tokio::sync::mpsc;

use crate::clock::{Clock, Sleep};
use crate::error::Loss;
use crate::fault::Fault;
use crate::retry::Cleanup;
use crate::schedule::{Kept, KeptLease, NEVER};
use crate::service::{LockService, Renewal};
use crate::state::Core;

/// A handle of the background task; shared by a client and its guards. When the last one is gone,
/// the task finishes the cleanups it has and ends. If its runtime ends before, the next request or the next look at a lease
/// starts it again on another one.
pub(crate) struct Keeper {
    core: Arc<Core>,
    /// Of the task that runs, or of the next one.
    inbox: Mutex<mpsc::UnboundedSender<Message>>,
    /// The task's end of the channel until the task runs.
    idle: Mutex<Option<mpsc::UnboundedReceiver<Message>>>,
    running: Arc<AtomicBool>,
}

enum Message {
    /// Something is due earlier than the alarm is set for.
    Look,
    Cleanup(Cleanup),
}

type InFlight = FuturesUnordered<std::pin::Pin<Box<dyn Future<Output = ()> + Send>>>;

impl Keeper {
    pub(crate) fn new(
        service: Arc<dyn LockService>,
        clock: Arc<dyn Clock>,
        caution: Caution,
        patience: Span,
    ) -> Keeper {
        let (inbox, messages) = mpsc::unbounded_channel();
        let schedule = Mutex::default();
        Keeper {
            core: Arc::new(Core {
                service,
                clock,
                caution,
                patience,
                schedule,
            }),
            inbox: Mutex::new(inbox),
            idle: Mutex::new(Some(messages)),
            running: Arc::default(),
        }
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        &self.core
    }

    /// Starts the task on the runtime of the caller if it does not run: once, and again if its runtime has ended.
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
        let running = Running(Arc::clone(&self.running));
        runtime.spawn(run(Arc::clone(&self.core), messages, running));
        Ok(())
    }

    fn inbox(&self) -> MutexGuard<'_, mpsc::UnboundedSender<Message>> {
        self.inbox.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Renews a lease for a grant, too, from now on, and announces the grant's loss.
    pub(crate) fn keep(&self, lease: &Arc<KeptLease>, kept: &Arc<Kept>) {
        // The runtime of the task may have ended since the request was sent. If no other one can go on, the grant's own
        // deadline ends it.
        let _ = self.start();
        lease.join(kept);
        let due = next_look(kept.hold.deadline(), self.core.clock.now());
        if self.core.schedule().put_by(lease, due) {
            let _ = self.inbox().send(Message::Look);
        }
    }

    /// Stops renewing a lease of which no grant is left; the others keep it alive.
    pub(crate) fn forget(&self, lease: &KeptLease) {
        self.core.schedule().forget(lease);
    }

    /// Hands a cleanup to the background. Works anywhere: no runtime is needed to say it. If the task has ended and no
    /// other one can go on, the authority's own deadline cleans up.
    pub(crate) fn send(&self, cleanup: Cleanup) {
        let _ = self.start();
        let _ = self.inbox().send(Message::Cleanup(cleanup));
    }
}

impl Core {
    /// Takes everything due, and starts what it needs.
    fn attend(self: &Arc<Core>, in_flight: &InFlight) {
        let now = self.clock.now();
        loop {
            let Some(lease) = self.schedule().take_due(now) else {
                return;
            };
            if let Some(kept) = lease.next(now) {
                // Comes up again when this attempt must have been answered.
                let due = next_look(lease.deadline(), now);
                self.schedule().put(&lease, due);
                in_flight.push(Box::pin(renew(Arc::clone(self), lease, kept)));
            }
        }
    }

    /// When the alarm must ring, and remembers it.
    fn arm(&self, already: Timestamp) -> Timestamp {
        self.schedule().arm(already)
    }
}

/// Says that the task runs, until the task ends or is dropped with its runtime.
struct Running(Arc<AtomicBool>);

impl Drop for Running {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

/// The background task.
async fn run(core: Arc<Core>, mut messages: mpsc::UnboundedReceiver<Message>, _running: Running) {
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
                Some(Message::Look) => {}
                // No client and no guard is left, so nothing new can come.
                None => open = false,
            },
            Some(()) = in_flight.next() => {}
            // What has rung is not polled again.
            () = &mut alarm.1 => alarm = (NEVER, Box::pin(std::future::pending())),
        }
    }
}

/// One attempt to renew. Each counts from its own sending, so a second one may be under way while
/// the answer to a first is late: whichever is acknowledged moves the deadline, and only forward.
async fn renew(core: Arc<Core>, lease: Arc<KeptLease>, kept: Arc<Kept>) {
    let t0 = core.clock.now();
    let answer = core.service.renew(kept.grant.clone(), None).await;
    let now = core.clock.now();
    let over = match answer {
        Ok(Renewal::Renewed(renewed)) => {
            lease.renewed(now, core.caution.deadline(t0, renewed.valid_for));
            let due = next_look(lease.deadline(), now);
            core.schedule().put(&lease, due);
            return;
        }
        Ok(Renewal::Ended(how)) => Loss::Ended(how),
        Ok(Renewal::NotHeld) => Loss::NotHeld,
        Ok(Renewal::Stale { highest }) => Loss::Stale { highest },
        // Nothing is extended; the deadline stands, and until then it is tried again.
        Err(fault) => {
            let fault = format_args!("{fault:#}");
            tracing::debug!(lock = %kept.grant.lock, %fault, "a renewal got no answer");
            let due = after_failure(lease.deadline(), now);
            core.schedule().put(&lease, due);
            return;
        }
    };
    lease.lose(&kept.grant, over);
    // That says nothing of the lease's other grants.
    core.schedule().put(&lease, now);
}

/// A third of what is left: with a fresh lease that is a third of its time to live, and with a
/// shorter one (or a wide margin) there are always attempts to come.
fn next_look(deadline: Option<Timestamp>, now: Timestamp) -> Timestamp {
    after(deadline, now, Span::from_nanos(u64::MAX))
}

/// Soon, so that a server that was restarted is found before the deadline.
fn after_failure(deadline: Option<Timestamp>, now: Timestamp) -> Timestamp {
    after(deadline, now, LONGEST_PAUSE)
}

/// A third of the time to a deadline, at most `longest`. What is lost already is looked at soon.
fn after(deadline: Option<Timestamp>, now: Timestamp, longest: Span) -> Timestamp {
    let left = deadline.map_or(Span::ZERO, |deadline| deadline.since(now));
    let third = Span::from_nanos(left.as_nanos() / 3);
    let due = now.after(third.clamp(SHORTEST_PAUSE, longest));
    deadline.map_or(due, |deadline| due.min(deadline))
}

const SHORTEST_PAUSE: Span = Span::from_millis(20);
const LONGEST_PAUSE: Span = Span::from_millis(500);
