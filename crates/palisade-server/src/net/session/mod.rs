//! The fast path: one stream that carries any number of operations.
//!
//! ```text
//!  frame of requests ──► one submit ──► pipeline ──► answers, as they finish
//!                                                        │
//!  frame of replies  ◄── everything that is ready ◄──────┘
//! ```
//!
//! It comes in two dresses with the same messages: [`grpc`], for any gRPC client, and [`plain`], frames
//! on a bare connection, which costs less than half. What they share is [`Flow`]: no task and no lock
//! per operation, and a client that does not read its replies is not read from either.

mod grpc;
mod plain;

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};
use std::vec;

use palisade_proto::v1::{Reply, Request, Requests, reply::Outcome};

use super::app::App;
use super::convert::grpc as convert;
use crate::pipeline::{Answer, Answers, Session};

pub(super) use grpc::Replying;
pub(super) use plain::{is_plain, serve};

/// Operations going in, replies coming out.
struct Flow {
    app: Arc<App>,
    /// Dropped when no more is read: what waits in a queue leaves it, and `answers` ends.
    session: Option<Session>,
    answers: Answers,
    /// Answers taken from the pipeline that did not fit the last frame.
    rest: vec::IntoIter<(u64, Answer)>,
    /// Replies to operations that never reached the pipeline.
    refused: Vec<Reply>,
    /// Operations handed in and not yet answered.
    in_flight: usize,
}

impl Flow {
    fn new(app: Arc<App>) -> Flow {
        app.meters.sessions.fetch_add(1, Relaxed);
        app.meters.sessions_opened.fetch_add(1, Relaxed);
        let (session, answers) = app.handle.session();
        Flow {
            app,
            session: Some(session),
            answers,
            rest: Vec::new().into_iter(),
            refused: Vec::new(),
            in_flight: 0,
        }
    }

    /// Whether the client may have more in flight.
    fn has_room(&self) -> bool {
        self.in_flight + self.refused.len() < self.app.settings.session_operations
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
    fn close(&mut self) {
        self.session = None;
    }

    /// Puts what is ready into a frame. `Ready` when that frame should go out as it is: it is full, or
    /// the pipeline has nothing more for this session.
    fn poll_replies(&mut self, cx: &mut Context<'_>, mut put: impl FnMut(Reply)) -> Poll<()> {
        let mut room = FRAME_REPLIES;
        for reply in self.refused.drain(..) {
            room = room.saturating_sub(1);
            put(reply);
        }
        loop {
            for (id, answer) in self.rest.by_ref() {
                self.in_flight = self.in_flight.saturating_sub(1);
                let reply = convert::reply(id, answer, self.app.handle.identity());
                let is_page = matches!(reply.outcome, Some(Outcome::Page(_)));
                put(reply);
                room = room.saturating_sub(1);
                if is_page || room == 0 {
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

impl Drop for Flow {
    fn drop(&mut self) {
        self.app.meters.sessions.fetch_sub(1, Relaxed);
    }
}

/// Replies in one frame at most. A full frame, or a page of a listing (which ends its frame), stays
/// well under the 4 MiB a gRPC client takes by default.
const FRAME_REPLIES: usize = 1_024;

/// Frames read before answers get their turn.
const FRAMES_A_TURN: usize = 16;
