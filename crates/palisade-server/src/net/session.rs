//! The fast path: one gRPC stream that carries any number of operations.
//!
//! ```text
//!  frame of requests ──► one submit ──► pipeline ──► answers, as they finish
//!                                                        │
//!  frame of replies  ◄── everything that is ready ◄──────┘
//! ```
//!
//! One object does both halves inside the response's own poll: no task and no lock per operation,
//! and a client that does not read its replies is not read from either.

use std::mem;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};
use std::vec;

use futures_core::Stream;
use palisade_proto::v1::{Replies, Reply, Request, Requests, reply::Outcome};
use tonic::Status;

use super::app::App;
use super::convert::grpc as convert;
use crate::pipeline::{Answer, Answers, Session};

/// A session's stream of replies; `S` is the stream of requests it reads.
pub(super) struct Replying<S> {
    app: Arc<App>,
    /// Frames of requests; `None` once the client has no more to send.
    frames: Option<S>,
    /// Dropped when no more is read: what waits in a queue leaves it, and `answers` ends.
    session: Option<Session>,
    answers: Answers,
    /// Answers taken from the pipeline that did not fit the last frame.
    rest: vec::IntoIter<(u64, Answer)>,
    /// Replies to operations that never reached the pipeline.
    refused: Vec<Reply>,
    /// Operations handed in and not yet answered.
    in_flight: usize,
    /// Why the session ends early; told when everything answered is out.
    failed: Option<Status>,
    draining: Pin<Box<dyn Future<Output = ()> + Send>>,
}

impl<S> Replying<S> {
    pub(super) fn new(app: Arc<App>, frames: S) -> Replying<S> {
        app.meters.sessions.fetch_add(1, Relaxed);
        app.meters.sessions_opened.fetch_add(1, Relaxed);
        let (session, answers) = app.handle.session();
        Replying {
            draining: Box::pin(app.draining()),
            app,
            frames: Some(frames),
            session: Some(session),
            answers,
            rest: Vec::new().into_iter(),
            refused: Vec::new(),
            in_flight: 0,
            failed: None,
        }
    }

    /// Hands a frame's operations to the pipeline, in one piece.
    fn submit(&mut self, frame: Requests) {
        let mut operations = Vec::with_capacity(frame.requests.len());
        for Request { id, operation } in frame.requests {
            match convert::operation(operation) {
                Ok(request) => operations.push((id, request)),
                Err(refusal) => self.refused.push(convert::refused(id, &refusal)),
            }
        }
        if let Some(session) = &self.session
            && !operations.is_empty()
        {
            self.in_flight += operations.len();
            session.submit(operations);
        }
    }

    /// Takes no more requests.
    fn close(&mut self, failed: Option<Status>) {
        self.frames = None;
        self.session = None;
        self.failed = self.failed.take().or(failed);
    }

    /// Puts what is ready into a frame. `Ready` when that frame should go out as it is.
    fn poll_answers(&mut self, cx: &mut Context<'_>, frame: &mut Vec<Reply>) -> Poll<()> {
        loop {
            for (id, answer) in self.rest.by_ref() {
                self.in_flight = self.in_flight.saturating_sub(1);
                let reply = convert::reply(id, answer, self.app.handle.identity());
                let is_page = matches!(reply.outcome, Some(Outcome::Page(_)));
                frame.push(reply);
                if is_page || frame.len() >= FRAME_REPLIES {
                    return Poll::Ready(());
                }
            }
            match ready!(self.answers.poll_recv(cx)) {
                Some(answers) => self.rest = answers.into_iter(),
                None => return Poll::Ready(()),
            }
        }
    }
}

impl<S: Stream<Item = Result<Requests, Status>> + Unpin> Replying<S> {
    /// Reads frames while the client may have more in flight. `Ready` when reading should go on
    /// after the answers had their turn.
    fn poll_frames(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        for _ in 0..FRAMES_A_TURN {
            let Some(frames) = &mut self.frames else {
                return Poll::Pending;
            };
            if self.in_flight + self.refused.len() >= self.app.settings.session_operations {
                return Poll::Pending;
            }
            match ready!(Pin::new(frames).poll_next(cx)) {
                Some(Ok(frame)) => self.submit(frame),
                Some(Err(status)) => self.close(Some(status)),
                None => self.close(None),
            }
        }
        Poll::Ready(())
    }
}

impl<S: Stream<Item = Result<Requests, Status>> + Unpin> Stream for Replying<S> {
    type Item = Result<Replies, Status>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let this = &mut *self;
        if this.frames.is_some() && this.draining.as_mut().poll(cx).is_ready() {
            this.close(Some(Status::unavailable("the server is stopping")));
        }
        let more = this.poll_frames(cx).is_ready();
        let mut replies = mem::take(&mut this.refused);
        let turn = this.poll_answers(cx, &mut replies);
        if !replies.is_empty() {
            return Poll::Ready(Some(Ok(Replies { replies })));
        }
        if turn.is_ready() {
            // The pipeline has nothing more for this session.
            return Poll::Ready(this.failed.take().map(Err));
        }
        if more {
            // More frames are there: come back, after others had their turn.
            cx.waker().wake_by_ref();
        }
        Poll::Pending
    }
}

impl<S> Drop for Replying<S> {
    fn drop(&mut self) {
        self.app.meters.sessions.fetch_sub(1, Relaxed);
    }
}

/// Replies in one frame at most. A full frame, or a page of a listing (which ends its frame), stays
/// well under the 4 MiB a gRPC client takes by default.
const FRAME_REPLIES: usize = 1_024;

/// Frames read before answers get their turn.
const FRAMES_A_TURN: usize = 16;
