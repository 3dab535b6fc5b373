//! The pipeline behind the gate, which accepts only permitted requests.

use std::pin::pin;

use palisade_pipeline::{
    Answer, Answers, Asked, Failure, Handle, Identity, Leading, Listener, Since, Stats, Stopped,
};
use tokio::sync::watch;

use super::Gate;
use super::permit::Permitted;
use super::waiting::WaitingCaller;

/// The pipeline behind the gate.
#[derive(Clone)]
pub(in crate::net) struct GatedPipeline(Handle);

impl GatedPipeline {
    pub(in crate::net) fn new(handle: Handle) -> GatedPipeline {
        GatedPipeline(handle)
    }

    /// Carries out a request; the answer contains only what the caller may see.
    pub(in crate::net) async fn call(&self, gate: &Gate, permitted: Permitted) -> Answer {
        if let Err(refusal) = permitted.recording.await {
            return Answer::Failed(Failure::Unavailable(refusal.message));
        }
        let keeps_place = permitted.asked.keeps_place.clone();
        let mut answer = pin!(self.0.call(permitted.asked));
        // Dropped before the call, so the pipeline learns whether the place is reserved.
        let waiting = WaitingCaller {
            place: permitted.place,
            keeps_place,
            used: permitted.used,
        };
        let answer = answer.as_mut().await;
        waiting.settle(&answer);
        gate.show(permitted.principal.as_ref(), Some(&permitted.view), answer)
    }

    pub(in crate::net) fn session(&self) -> (GatedSession, Answers) {
        let (session, answers) = self.0.session();
        (GatedSession(session), answers)
    }

    pub(in crate::net) fn near<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> impl Future<Output = Option<T>> {
        let near = self.0.near(task);
        async move { near.await.ok() }
    }

    pub(in crate::net) fn listener(&self) -> Listener {
        self.0.listener()
    }

    pub(in crate::net) fn since(&self, revision: u64) -> Since {
        self.0.since(revision)
    }

    pub(in crate::net) fn identity(&self) -> &Identity {
        self.0.identity()
    }

    pub(in crate::net) fn stats(&self) -> &Stats {
        self.0.stats()
    }

    pub(in crate::net) fn stopped(&self) -> watch::Receiver<Option<Stopped>> {
        self.0.stopped()
    }

    pub(in crate::net) fn leader(&self) -> Leading {
        self.0.leader()
    }

    pub(in crate::net) fn leading(&self) -> watch::Receiver<Leading> {
        self.0.leading()
    }

    pub(in crate::net) fn revision(&self) -> u64 {
        self.0.revision()
    }

    pub(in crate::net) fn news(&self) -> watch::Receiver<u64> {
        self.0.news()
    }
}

/// A session of the pipeline behind the gate.
pub(in crate::net) struct GatedSession(palisade_pipeline::Session);

impl GatedSession {
    pub(in crate::net) fn submit(&self, operations: PermittedBatch) {
        if !operations.0.is_empty() {
            self.0.submit(operations.0);
        }
    }

    pub(in crate::net) fn hang_up(&self) {
        self.0.hang_up();
    }
}

/// Operations that need no record, or whose records are on disk.
pub(in crate::net) struct PermittedBatch(Vec<(u64, Asked)>);

impl PermittedBatch {
    /// Without one, with room for so many.
    pub(in crate::net) fn with_room(operations: usize) -> PermittedBatch {
        PermittedBatch(Vec::with_capacity(operations))
    }

    pub(in crate::net) fn one(id: u64, permitted: Permitted) -> PermittedBatch {
        PermittedBatch(vec![(id, permitted.asked)])
    }

    pub(in crate::net) fn push(&mut self, id: u64, permitted: Permitted) {
        self.0.push((id, permitted.asked));
    }
}
