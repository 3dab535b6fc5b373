//! Listening: holders hear of their grants before their next renewal would tell.
//!
//! ```text
//!   POST /v1/listen ─► named ─► state of each ─┬─ something to say ──────────► answer
//!                                              └─ nothing: wait for news ────► answer
//!   session ─► named ─► state of each ─► listening ─► a notice, as often as there is news
//! ```
//!
//! Both are level-triggered: the caller says how many waiting requests it knows of, and the state that the pipeline reads after
//! the grants were named shows the rest. So nothing is lost between two requests, and nothing is kept here for a caller that is
//! away. The pipeline finds the listeners ([`palisade_pipeline::Listener`]); this module bounds them.

use std::collections::HashMap;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use palisade_core::{GrantState, LockName, Token};
use palisade_pipeline::{Answer, Heard, Leading, Listened, Listener, News, Request};
use palisade_proto::Code;
use palisade_proto::json::NoticeBody;
use palisade_proto::v1::Reply;
use tokio::runtime;

use super::convert::{Refusal, grpc, json, not_leader, refusal};
use super::gate::{Gate, GatedPipeline, Who};
use super::phases::Phases;
use super::shares::{ShareFull, SharePart, Shares};

/// All listening requests, and their bounds.
pub(super) struct Listens {
    gate: Arc<Gate>,
    pipeline: GatedPipeline,
    phases: Phases,
    requests: Arc<Shares>,
    grants: Arc<Shares>,
    /// Sessions may run on the pipeline's own thread, which has better things to do than to tell of queues.
    runtime: runtime::Handle,
}

impl Listens {
    /// To be called on the runtime of the server.
    pub(super) fn new(
        gate: Arc<Gate>,
        pipeline: GatedPipeline,
        phases: Phases,
        [requests, grants]: [Arc<Shares>; 2],
    ) -> Listens {
        Listens {
            gate,
            pipeline,
            phases,
            requests,
            grants,
            runtime: runtime::Handle::current(),
        }
    }

    /// The news of these grants: at once if there is any, else when there is or the wait is over.
    pub(super) async fn listen(
        &self,
        who: &Who,
        request: Request,
        wait: Duration,
    ) -> Result<Vec<NoticeBody>, Refusal> {
        let permitted = self.gate.permit(who, request)?;
        let Request::Listen(grants) = permitted.request() else {
            return Err(Refusal::invalid("not a request to listen"));
        };
        let grants = grants.clone();
        let request = self.requests.take(who.origin(), 1);
        let _request = request.map_err(|full| full.of_listening("requests"))?;
        let places = self.grants.take(who.origin(), grants.len() as u64);
        let _places = places.map_err(full_of_grants)?;
        let listener = self.pipeline.listener();
        for listened in &grants {
            listener.name(listened, &self.runtime);
        }
        let states = match self.pipeline.call(&self.gate, permitted).await {
            Answer::States(states) => states,
            other => return Err(refusal(other)),
        };
        settle(&listener, names(&grants), &states);
        let mut notices = Vec::new();
        let first = tokio::select! {
            biased;
            first = listener.next() => Some(first),
            () = self.phases.draining() => {
                return Err(Refusal::new(Code::Unavailable, "the server is stopping"));
            }
            () = tokio::time::sleep(wait) => None,
        };
        let mut next = first;
        while let Some(heard) = next {
            match heard {
                Heard::News { lock, number, news } => {
                    notices.push(json::notice(&lock, number, news));
                }
                // What is known already is true.
                Heard::NotHere if notices.is_empty() => return Err(self.not_here()),
                Heard::NotHere => break,
            }
            next = listener.try_next();
        }
        Ok(notices)
    }

    /// Why nothing more is told here.
    fn not_here(&self) -> Refusal {
        match self.pipeline.leader() {
            Leading::At(url) => not_leader(Some(url)),
            Leading::Nowhere => not_leader(None),
            Leading::Here => Refusal::new(Code::Unavailable, "ask again: the server began anew"),
        }
    }
}

fn full_of_grants(full: ShareFull) -> Refusal {
    full.of_listening("grants")
}

type GrantName = (LockName, Token);

fn names(grants: &[Listened]) -> Vec<GrantName> {
    let names = grants.iter();
    names
        .map(|listened| (listened.grant.lock.clone(), listened.number))
        .collect()
}

fn settle(listener: &Listener, names: Vec<GrantName>, states: &[GrantState]) {
    for ((lock, number), state) in names.into_iter().zip(states) {
        listener.settle(&lock, number, *state);
    }
}

/// The grants that one session has named.
pub(super) struct SessionListener {
    listens: Arc<Listens>,
    listener: Listener,
    /// The operation that named each grant, and its place among all.
    grants: HashMap<GrantName, (u64, SharePart)>,
    /// The grants of operations whose answers are to come.
    asked: HashMap<u64, Vec<GrantName>>,
    /// The operation that named grants last.
    latest: u64,
}

impl SessionListener {
    pub(super) fn new(listens: &Arc<Listens>) -> SessionListener {
        SessionListener {
            listener: listens.pipeline.listener(),
            listens: Arc::clone(listens),
            grants: HashMap::new(),
            asked: HashMap::new(),
            latest: 0,
        }
    }

    /// Names the grants of an operation, whose answer is to be [settled](SessionListener::settle).
    pub(super) fn name(&mut self, id: u64, who: &Who, grants: &[Listened]) -> Result<(), Refusal> {
        if self.asked.contains_key(&id) {
            let why = format!("id {id} is that of an operation in flight: use another one");
            return Err(Refusal::invalid(why));
        }
        let new = names(grants);
        if let Some((lock, _)) = new.iter().find(|named| self.grants.contains_key(*named)) {
            let why =
                format!("the grant of {lock} is named already; its notices come by themselves");
            return Err(Refusal::invalid(why));
        }
        let mut slots = Vec::with_capacity(grants.len());
        for _ in grants {
            let slot = self.listens.grants.take(who.origin(), 1);
            slots.push(slot.map_err(full_of_grants)?);
        }
        for ((listened, named), slot) in grants.iter().zip(&new).zip(slots) {
            self.listener.name(listened, &self.listens.runtime);
            self.grants.insert(named.clone(), (id, slot));
        }
        self.asked.insert(id, new);
        self.latest = id;
        Ok(())
    }

    /// The answer to an operation, if it is one that named grants.
    pub(super) fn settle(&mut self, id: u64, answer: &Answer) {
        let Some(names) = self.asked.remove(&id) else {
            return;
        };
        match answer {
            Answer::States(states) => settle(&self.listener, names, states),
            _ => self.forget(names),
        }
    }

    /// The operation never reached the pipeline.
    fn forget(&mut self, names: Vec<GrantName>) {
        for named in names {
            self.listener.unname(&named.0, named.1);
            self.grants.remove(&named);
        }
    }

    /// The next notice.
    pub(super) fn poll_next(&mut self, cx: &mut Context<'_>) -> Poll<Reply> {
        self.listener.poll_next(cx).map(|heard| {
            let id = match &heard {
                Heard::NotHere => {
                    self.grants.clear();
                    self.latest
                }
                Heard::News { lock, number, news } => {
                    let named = (lock.clone(), *number);
                    match news {
                        News::Ended { .. } => self.grants.remove(&named).map(|(id, _)| id),
                        News::Wanted(_) => self.grants.get(&named).map(|(id, _)| *id),
                    }
                    .unwrap_or(self.latest)
                }
            };
            grpc::notice(id, heard)
        })
    }
}
