//! The answer to a write, read from the service at the service's own pace (rule F12).
//!
//! ```text
//!   service ──► Relay::drain, in the write's own task ──► queue, up to its bounds ──► AnswerBody ──► client
//!               its end is the end of the write                                       at any pace
//! ```
//!
//! No request waits for a client that does not read or has disconnected: the unread part of the answer is buffered for
//! the client, or discarded once it has disconnected.

use std::collections::VecDeque;
use std::future::{Future, poll_fn};
use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use axum_core::body::Body;
use bytes::Bytes;
use http_body::{Body as HttpBody, Frame, SizeHint};
use http_body_util::BodyExt;
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore};
use tokio::time::{Sleep, timeout};

use crate::http::Policy;
use crate::http::body::permits;

/// The service's side.
pub(super) struct Relay {
    shared: Arc<Shared>,
    /// Memory for this answer.
    own: Arc<Semaphore>,
    own_bytes: usize,
    /// Memory for all bodies together.
    all: Arc<Semaphore>,
}

/// The client's side: a body.
struct AnswerBody {
    shared: Arc<Shared>,
    hint: SizeHint,
}

#[derive(Default)]
struct Shared {
    queue: Mutex<Queue>,
    /// The client took a piece, or disconnected.
    changed: Notify,
}

#[derive(Default)]
struct Queue {
    frames: VecDeque<HeldFrame>,
    ended: Option<Result<(), Broken>>,
    client_gone: bool,
    waker: Option<Waker>,
}

/// A piece, and its share of the memory.
type HeldFrame = (Frame<Bytes>, [Option<OwnedSemaphorePermit>; 2]);

/// The rest of the answer is lost.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("the answer broke off or was not read in time")]
struct Broken;

impl Relay {
    /// Creates a relay, and the body for the client.
    pub(super) fn new(policy: &Policy, all: Arc<Semaphore>, hint: SizeHint) -> (Relay, Body) {
        let shared = Arc::<Shared>::default();
        let kept = AnswerBody {
            shared: shared.clone(),
            hint,
        };
        let relay = Relay {
            shared,
            own: Arc::new(Semaphore::new(policy.answer_bytes)),
            own_bytes: policy.answer_bytes,
            all,
        };
        (relay, Body::new(kept))
    }

    /// Reads the service's answer; returns whether its end was seen before `over`.
    pub(super) async fn drain(&self, mut body: Body, over: Pin<&mut Sleep>) -> bool {
        let draining = async {
            while let Some(frame) = body.frame().await {
                let Ok(frame) = frame else {
                    return false;
                };
                self.push(frame).await;
            }
            true
        };
        let seen = before(over, draining).await.unwrap_or(false);
        let mut queue = self.shared.queue();
        queue.ended = Some(if seen { Ok(()) } else { Err(Broken) });
        queue.wake();
        seen
    }

    /// Keeps the unread part of the answer for this long.
    pub(super) async fn deliver(self, within: Duration) {
        let delivering = self.until(|queue| queue.client_gone || queue.frames.is_empty());
        if timeout(within, delivering).await.is_err() {
            let mut queue = self.shared.queue();
            queue.frames.clear();
            queue.ended = Some(Err(Broken));
            queue.wake();
        }
    }

    /// Puts a piece into the queue when there is room, or discards it if the client has disconnected.
    async fn push(&self, frame: Frame<Bytes>) {
        let bytes = frame.data_ref().map_or(0, Bytes::len).min(self.own_bytes);
        let room = async {
            let own = self.own.clone().acquire_many_owned(permits(bytes)).await;
            let all = self.all.clone().acquire_many_owned(permits(bytes)).await;
            // Neither is ever closed.
            [own.ok(), all.ok()]
        };
        let (mut room, mut gone) = (pin!(room), pin!(self.until(|queue| queue.client_gone)));
        let held = poll_fn(|context| match gone.as_mut().poll(context) {
            Poll::Ready(()) => Poll::Ready(None),
            Poll::Pending => room.as_mut().poll(context).map(Some),
        });
        let Some(held) = held.await else {
            return;
        };
        let mut queue = self.shared.queue();
        if !queue.client_gone {
            queue.frames.push_back((frame, held));
            queue.wake();
        }
    }

    async fn until(&self, holds: impl Fn(&Queue) -> bool) {
        loop {
            let changed = self.shared.changed.notified();
            if holds(&self.shared.queue()) {
                return;
            }
            changed.await;
        }
    }
}

/// Returns the output of `work` if it ends before `over`.
pub(super) async fn before<T>(
    mut over: Pin<&mut Sleep>,
    work: impl Future<Output = T>,
) -> Option<T> {
    let mut work = pin!(work);
    poll_fn(|context| match work.as_mut().poll(context) {
        Poll::Ready(done) => Poll::Ready(Some(done)),
        Poll::Pending => over.as_mut().poll(context).map(|()| None),
    })
    .await
}

impl Drop for Relay {
    /// If the write's task panicked, its client must not wait.
    fn drop(&mut self) {
        let mut queue = self.shared.queue();
        queue.ended.get_or_insert(Err(Broken));
        queue.wake();
    }
}

impl Shared {
    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Queue {
    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

impl HttpBody for AnswerBody {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        let shared = self.shared.clone();
        let mut queue = shared.queue();
        if let Some((frame, _)) = queue.frames.pop_front() {
            drop(queue);
            shared.changed.notify_waiters();
            if let (Some(data), Some(left)) = (frame.data_ref(), self.hint.exact()) {
                self.hint = SizeHint::with_exact(left.saturating_sub(data.len() as u64));
            }
            return Poll::Ready(Some(Ok(frame)));
        }
        match queue.ended {
            Some(Ok(())) => Poll::Ready(None),
            Some(Err(broken)) => Poll::Ready(Some(Err(broken))),
            None => {
                queue.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    fn is_end_stream(&self) -> bool {
        let queue = self.shared.queue();
        queue.frames.is_empty() && matches!(queue.ended, Some(Ok(())))
    }

    fn size_hint(&self) -> SizeHint {
        match self.hint.exact() {
            Some(left) => SizeHint::with_exact(left),
            None => SizeHint::default(),
        }
    }
}

impl Drop for AnswerBody {
    fn drop(&mut self) {
        let mut queue = self.shared.queue();
        queue.client_gone = true;
        queue.frames.clear();
        drop(queue);
        self.shared.changed.notify_waiters();
    }
}
