//! Who waits for which answer.

use std::sync::Arc;

use palisade_core::{GrantRef, LockName, Outcome, RequestId};
use std::collections::{HashMap, HashSet};
use tokio::sync::oneshot;

use super::handle::{Outbox, asked_elsewhere, gone, lost};
use super::request::Answer;

/// Where one answer goes.
pub(super) enum ReplyTo {
    /// A single caller. If a grant finds it gone, the lock named is given back.
    Call(oneshot::Sender<Answer>, Option<LockName>),
    Session(Arc<Outbox>, u64),
}

/// A single caller, what to give back if it is gone, and its answer.
type Call = (oneshot::Sender<Answer>, Option<LockName>, Answer);

/// A session, and its answers by operation.
type Post = (Arc<Outbox>, Vec<(u64, Answer)>);

/// Answers that are ready but must not leave before the sync, and callers whose answer is not known
/// yet.
#[derive(Default)]
pub(super) struct Desk {
    calls: Vec<Call>,
    sessions: Vec<Post>,
    waiting: HashMap<RequestId, ReplyTo>,
    /// The waiting requests of each session that has some.
    waiting_of: HashMap<u64, HashSet<RequestId>>,
}

impl Desk {
    /// A session is about to get up to `answers` answers.
    pub(super) fn open(&mut self, session: &Arc<Outbox>, answers: usize) {
        self.sessions
            .push((Arc::clone(session), Vec::with_capacity(answers)));
    }

    /// An answer is ready; it leaves with [`Desk::send`].
    pub(super) fn answer(&mut self, reply: ReplyTo, answer: Answer) {
        match reply {
            ReplyTo::Call(reply, undo) => self.calls.push((reply, undo, answer)),
            ReplyTo::Session(outbox, id) => {
                if let Some((last, answers)) = self.sessions.last_mut()
                    && last.session == outbox.session
                {
                    answers.push((id, answer));
                } else {
                    self.sessions.push((outbox, vec![(id, answer)]));
                }
            }
        }
    }

    /// A request went into a queue. Asked twice, it is answered where it was asked last.
    pub(super) fn wait(&mut self, request: RequestId, reply: ReplyTo) {
        if let Some(earlier) = self.forget(&request) {
            self.answer(earlier, asked_elsewhere());
        }
        if let ReplyTo::Session(outbox, _) = &reply {
            self.waiting_of
                .entry(outbox.session)
                .or_default()
                .insert(request);
        }
        self.waiting.insert(request, reply);
    }

    /// A request that waited has its answer.
    pub(super) fn settle(&mut self, request: &RequestId, answer: Answer) {
        if let Some(reply) = self.forget(request) {
            self.answer(reply, answer);
        }
    }

    /// Nobody waits for this request here any more.
    fn forget(&mut self, request: &RequestId) -> Option<ReplyTo> {
        let reply = self.waiting.remove(request)?;
        if let ReplyTo::Session(outbox, _) = &reply
            && let Some(requests) = self.waiting_of.get_mut(&outbox.session)
        {
            requests.remove(request);
            if requests.is_empty() {
                self.waiting_of.remove(&outbox.session);
            }
        }
        Some(reply)
    }

    /// A caller of this request is gone. Whether that leaves nobody: it may have been asked again
    /// elsewhere meanwhile.
    pub(super) fn left(&mut self, request: &RequestId) -> bool {
        match self.waiting.get(request) {
            Some(ReplyTo::Call(reply, _)) if reply.is_closed() => self.forget(request).is_some(),
            _ => false,
        }
    }

    /// A session is gone: the requests of it that waited.
    pub(super) fn hangup(&mut self, session: u64) -> Vec<RequestId> {
        let requests: Vec<RequestId> = self
            .waiting_of
            .remove(&session)
            .into_iter()
            .flatten()
            .collect();
        for request in &requests {
            self.waiting.remove(request);
        }
        requests
    }

    /// Lets everything out that is ready: it is durable now. Returns the grants that nobody was there
    /// to take.
    pub(super) fn send(&mut self) -> Vec<GrantRef> {
        let mut unclaimed = Vec::new();
        for (reply, undo, answer) in self.calls.drain(..) {
            if let (Err(Answer::Outcome(Outcome::Granted(granted))), Some(lock)) =
                (reply.send(answer), undo)
            {
                unclaimed.push(GrantRef {
                    lock,
                    key: granted.key,
                    token: Some(granted.token),
                });
            }
        }
        for (outbox, answers) in self.sessions.drain(..) {
            if !answers.is_empty() {
                let _ = outbox.answers.send(answers);
            }
        }
        unclaimed
    }

    /// The log failed: whether what was asked has happened is not known to anybody.
    pub(super) fn disown(&mut self) {
        for (_, _, answer) in &mut self.calls {
            *answer = lost();
        }
        for (_, answer) in self.sessions.iter_mut().flat_map(|(_, answers)| answers) {
            *answer = lost();
        }
        self.close(lost);
    }

    /// The authority stops in order: requests that wait got nothing.
    pub(super) fn dismiss(&mut self) {
        self.close(gone);
    }

    fn close(&mut self, answer: fn() -> Answer) {
        for (_, reply) in std::mem::take(&mut self.waiting) {
            self.answer(reply, answer());
        }
        self.waiting_of.clear();
        // Nothing but refusals goes out here, or grants of an authority that is over.
        let _ = self.send();
    }
}
