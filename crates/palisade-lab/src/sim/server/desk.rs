//! Who waits for which answer, as the product's desk keeps it.

use std::collections::BTreeMap;

use palisade_core::RequestId;
use palisade_server::pipeline::{Answer, Failure};

/// Where one answer goes: the client, its life, and its operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ReplyTo {
    pub(crate) client: u8,
    pub(crate) life: u32,
    pub(crate) operation: u32,
}

/// Answers that are ready but must not leave before the sync, and callers whose answer is not known.
#[derive(Default)]
pub(crate) struct Desk {
    ready: Vec<(ReplyTo, Answer)>,
    waiting: BTreeMap<RequestId, ReplyTo>,
}

impl Desk {
    pub(crate) fn answer(&mut self, to: ReplyTo, answer: Answer) {
        self.ready.push((to, answer));
    }

    /// A request went into a queue. Asked twice, it is answered where it was asked last.
    pub(crate) fn wait(&mut self, request: RequestId, to: ReplyTo) {
        if let Some(earlier) = self.waiting.insert(request, to) {
            let why = "the same request was asked again elsewhere".into();
            self.answer(earlier, Answer::Failed(Failure::UnknownOutcome(why)));
        }
    }

    pub(crate) fn settle(&mut self, request: &RequestId, answer: Answer) {
        if let Some(to) = self.waiting.remove(request) {
            self.answer(to, answer);
        }
    }

    /// A client's connection is gone: the requests that waited through it, in the order in which they were
    /// made. Their ids are random bytes, which nothing here may depend on.
    pub(crate) fn hangup(&mut self, client: u8, life: u32) -> Vec<RequestId> {
        let gone = |to: &ReplyTo| (to.client, to.life) == (client, life);
        let mut requests: Vec<(u32, RequestId)> = self
            .waiting
            .iter()
            .filter(|(_, to)| gone(to))
            .map(|(request, to)| (to.operation, *request))
            .collect();
        requests.sort_unstable_by_key(|(operation, _)| *operation);
        self.waiting.retain(|_, to| !gone(to));
        requests.into_iter().map(|(_, request)| request).collect()
    }

    pub(crate) fn take_ready(&mut self) -> Vec<(ReplyTo, Answer)> {
        std::mem::take(&mut self.ready)
    }
}
