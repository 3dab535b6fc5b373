//! The session as a gRPC stream. One object does both directions inside the response's poll.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use palisade_proto::v1::{Replies, Requests};
use tonic::Status;

use super::super::convert::Refusal;
use super::super::gate::Who;
use super::Sessions;
use super::flow::{FRAMES_A_TURN, Flow};

/// A session's stream of replies; `S` is the stream of requests that it reads.
pub(in crate::net) struct ReplyStream<S> {
    flow: Flow,
    /// The frames of requests; `None` when the client sends no more.
    frames: Option<S>,
    /// A frame for which there is no memory yet.
    held: Option<Requests>,
    /// Why the session ends early; sent after all answers.
    failed: Option<Status>,
    draining: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl<S> ReplyStream<S> {
    /// # Errors
    /// A quota is used up.
    pub(in crate::net) fn new(
        sessions: Arc<Sessions>,
        who: Who,
        frames: S,
    ) -> Result<ReplyStream<S>, Refusal> {
        let mut flow = Flow::new(Arc::clone(&sessions));
        flow.open(who)?;
        Ok(ReplyStream {
            draining: Box::pin(sessions.phases.draining()),
            flow,
            frames: Some(frames),
            held: None,
            failed: None,
        })
    }

    /// Takes no more requests.
    fn close(&mut self, failed: Option<Status>) {
        self.frames = None;
        self.held = None;
        self.flow.close();
        self.failed = self.failed.take().or(failed);
    }
}

impl<S: Stream<Item = Result<Requests, Status>> + Unpin> ReplyStream<S> {
    /// Reads frames while the client may have more in flight. `Ready` means: read again after the answers have had
    /// their turn.
    fn poll_frames(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        for _ in 0..FRAMES_A_TURN {
            let Some(frames) = &mut self.frames else {
                return Poll::Pending;
            };
            if !self.flow.has_room() {
                return Poll::Pending;
            }
            let next = match self.held.take() {
                Some(frame) => Some(Ok(frame)),
                None => ready!(Pin::new(frames).poll_next(cx)),
            };
            match next {
                Some(Ok(frame)) if !self.flow.may_take(frame.requests.len(), cx) => {
                    self.held = Some(frame);
                    return Poll::Pending;
                }
                Some(Ok(frame)) => self.flow.submit(frame),
                Some(Err(status)) => self.close(Some(status)),
                None => self.close(None),
            }
        }
        Poll::Ready(())
    }
}

impl<S: Stream<Item = Result<Requests, Status>> + Unpin> Stream for ReplyStream<S> {
    type Item = Result<Replies, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        // The connection takes the next frame only after it has passed on the last one.
        this.flow.sent();
        if this.frames.is_some() && this.draining.as_mut().poll(cx).is_ready() {
            this.close(Some(Status::unavailable("the server is stopping")));
        }
        let more = this.poll_frames(cx).is_ready();
        let mut replies = Vec::new();
        let turn = this.flow.poll_replies(cx, |reply| replies.push(reply));
        if !replies.is_empty() {
            return Poll::Ready(Some(Ok(Replies { replies })));
        }
        if turn.is_ready() {
            // The pipeline has no more answers for this session.
            return Poll::Ready(this.failed.take().map(Err));
        }
        if more {
            // More frames are ready: come back after others have had their turn.
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }
}
