//! Who waits for which answer.

use std::sync::Arc;

use std::collections::{HashMap, HashSet};
use palisade_core::RequestId;
use tokio::sync::oneshot;

use super::handle::{Outbox, gone, lost};
use super::request::Answer;

/// Where one answer goes.
pub(super) enum ReplyTo {
    Call(oneshot::Sender<Answer>),
    Session(Arc<Outbox>, u64),
}

/// Answers that are ready but must not leave before the sync, and callers whose answer is not known
/// yet.
#[derive(Default)]
pub(super) struct Desk {
    calls: Vec<(oneshot::Sender<Answer>, Answer)>,
    sessions: Vec<(Arc<Outbox>, Vec<(u64, Answer)>)>,
    waiting: HashMap<RequestId, ReplyTo>,
    /// The waiting requests of each session that has some.
    waiting_of: HashMap<u64, HashSet<RequestId>>,
}

impl Desk {
    /// A session is about to get up to `answers` answers.
    pub(super) fn open(&mut self, session: &Arc<Outbox>, answers: usize) {
        self.sessions.push((Arc::clone(session), Vec::with_capacity(answers)));
    }

    /// An answer is ready; it leaves with [`Desk::send`].
    pub(super) fn answer(&mut self, reply: ReplyTo, answer: Answer) {
        match reply {
            ReplyTo::Call(reply) => self.calls.push((reply, answer)),
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
        self.forget(&request);
        if let ReplyTo::Session(outbox, _) = &reply {
            self.waiting_of.entry(outbox.session).or_default().insert(request);
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
    pub(super) fn forget(&mut self, request: &RequestId) -> Option<ReplyTo> {
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

    /// A session is gone: the requests of it that waited.
    pub(super) fn hangup(&mut self, session: u64) -> Vec<RequestId> {
        let requests: Vec<RequestId> =
            self.waiting_of.remove(&session).into_iter().flatten().collect();
        for request in &requests {
            self.waiting.remove(request);
        }
        requests
    }

    /// Lets everything out that is ready: it is durable now.
    pub(super) fn send(&mut self) {
        for (reply, answer) in self.calls.drain(..) {
            // A caller that left meanwhile has said so in a message of its own.
            let _ = reply.send(answer);
        }
        for (outbox, answers) in self.sessions.drain(..) {
            if !answers.is_empty() {
                let _ = outbox.answers.send(answers);
            }
        }
    }

    /// The log failed: whether what was asked has happened is not known to anybody.
    pub(super) fn disown(&mut self) {
        for (_, answer) in &mut self.calls {
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
        self.send();
    }
}
