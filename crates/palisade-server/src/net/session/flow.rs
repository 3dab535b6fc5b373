//! The operations of one session, and their replies, whatever carries them.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, VecDeque};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::task::{Context, Poll, ready};
use std::vec;

use palisade_proto::Code;
use palisade_proto::v1::{Reply, Request, Requests, reply::Outcome};

use super::super::app::App;
use super::super::audit::Recording;
use super::super::budget::{OPERATION_BYTES, Share};
use super::super::convert::{Refusal, grpc as convert};
use super::super::gate::{Permitted, Session, View, Who};
use super::super::quota::Held;
use super::super::shares::Used;
use palisade_pipeline::{self as pipeline, Answer, Answers};

/// Operations going in, replies coming out.
pub(super) struct Flow {
    pub(super) app: Arc<App>,
    /// Dropped when no more requests follow: then `answers` ends.
    session: Option<Session>,
    /// Who is at the other end; known before the first operation.
    who: Option<Who>,
    /// What the client may see of the answers that are not there yet; empty without rules.
    views: HashMap<u64, View>,
    /// What the session uses of quotas, and what its operations without an answer use.
    place: Option<Held>,
    used: HashMap<u64, Vec<Used>>,
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
    /// The maximum size in bytes of the page being made; 0 if none is.
    page: usize,
    /// The id of its operation.
    page_id: u64,
    /// Accepted operations whose replies have not left.
    in_flight: usize,
    /// What acquires of several locks take beyond that, in bytes, and each of them by its id.
    set_bytes: usize,
    sets: HashMap<u64, usize>,
    /// The operations whose replies are in the frame being sent, and whether a page is among them.
    leaving: usize,
    page_leaves: bool,
    /// The bytes of a large frame that is not complete yet.
    arriving: usize,
    share: Share,
}

impl Flow {
    pub(super) fn new(app: Arc<App>) -> Flow {
        app.meters.sessions.fetch_add(1, Relaxed);
        app.meters.sessions_opened.fetch_add(1, Relaxed);
        let (session, answers) = app.handle.session();
        Flow {
            share: Share::new(&app.budget),
            app,
            session: Some(session),
            who: None,
            views: HashMap::new(),
            place: None,
            used: HashMap::new(),
            open: true,
            answers,
            rest: Vec::new().into_iter(),
            refused: VecDeque::new(),
            recording: VecDeque::new(),
            listings: VecDeque::new(),
            page: 0,
            page_id: 0,
            in_flight: 0,
            set_bytes: 0,
            sets: HashMap::new(),
            leaving: 0,
            page_leaves: false,
            arriving: 0,
        }
    }

    /// Opens the session for a caller.
    pub(super) fn open(&mut self, who: Who) -> Result<(), Refusal> {
        self.place = self.app.gate.open_session(&who)?;
        self.who = Some(who);
        Ok(())
    }

    /// How many bytes this session holds.
    fn bytes(&self) -> usize {
        self.in_flight * OPERATION_BYTES + self.set_bytes + self.page + self.arriving
    }

    /// Whether the client may have more in flight.
    pub(super) fn has_room(&self) -> bool {
        self.in_flight < self.app.settings.session_operations
            && self.bytes() < self.app.settings.session_bytes
    }

    /// Whether there is memory for a frame that announces this many bytes. If not, the task is woken when another try
    /// may succeed.
    pub(super) fn may_arrive(&mut self, bytes: usize, cx: &Context<'_>) -> bool {
        self.arriving = if bytes > SMALL_FRAME { bytes } else { 0 };
        self.share.hold(self.bytes(), cx)
    }

    /// Whether there is memory for this many more operations.
    pub(super) fn may_take(&mut self, operations: usize, cx: &Context<'_>) -> bool {
        self.share
            .hold(self.bytes() + operations * OPERATION_BYTES, cx)
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
        self.arriving = 0;
        self.in_flight += frame.len();
        let mut operations = Vec::with_capacity(frame.len());
        for (id, request) in frame {
            match request.and_then(|request| self.permit(id, request)) {
                Ok(listing) if matches!(listing.request(), pipeline::Request::List { .. }) => {
                    self.listings.push_back((id, listing));
                }
                Ok(mut request) => match request.take_recording() {
                    Some(recording) => self.recording.push_back((id, request, recording)),
                    None => operations.push((id, request)),
                },
                Err(refusal) => self.refused.push_back(convert::refused(id, &refusal)),
            }
        }
        if let Some(session) = &self.session
            && !operations.is_empty()
        {
            session.submit(operations);
        }
    }

    /// Asks the gate, and keeps what the client may see of the answer.
    fn permit(&mut self, id: u64, request: pipeline::Request) -> Result<Permitted, Refusal> {
        let Some(who) = &self.who else {
            let why = "an operation before the session was opened";
            return Err(Refusal::new(Code::Unauthenticated, why));
        };
        // One of two answers would be shown as the other may be.
        if self.views.contains_key(&id) {
            let why = format!("id {id} is that of an operation in flight: use another one");
            return Err(Refusal::invalid(why));
        }
        let mut permitted = self.app.gate.permit(who, request)?;
        let used = permitted.take_used();
        if !used.is_nothing() {
            self.used.entry(id).or_default().push(used);
        }
        if let pipeline::Request::Acquire(wish) = permitted.request()
            && !wish.also.is_empty()
        {
            let bytes = wish.also.len() * OPERATION_BYTES;
            *self.sets.entry(id).or_default() += bytes;
            self.set_bytes += bytes;
        }
        if let Some(view) = permitted.take_view() {
            self.views.insert(id, view);
        }
        Ok(permitted)
    }

    /// An operation has its answer, or none comes: gives back what it used, and what its caller may see.
    fn settle(&mut self, id: u64, answer: Option<&Answer>) -> Option<View> {
        // Without quotas and waits there is nothing to look up.
        if !self.used.is_empty()
            && let Entry::Occupied(mut all) = self.used.entry(id)
        {
            let used = all.get_mut().pop();
            if all.get().is_empty() {
                all.remove();
            }
            if let (Some(used), Some(answer)) = (used, answer) {
                used.settle(answer);
            }
        }
        if !self.sets.is_empty()
            && let Some(bytes) = self.sets.remove(&id)
        {
            self.set_bytes -= bytes;
        }
        // Without rules there is nothing to look up, either.
        match self.views.is_empty() {
            true => None,
            false => self.views.remove(&id),
        }
    }

    /// Accepts no more requests; those waiting in a queue leave it.
    pub(super) fn close(&mut self) {
        self.open = false;
        self.arriving = 0;
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
                (Ok(()), Some(session)) => session.submit(vec![(id, request)]),
                (Ok(()), None) => {}
                (Err(refusal), _) => {
                    self.settle(id, None);
                    self.refused.push_back(convert::refused(id, &refusal));
                }
            }
        }
    }

    /// Starts the next listing if the previous page has left and there is memory for another.
    fn next_listing(&mut self, cx: &Context<'_>) {
        if let Some((_, listing)) = self.listings.front()
            && let pipeline::Request::List { limit, .. } = listing.request()
            && self.page == 0
        {
            let page = limit * OPERATION_BYTES;
            if self.share.hold(self.bytes() + page, cx)
                && let Some(listing) = self.listings.pop_front()
                && let Some(session) = &self.session
            {
                (self.page, self.page_id) = (page, listing.0);
                session.submit(vec![listing]);
            }
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
            while let Some((id, answer)) = self.rest.next() {
                let view = self.settle(id, Some(&answer));
                let principal = self.who.as_ref().and_then(Who::principal);
                let answer = self.app.gate.show(principal, view.as_ref(), answer);
                self.leaving += 1;
                // A listing that failed, because this node no longer leads, makes room for the next one too.
                let failed =
                    self.page > 0 && id == self.page_id && matches!(answer, Answer::Failed(_));
                let reply = convert::reply(id, answer, self.app.handle.identity());
                let is_page = failed || matches!(reply.outcome, Some(Outcome::Page(_)));
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

    /// The replies of a frame have left: gives their memory back.
    pub(super) fn sent(&mut self) {
        if self.leaving == 0 {
            return;
        }
        self.in_flight = self.in_flight.saturating_sub(self.leaving);
        self.leaving = 0;
        if std::mem::take(&mut self.page_leaves) {
            self.page = 0;
        }
        if self.in_flight == 0 {
            // Frees the memory of a burst.
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

/// A frame up to this size is not charged while it arrives.
const SMALL_FRAME: usize = 16 << 10;

/// The most replies in one frame. A full frame, or a page of a listing (which ends its frame), stays well under the
/// 4 MiB that gRPC clients accept by default.
const FRAME_REPLIES: usize = 1_024;

/// How many frames are read before answers get their turn.
pub(super) const FRAMES_A_TURN: usize = 16;
