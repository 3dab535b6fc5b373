//! A connection to the leader that is reopened when it breaks or when another node leads, and the task that does so.

use std::pin::pin;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use palisade_core::{AuthorityId, Span, Timestamp};
use palisade_proto::borrowed::Reply;
use tokio::sync::{mpsc, oneshot};

use super::connection::{Queue, Queued};
use super::nodes::{Clue, Found, Nodes, Pause};
use super::request::Request;
use crate::clock::{BootClock, Clock as _};
use crate::fault::Fault;
use crate::retry::before;

/// The callers' end of a connection that is reopened whenever it breaks.
pub(super) struct Link {
    /// To the task that runs; replaced if the runtime of that one has ended.
    queue: RwLock<mpsc::UnboundedSender<Queued>>,
    task: Task,
}

impl Link {
    /// Connects, and returns the authority found there, which must be the expected one, if there is one. If the nodes
    /// answer and none leads, it is repeated for `patience`.
    pub(super) async fn open(
        nodes: &Arc<Nodes>,
        expected: Option<AuthorityId>,
        patience: Duration,
    ) -> Result<(Link, AuthorityId), Fault> {
        let until = BootClock.now().after(patience.into());
        let first = loop {
            match nodes.connect(expected.as_ref(), Clue::default()).await {
                Ok(found) => break found,
                Err(missed) if missed.nobody_leads && missed.until < until => {
                    BootClock.sleep_until(missed.until).await;
                }
                Err(missed) => return Err(missed.fault),
            }
        };
        let (queue, waiting) = mpsc::unbounded_channel();
        let task = Task {
            nodes: Arc::clone(nodes),
            authority: first.authority.clone(),
            // The rest is for the caller to learn that nothing was sent.
            hold: HOLD.min((patience / 2).into()),
        };
        let authority = first.authority.clone();
        tokio::spawn(task.clone().run(waiting, Some(first)));
        let queue = RwLock::new(queue);
        Ok((Link { queue, task }, authority))
    }

    /// Sends one request. Its reply comes when the future returned is polled.
    pub(super) fn call(
        &self,
        request: Request,
    ) -> impl Future<Output = Result<Reply, Fault>> + use<> {
        let (reply, answer) = oneshot::channel();
        let queued = Queued::new(request, reply);
        let sent = self.queue().send(queued);
        if let Err(mpsc::error::SendError(queued)) = sent {
            self.begin_anew(queued);
        }
        async move {
            answer
                .await
                .unwrap_or_else(|_| Err(Fault::unknown_outcome("the connection's task has ended")))
        }
    }

    fn queue(&self) -> RwLockReadGuard<'_, mpsc::UnboundedSender<Queued>> {
        self.queue.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// The runtime of the task has ended: another task connects again on the caller's.
    fn begin_anew(&self, first: Queued) {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            let _ = first.reply.send(Err(Fault::invalid(
                "the Tokio runtime on which this client was connected has ended, and there is no other one here",
            )));
            return;
        };
        let mut queue = self.queue.write().unwrap_or_else(PoisonError::into_inner);
        if queue.is_closed() {
            let (anew, waiting) = mpsc::unbounded_channel();
            runtime.spawn(self.task.clone().run(waiting, None));
            *queue = anew;
        }
        // If that runtime ends, too, the caller learns it from the reply that never comes.
        let _ = queue.send(first);
    }
}

/// The task of a link.
#[derive(Clone)]
struct Task {
    nodes: Arc<Nodes>,
    authority: AuthorityId,
    /// How long operations wait for a leader before they are refused, where there is more than one node.
    hold: Span,
}

impl Task {
    /// Carries operations, and reconnects when the connection ends, until no caller can come any more.
    async fn run(self, mut queue: Queue, mut open: Option<Found>) {
        let (mut pause, mut clue, mut lost) = (Pause::default(), Clue::default(), BootClock.now());
        loop {
            if let Some(mut found) = open.take() {
                let opened = BootClock.now();
                let ended = found.connection.run(&mut queue).await;
                let why = ended.why.reason();
                tracing::debug!(%why, leader = ?ended.leader, "a connection to the authority ended");
                let unknown = Fault::UnknownOutcome(why.clone());
                found.connection.abandon(&unknown);
                lost = BootClock.now();
                clue = Clue {
                    leader: ended.leader,
                    silent: ended.silent.then_some(found.address),
                };
                // Two nodes that name each other must not be asked in a busy loop.
                if lost.since(opened) < SETTLED {
                    BootClock.sleep_until(lost.after(pause.next())).await;
                } else {
                    pause = Pause::default();
                }
            }
            if queue.is_closed() && queue.is_empty() {
                return;
            }
            let expected = Some(&self.authority);
            match self
                .nodes
                .connect(expected, std::mem::take(&mut clue))
                .await
            {
                Ok(found) => open = Some(found),
                // An election takes less than this; what was asked meanwhile is sent to the new leader at once.
                Err(missed) if self.nodes.several() && BootClock.now().since(lost) < self.hold => {
                    BootClock.sleep_until(missed.until).await;
                }
                Err(missed) => refuse_until(missed.until, &mut queue, &missed.fault).await,
            }
        }
    }
}

/// Waits before the next search. Meanwhile callers learn at once that nothing was sent; they decide how long
/// to repeat.
async fn refuse_until(until: Timestamp, queue: &mut Queue, fault: &Fault) {
    let fault = match fault {
        Fault::Unreachable(why) => Fault::Unreachable(why.clone()),
        other => Fault::Unavailable(other.reason().clone()),
    };
    let refuse = pin!(async {
        while let Some(queued) = queue.recv().await {
            let _ = queued.reply.send(Err(fault.clone()));
        }
    });
    // It ends early when no caller is left.
    let _ = before(&BootClock, until, refuse).await;
}

/// A connection that lasted this long was no mistake.
const SETTLED: Span = Span::from_millis(1_000);

/// The longest wait of an operation for a leader: as long as a place in a queue is kept after a change.
const HOLD: Span = Span::from_millis(2_000);
