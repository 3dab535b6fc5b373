//! Answers that are ready, and callers that wait for one.

use std::collections::{BTreeMap, HashMap};
use std::mem;
use std::vec::Drain;

use palisade_core::{Principal, RequestId};

use crate::request::{Answer, Failure};

/// Where an answer goes.
pub trait ReplyAddress {
    /// The session that asked, if one did: its waiting requests leave their queues when it ends.
    fn session(&self) -> Option<u64>;

    /// Whether a single caller is known to have gone. A session is there until it ends.
    fn is_gone(&self) -> bool;
}

/// A request's id, under its principal.
pub(super) type CallerRequest = (Principal, RequestId);

/// Answers that leave with the batch, and callers that have no answer yet.
pub(super) struct Replies<A> {
    ready: Vec<(A, Answer)>,
    waiting: HashMap<CallerRequest, UnansweredCaller<A>>,
    /// The waiting requests of each session, in the order in which they were asked.
    of_sessions: BTreeMap<(u64, u64), CallerRequest>,
    asked: u64,
}

struct UnansweredCaller<A> {
    to: A,
    /// Its number in the order of all requests that ever waited.
    place: u64,
}

impl<A> Default for Replies<A> {
    fn default() -> Replies<A> {
        Replies {
            ready: Vec::new(),
            waiting: HashMap::new(),
            of_sessions: BTreeMap::new(),
            asked: 0,
        }
    }
}

impl<A: ReplyAddress> Replies<A> {
    pub(super) fn answer(&mut self, to: A, answer: Answer) {
        self.ready.push((to, answer));
    }

    /// A request went into a queue. Asked twice, it is answered where it was asked last.
    pub(super) fn wait(&mut self, request: CallerRequest, to: A) {
        self.ask_elsewhere(&request);
        self.asked += 1;
        let place = self.asked;
        if let Some(session) = to.session() {
            self.of_sessions.insert((session, place), request);
        }
        self.waiting.insert(request, UnansweredCaller { to, place });
    }

    /// A request that may wait is asked again: its earlier caller gets no other answer.
    pub(super) fn ask_elsewhere(&mut self, request: &CallerRequest) {
        if let Some(earlier) = self.forget(request) {
            let why = "the same request was asked again elsewhere".into();
            self.answer(earlier, Answer::Failed(Failure::UnknownOutcome(why)));
        }
    }

    /// A request that waited has its answer.
    pub(super) fn settle(&mut self, request: &CallerRequest, answer: Answer) {
        if let Some(to) = self.forget(request) {
            self.answer(to, answer);
        }
    }

    /// A request that waits has its answer, if a single caller waits for it. A session's end says enough.
    pub(super) fn settle_call(&mut self, request: &CallerRequest, answer: Answer) {
        let waiting = self.waiting.get(request);
        if waiting.is_some_and(|waiting| waiting.to.session().is_none()) {
            self.settle(request, answer);
        }
    }

    /// The requests that wait, in no order.
    pub(super) fn waiting(&self) -> Vec<CallerRequest> {
        self.waiting.keys().copied().collect()
    }

    fn forget(&mut self, request: &CallerRequest) -> Option<A> {
        let UnansweredCaller { to, place } = self.waiting.remove(request)?;
        if let Some(session) = to.session() {
            self.of_sessions.remove(&(session, place));
        }
        Some(to)
    }

    /// A caller of this request is gone. Whether that leaves nobody: it may have been asked again elsewhere
    /// meanwhile.
    pub(super) fn gone(&mut self, request: &CallerRequest) -> bool {
        let waiting = self.waiting.get(request);
        waiting.is_some_and(|waiting| waiting.to.is_gone()) && self.forget(request).is_some()
    }

    /// A session is gone: the requests of it that waited.
    pub(super) fn hang_up(&mut self, session: u64) -> Vec<CallerRequest> {
        let of_it = (session, 0)..=(session, u64::MAX);
        let requests: Vec<CallerRequest> =
            self.of_sessions.range(of_it).map(|(_, id)| *id).collect();
        for request in &requests {
            self.forget(request);
        }
        requests
    }

    pub(super) fn has_answers(&self) -> bool {
        !self.ready.is_empty()
    }

    pub(super) fn take(&mut self) -> Drain<'_, (A, Answer)> {
        self.ready.drain(..)
    }

    /// Replaces each answer that is ready with another one.
    pub(super) fn replace(&mut self, by: impl Fn() -> Answer) {
        for (_, answer) in &mut self.ready {
            *answer = by();
        }
    }

    /// Answers every request that waits, in the order in which they were asked.
    pub(super) fn end_waits(&mut self, with: impl Fn() -> Answer) {
        self.of_sessions.clear();
        let mut waiting: Vec<UnansweredCaller<A>> =
            mem::take(&mut self.waiting).into_values().collect();
        waiting.sort_unstable_by_key(|waiting| waiting.place);
        self.ready
            .extend(waiting.into_iter().map(|waiting| (waiting.to, with())));
    }
}
