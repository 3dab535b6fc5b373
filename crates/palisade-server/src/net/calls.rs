//! Calls: requests that are answered one at a time, over HTTP and gRPC.

use std::future::pending;
use std::sync::Arc;

use palisade_core::Wish;
use palisade_pipeline::{Answer, Failure, Request};

use super::budget::{BudgetShare, OPERATION_BYTES, SessionBudget};
use super::cluster::Cluster;
use super::gate::{Gate, GatedPipeline, Permitted};

/// The way of a call: through the gate to the pipeline.
pub(super) struct Calls {
    pub(super) gate: Arc<Gate>,
    pub(super) pipeline: GatedPipeline,
    /// The memory for waiting calls, which sessions share.
    budget: Arc<SessionBudget>,
    /// `None` for a single server.
    cluster: Option<Arc<dyn Cluster>>,
}

impl Calls {
    pub(super) fn new(
        gate: Arc<Gate>,
        pipeline: GatedPipeline,
        budget: Arc<SessionBudget>,
        cluster: Option<Arc<dyn Cluster>>,
    ) -> Calls {
        Calls {
            gate,
            pipeline,
            budget,
            cluster,
        }
    }

    /// Sends one request to the pipeline, which ends a wait in a queue when the server shuts down.
    pub(super) async fn ask(&self, request: Permitted) -> Answer {
        let Request::Acquire(Wish {
            wait: Some(_),
            request: name,
            also,
            ..
        }) = request.request()
        else {
            return self.pipeline.call(&self.gate, request).await;
        };
        let named = name.is_some();
        let Some(_place) = BudgetShare::of(&self.budget, (1 + also.len()) * OPERATION_BYTES) else {
            let why = "the server's memory for requests in flight is used up; nothing happened";
            return Answer::Failed(Failure::Unavailable(why.into()));
        };
        let through = request.through();
        tokio::select! {
            // An answer that is there is given.
            biased;
            answer = self.pipeline.call(&self.gate, request) => answer,
            // A grant would reach nobody, and keep others waiting until its lease ends.
            () = self.loses(through) => {
                Answer::Failed(given_up(named, "the node that forwarded the request is cut off: ask again at another node"))
            }
        }
    }

    /// Waits until this node loses the one that sent a request on.
    async fn loses(&self, through: Option<Arc<str>>) {
        match (&self.cluster, through) {
            (Some(cluster), Some(url)) => cluster.loses(url).await,
            _ => pending().await,
        }
    }
}

/// The answer for a wait that the server cut short. A request without an id leaves nothing behind when its future is
/// dropped; a request with an id may have been granted just then, for its retry.
fn given_up(named: bool, why: &str) -> Failure {
    let message = why.to_owned();
    if named {
        Failure::UnknownOutcome(message)
    } else {
        Failure::Unavailable(message)
    }
}
