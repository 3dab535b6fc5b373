//! The fast path: one stream that carries any number of operations.
//!
//! ```text
//!  frame of requests ──► one submit ──► pipeline ──► answers, as they finish
//!        ▲                  ▲                             │
//!        │ counted          └── listings, one at a time   │
//!        │ before decoded                                 │
//!  frame of replies  ◄── everything that is ready ◄───────┘
//! ```
//!
//! It comes in two dresses with the same messages: [`grpc`], for any gRPC client, and [`plain`], frames
//! on a bare connection, which costs less than half. What they share is [`Flow`]: no task and no lock
//! per operation, and a client that does not read its replies is not read from either.
//!
//! A session holds a bounded number of bytes, and all of them together, too: an operation counts from before
//! it is decoded until its reply has left.

mod codec;
mod grpc;
mod plain;

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};
use std::vec;

use palisade_proto::v1::{Reply, Request, Requests, reply::Outcome};

use super::app::App;
use super::budget::Share;
use super::convert::grpc as convert;
use crate::pipeline::{self, Answer, Answers, Session};

pub(super) use codec::Counted;
pub(super) use grpc::Replying;
pub(super) use plain::serve;

/// Operations going in, replies coming out.
struct Flow {
    app: Arc<App>,
    /// Dropped when no more is handed in: `answers` ends then.
    session: Option<Session>,
    /// Whether more is read.
    open: bool,
    answers: Answers,
    /// Answers taken from the pipeline that did not fit the last frame.
    rest: vec::IntoIter<(u64, Answer)>,
    /// Replies to operations that never reached the pipeline.
    refused: VecDeque<Reply>,
    /// Listings that wait for their turn: the next one is asked for when the page before it has left.
    listings: VecDeque<(u64, pipeline::Request)>,
    /// What the page asked for may take, in bytes; 0 if none is.
    page: usize,
    /// Operations taken in whose replies have not left.
    in_flight: usize,
    /// Those whose replies are in the frame that is being sent, and whether a page is among them.
    leaving: usize,
    page_leaves: bool,
    /// Bytes of a large frame that is not complete yet.
    arriving: usize,
    share: Share,
}

impl Flow {
    fn new(app: Arc<App>) -> Flow {
        app.meters.sessions.fetch_add(1, Relaxed);
        app.meters.sessions_opened.fetch_add(1, Relaxed);
        let (session, answers) = app.handle.session();
        Flow {
            share: Share::new(&app.budget),
            app,
            session: Some(session),
            open: true,
            answers,
            rest: Vec::new().into_iter(),
            refused: VecDeque::new(),
            listings: VecDeque::new(),
            page: 0,
            in_flight: 0,
            leaving: 0,
            page_leaves: false,
            arriving: 0,
        }
    }

    /// What this session holds, in bytes.
    fn bytes(&self) -> usize {
        self.in_flight * OPERATION_BYTES + self.page + self.arriving
    }

    /// Whether the client may have more in flight.
    fn has_room(&self) -> bool {
        self.in_flight < self.app.settings.session_operations
            && self.bytes() < self.app.settings.session_bytes
    }

    /// Whether there is memory for a frame that announces so many bytes. If not, the task is woken when it is
    /// worth asking again.
    fn may_arrive(&mut self, bytes: usize, cx: &Context<'_>) -> bool {
        self.arriving = if bytes > SMALL_FRAME { bytes } else { 0 };
        self.share.hold(self.bytes(), cx)
    }

    /// The same for so many more operations.
    fn may_take(&mut self, operations: usize, cx: &Context<'_>) -> bool {
        self.share
            .hold(self.bytes() + operations * OPERATION_BYTES, cx)
    }

    /// Hands a frame's operations to the pipeline, in one piece; listings get in line.
    fn submit(&mut self, frame: Requests) {
        self.arriving = 0;
        self.in_flight += frame.requests.len();
        let mut operations = Vec::with_capacity(frame.requests.len());
        for Request { id, operation } in frame.requests {
            match convert::operation(operation) {
                Ok(request @ pipeline::Request::List { .. }) => {
                    self.listings.push_back((id, request));
                }
                Ok(request) => operations.push((id, request)),
                Err(refusal) => self.refused.push_back(convert::refused(id, &refusal)),
            }
        }
        if let Some(session) = &self.session
            && !operations.is_empty()
        {
            session.submit(operations);
        }
    }

    /// Takes no more requests: what waits in a queue leaves it.
    fn close(&mut self) {
        self.open = false;
        self.arriving = 0;
        if let Some(session) = &self.session {
            session.hang_up();
        }
    }

    /// Asks for the next listing, if the page before it has left and there is memory for one more.
    fn next_listing(&mut self, cx: &Context<'_>) {
        if let Some((_, pipeline::Request::List { limit, .. })) = self.listings.front()
            && self.page == 0
        {
            let page = limit * OPERATION_BYTES;
            if self.share.hold(self.bytes() + page, cx)
                && let Some(listing) = self.listings.pop_front()
                && let Some(session) = &self.session
            {
                self.page = page;
                session.submit(vec![listing]);
            }
        }
        if !self.open && self.listings.is_empty() {
            self.session = None;
        }
    }

    /// Puts what is ready into a frame. `Ready` when that frame should go out as it is: it is full, or
    /// the pipeline has nothing more for this session.
    fn poll_replies(&mut self, cx: &mut Context<'_>, mut put: impl FnMut(Reply)) -> Poll<()> {
        while self.leaving < FRAME_REPLIES
            && let Some(reply) = self.refused.pop_front()
        {
            self.leaving += 1;
            put(reply);
        }
        self.next_listing(cx);
        loop {
            if self.leaving >= FRAME_REPLIES {
                return Poll::Ready(());
            }
            for (id, answer) in self.rest.by_ref() {
                self.leaving += 1;
                let reply = convert::reply(id, answer, self.app.handle.identity());
                let is_page = matches!(reply.outcome, Some(Outcome::Page(_)));
                self.page_leaves |= is_page;
                put(reply);
                if is_page || self.leaving >= FRAME_REPLIES {
                    return Poll::Ready(());
                }
            }
            match ready!(self.answers.poll_recv(cx)) {
                Some(answers) => self.rest = answers.into_iter(),
                None => return Poll::Ready(()),
            }
        }
    }

    /// The replies that were put into a frame have left; what they took is given back.
    fn sent(&mut self) {
        if self.leaving == 0 {
            return;
        }
        self.in_flight = self.in_flight.saturating_sub(self.leaving);
        self.leaving = 0;
        if std::mem::take(&mut self.page_leaves) {
            self.page = 0;
        }
        if self.in_flight == 0 {
            // A burst leaves no room behind.
            (self.refused, self.listings) = (VecDeque::new(), VecDeque::new());
        }
        self.share.settle(self.bytes());
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.app.meters.sessions.fetch_sub(1, Relaxed);
    }
}

/// What an operation in flight takes at most, as its request, in the pipeline and as its reply: two names,
/// a text, and the records around them. A lock in a page takes as much.
pub(super) const OPERATION_BYTES: usize = 1 << 10;

/// A frame up to this size is a session's own affair while it arrives.
const SMALL_FRAME: usize = 16 << 10;

/// Replies in one frame at most. A full frame, or a page of a listing (which ends its frame), stays
/// well under the 4 MiB a gRPC client takes by default.
const FRAME_REPLIES: usize = 1_024;

/// Frames read before answers get their turn.
const FRAMES_A_TURN: usize = 16;
