//! A connection to the leader, and the task that reopens it when it breaks or another node leads.

use std::pin::pin;
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};
use std::time::Duration;

use palisade_core::{AuthorityId, Span, Timestamp};
use palisade_proto::borrowed::Reply;
use tokio::sync::{mpsc, oneshot};

use super::connection::{QueuedRequest, RequestQueue};
use super::nodes::{Clue, LeaderSession, Nodes, Pause};
use super::request::Request;
use crate::clock::{BootClock, Clock as _};
use crate::fault::Fault;
use crate::retry::before;

/// The callers' end of a connection that is reopened whenever it breaks.
pub(super) struct Link {
    /// The sender to the running task; replaced if that task's runtime has ended.
    queue: RwLock<mpsc::UnboundedSender<QueuedRequest>>,
    task: LinkTask,
}

impl Link {
    /// Connects, and returns the authority found, which must be the expected one if there is one. If nodes answer and
    /// none leads, it retries for `patience`.
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
                    nodes.pause(&missed).await;
                }
                Err(missed) => return Err(missed.fault),
            }
        };
        let (queue, waiting) = mpsc::unbounded_channel();
        let task = LinkTask {
            nodes: Arc::clone(nodes),
            authority: first.authority.clone(),
            // The other half leaves the caller time to learn that nothing was sent.
            hold: HOLD.min((patience / 2).into()),
        };
        let authority = first.authority.clone();
        tokio::spawn(task.clone().run(waiting, Some(first)));
        let queue = RwLock::new(queue);
        Ok((Link { queue, task }, authority))
    }

    /// Sends one request, and returns the future of its reply.
    pub(super) fn call(
        &self,
        request: Request,
    ) -> impl Future<Output = Result<Reply, Fault>> + use<> {
        let (reply, answer) = oneshot::channel();
        let queued = QueuedRequest::new(request, reply);
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

    fn queue(&self) -> RwLockReadGuard<'_, mpsc::UnboundedSender<QueuedRequest>> {
        self.queue.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Starts another task on the caller's runtime, because the former task's runtime has ended.
    fn begin_anew(&self, first: QueuedRequest) {
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
        // If that runtime ends too, the caller's reply channel closes.
        let _ = queue.send(first);
    }
}

/// The task of a link.
#[derive(Clone)]
struct LinkTask {
    nodes: Arc<Nodes>,
    authority: AuthorityId,
    /// How long operations wait for a leader before they are refused, if there is more than one node.
    hold: Span,
}

impl LinkTask {
    /// Carries operations, and reconnects when the connection ends, until no caller is left.
    async fn run(self, mut queue: RequestQueue, mut open: Option<LeaderSession>) {
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
                // Pause, so that two nodes that name each other do not cause a busy loop.
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
                // An election takes less than this; the waiting operations go to the new leader at once.
                Err(missed) if self.nodes.several() && BootClock.now().since(lost) < self.hold => {
                    self.nodes.pause(&missed).await;
                }
                Err(missed) => refuse_until(missed.until, &mut queue, &missed.fault).await,
            }
        }
    }
}

/// Waits before the next search. Meanwhile callers get the fault at once, with nothing sent; they decide how long to
/// retry.
async fn refuse_until(until: Timestamp, queue: &mut RequestQueue, fault: &Fault) {
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

/// A connection that ends sooner than this is followed by a pause.
const SETTLED: Span = Span::from_millis(1_000);

/// The longest wait of an operation for a leader. A new leader reserves a request's place in a queue for as long.
const HOLD: Span = Span::from_millis(2_000);
