//! The operations of one session, and their replies, whatever carries them.

use std::collections::VecDeque;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};
use std::vec;

use palisade_proto::Code;
use palisade_proto::v1::{Reply, Request, Requests, reply::Outcome};

use super::super::audit::Recording;
use super::super::convert::{Refusal, grpc as convert};
use super::super::gate::{GatedSession, Permitted, PermittedBatch, Who};
use super::super::listening::SessionListener;
use super::super::quota::QuotaUse;
use super::Sessions;
use super::in_flight::InFlight;
use palisade_pipeline::{self as pipeline, Answer, Answers};

/// Operations going in, replies coming out.
pub(super) struct Flow {
    pub(super) sessions: Arc<Sessions>,
    /// Dropped when no more requests follow: then `answers` ends.
    session: Option<GatedSession>,
    /// The authenticated peer; known before the first operation.
    who: Option<Who>,
    /// The session's use of quotas.
    place: Option<QuotaUse>,
    /// Whether more requests are read.
    open: bool,
    answers: Answers,
    /// Answers taken from the pipeline that did not fit the last frame.
    rest: vec::IntoIter<(u64, Answer)>,
    /// Replies to operations that never reached the pipeline.
    refused: VecDeque<Reply>,
    /// Operations that start when a line of the audit file is on disk.
    recording: VecDeque<(u64, Permitted, Recording)>,
    /// Waiting listings: the next one starts when the previous page has left.
    listings: VecDeque<(u64, Permitted)>,
    /// The grants that the client hears about; `None` until it asks.
    listener: Option<Box<SessionListener>>,
    in_flight: InFlight,
}

impl Flow {
    pub(super) fn new(sessions: Arc<Sessions>) -> Flow {
        sessions.meters.sessions.fetch_add(1, Relaxed);
        sessions.meters.sessions_opened.fetch_add(1, Relaxed);
        let (session, answers) = sessions.pipeline.session();
        Flow {
            in_flight: InFlight::new(&sessions.budget),
            sessions,
            session: Some(session),
            who: None,
            place: None,
            open: true,
            answers,
            rest: Vec::new().into_iter(),
            refused: VecDeque::new(),
            recording: VecDeque::new(),
            listings: VecDeque::new(),
            listener: None,
        }
    }

    /// Opens the session for a caller.
    pub(super) fn open(&mut self, who: Who) -> Result<(), Refusal> {
        self.place = self.sessions.gate.open_session(&who)?;
        self.who = Some(who);
        Ok(())
    }

    /// Whether the client may have more in flight.
    pub(super) fn has_room(&self) -> bool {
        self.in_flight
            .is_below(self.sessions.operations, self.sessions.bytes)
    }

    /// Whether there is memory for a frame that announces this many bytes. If not, the task is woken when another try
    /// may succeed.
    pub(super) fn may_arrive(&mut self, bytes: usize, cx: &Context<'_>) -> bool {
        self.in_flight.may_arrive(bytes, cx)
    }

    /// Whether there is memory for this many more operations.
    pub(super) fn may_take(&mut self, operations: usize, cx: &Context<'_>) -> bool {
        self.in_flight.may_take(operations, cx)
    }

    /// Hands the operations of a decoded frame to the pipeline.
    pub(super) fn submit(&mut self, frame: Requests) {
        let operations = frame.requests.into_iter();
        self.submit_all(
            operations.map(|Request { id, operation }| (id, convert::operation(operation))),
        );
    }

    /// Hands a frame's operations to the pipeline at once; listings are queued.
    pub(super) fn submit_all(
        &mut self,
        frame: impl ExactSizeIterator<Item = (u64, Result<pipeline::Request, Refusal>)>,
    ) {
        self.in_flight.arrived(frame.len());
        let mut operations = PermittedBatch::with_room(frame.len());
        for (id, request) in frame {
            match request.and_then(|request| self.permit(id, request)) {
                Ok(listing) if matches!(listing.request(), pipeline::Request::List { .. }) => {
                    self.listings.push_back((id, listing));
                }
                Ok(listen) if matches!(listen.request(), pipeline::Request::Listen(_)) => {
                    match self.listen(id, &listen) {
                        Ok(()) => operations.push(id, listen),
                        Err(refusal) => {
                            self.in_flight.settle(id, None);
                            self.refused.push_back(convert::refused(id, &refusal));
                        }
                    }
                }
                Ok(mut request) => match request.take_recording() {
                    Some(recording) => self.recording.push_back((id, request, recording)),
                    None => operations.push(id, request),
                },
                Err(refusal) => self.refused.push_back(convert::refused(id, &refusal)),
            }
        }
        if let Some(session) = &self.session {
            session.submit(operations);
        }
    }

    /// Asks the gate, and stores the client's view of the answer.
    fn permit(&mut self, id: u64, request: pipeline::Request) -> Result<Permitted, Refusal> {
        let Some(who) = &self.who else {
            let why = "an operation before the session was opened";
            return Err(Refusal::new(Code::Unauthenticated, why));
        };
        // One of two answers would be shown as the other may be.
        if self.in_flight.has_view(id) {
            let why = format!("id {id} is that of an operation in flight: use another one");
            return Err(Refusal::invalid(why));
        }
        let mut permitted = self.sessions.gate.permit(who, request)?;
        self.in_flight.keep(id, &mut permitted);
        Ok(permitted)
    }

    /// The client wants to hear about grants.
    fn listen(&mut self, id: u64, listen: &Permitted) -> Result<(), Refusal> {
        let (pipeline::Request::Listen(grants), Some(who)) = (listen.request(), &self.who) else {
            return Ok(());
        };
        let listens = &self.sessions.listens;
        let listener = self
            .listener
            .get_or_insert_with(|| Box::new(SessionListener::new(listens)));
        listener.name(id, who, grants)
    }

    /// Accepts no more requests; those waiting in a queue leave it.
    pub(super) fn close(&mut self) {
        self.open = false;
        self.listener = None;
        self.in_flight.close();
        if let Some(session) = &self.session {
            session.hang_up();
        }
    }

    /// Submits the operations whose line is on disk, and refuses those whose line cannot be written.
    fn submit_recorded(&mut self, cx: &mut Context<'_>) {
        while let Some((_, _, recording)) = self.recording.front_mut()
            && let Poll::Ready(written) = Pin::new(recording).poll(cx)
            && let Some((id, request, _)) = self.recording.pop_front()
        {
            match (written, &self.session) {
                (Ok(()), Some(session)) => session.submit(PermittedBatch::one(id, request)),
                (Ok(()), None) => {}
                (Err(refusal), _) => {
                    self.in_flight.settle(id, None);
                    self.refused.push_back(convert::refused(id, &refusal));
                }
            }
        }
    }

    /// Starts the next listing if the previous page has left and there is memory for another.
    fn next_listing(&mut self, cx: &Context<'_>) {
        if let Some((id, listing)) = self.listings.front()
            && let pipeline::Request::List { limit, .. } = listing.request()
            && let Some(session) = &self.session
            && self.in_flight.begin_page(*id, *limit, cx)
            && let Some((id, listing)) = self.listings.pop_front()
        {
            session.submit(PermittedBatch::one(id, listing));
        }
        if !self.open && self.listings.is_empty() && self.recording.is_empty() {
            self.session = None;
        }
    }

    /// Puts ready replies into a frame. `Ready` means that the frame should be sent: it is full, or the pipeline has no
    /// more answers for this session.
    pub(super) fn poll_replies(
        &mut self,
        cx: &mut Context<'_>,
        mut put: impl FnMut(Reply),
    ) -> Poll<()> {
        self.submit_recorded(cx);
        while !self.in_flight.frame_is_full()
            && let Some(reply) = self.refused.pop_front()
        {
            self.in_flight.leaves();
            put(reply);
        }
        self.next_listing(cx);
        if let Some(listener) = &mut self.listener {
            for _ in 0..NOTICES {
                match listener.poll_next(cx) {
                    Poll::Ready(notice) => put(notice),
                    Poll::Pending => return self.poll_answers(cx, put),
                }
            }
            return Poll::Ready(());
        }
        self.poll_answers(cx, put)
    }

    fn poll_answers(&mut self, cx: &mut Context<'_>, mut put: impl FnMut(Reply)) -> Poll<()> {
        loop {
            if self.in_flight.frame_is_full() {
                return Poll::Ready(());
            }
            for (id, answer) in self.rest.by_ref() {
                let view = self.in_flight.settle(id, Some(&answer));
                if let Some(listener) = &mut self.listener {
                    listener.settle(id, &answer);
                }
                let principal = self.who.as_ref().and_then(Who::principal);
                let answer = self.sessions.gate.show(principal, view.as_ref(), answer);
                self.in_flight.leaves();
                // A listing that failed, because this node no longer leads, makes room for the next one too.
                let failed = self.in_flight.is_page(id) && matches!(answer, Answer::Failed(_));
                let reply = convert::reply(id, answer, self.sessions.pipeline.identity());
                let is_page = failed || matches!(reply.outcome, Some(Outcome::Page(_)));
                put(reply);
                if is_page {
                    self.in_flight.page_leaves();
                }
                if is_page || self.in_flight.frame_is_full() {
                    return Poll::Ready(());
                }
            }
            // Of a burst it is large, and the next answers may be long in coming.
            self.rest = Vec::new().into_iter();
            match ready!(self.answers.poll_recv(cx)) {
                Some(answers) => self.rest = answers.into_iter(),
                None => return Poll::Ready(()),
            }
        }
    }

    /// The replies of a frame have left: gives their memory back.
    pub(super) fn sent(&mut self) {
        if self.in_flight.sent() {
            // Frees the memory of a burst.
            (self.refused, self.listings) = (VecDeque::new(), VecDeque::new());
            self.recording = VecDeque::new();
        }
    }
}

impl Drop for Flow {
    fn drop(&mut self) {
        self.sessions.meters.sessions.fetch_sub(1, Relaxed);
    }
}

/// The most notices in one frame.
const NOTICES: usize = 256;

/// How many frames are read before answers get their turn.
pub(super) const FRAMES_A_TURN: usize = 16;
