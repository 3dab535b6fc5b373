//! A client process's connection to the network: the real client's `LockService`, and the resource.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use palisade_client::service::{
    AcquireRequest, Acquired, LockService, Operation, Released, Renewal,
};
use palisade_client::{Fault, Lease, LockView, answers};
use palisade_core::fence::Sequence;
use palisade_core::{AuthorityId, GrantRef, LockName, RequestId, Span, Timestamp, Token, Ttl};
use palisade_pipeline::{Answer, Request};
use tokio::sync::oneshot;

use super::clock::{MachineClock, hold};
use super::fact::Fact;
use super::mutants::Mutant;

/// A request to a resource.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Ask {
    pub(crate) resource: u8,
    pub(crate) token: Token,
    pub(crate) op: ResourceOp,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum ResourceOp {
    Claim,
    Read,
    Write { value: u128, sequence: Sequence },
}

/// A resource's answer.
#[derive(Clone, Debug)]
pub(crate) enum Reply {
    Admitted(u128),
    Rejected,
    /// Nothing happened; a retry is safe.
    Unavailable,
}

/// A client process's belief about a lock that it holds.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Belief {
    /// The number of its grant.
    pub(crate) number: u64,
    pub(crate) shared: bool,
    /// The slots of a semaphore, one bit each.
    pub(crate) slots: u64,
}

/// An outgoing message.
pub(crate) enum Outgoing {
    Authority(u32, Request),
    Resource(u32, Ask),
}

/// The port of one client process.
pub(crate) struct Port {
    state: Mutex<State>,
    /// The current grants, so that the checkers can ask what they believe.
    pub(crate) hand: Mutex<BTreeMap<u8, Lease>>,
    pub(crate) clock: Arc<MachineClock>,
    mutant: Option<Mutant>,
    authority: AuthorityId,
}

#[derive(Default)]
struct State {
    dead: bool,
    next: u32,
    out: Vec<Outgoing>,
    facts: Vec<Fact>,
    answers: BTreeMap<u32, oneshot::Sender<Answer>>,
    replies: BTreeMap<u32, oneshot::Sender<Reply>>,
}

impl Port {
    pub(crate) fn new(
        clock: Arc<MachineClock>,
        authority: AuthorityId,
        mutant: Option<Mutant>,
    ) -> Arc<Port> {
        Arc::new(Port {
            state: Mutex::default(),
            hand: Mutex::default(),
            clock,
            mutant,
            authority,
        })
    }

    /// The process is killed: it sends nothing more.
    pub(crate) fn kill(&self) {
        let mut state = hold(&self.state);
        state.dead = true;
        state.out.clear();
        state.facts.clear();
    }

    pub(crate) fn take_out(&self) -> (Vec<Outgoing>, Vec<Fact>) {
        let mut state = hold(&self.state);
        (
            std::mem::take(&mut state.out),
            std::mem::take(&mut state.facts),
        )
    }

    pub(crate) fn note(&self, fact: Fact) {
        let mut state = hold(&self.state);
        if !state.dead {
            state.facts.push(fact);
        }
    }

    pub(crate) fn answer(&self, id: u32, answer: Answer) {
        let waiting = hold(&self.state).answers.remove(&id);
        if let Some(waiting) = waiting {
            let _ = waiting.send(answer);
        }
    }

    pub(crate) fn reply(&self, id: u32, reply: Reply) {
        let waiting = hold(&self.state).replies.remove(&id);
        if let Some(waiting) = waiting {
            let _ = waiting.send(reply);
        }
    }

    /// The connection to the authority broke: pending requests may have taken effect.
    pub(crate) fn broken(&self) {
        let waiting = std::mem::take(&mut hold(&self.state).answers);
        drop(waiting);
    }

    /// The grant by which this process believes it holds a lock. Asking changes nothing.
    pub(crate) fn believes(&self, lock: u8) -> Option<Belief> {
        let hand = hold(&self.hand);
        let lease = hand.get(&lock)?;
        let number = lease.grant_id().map_or(lease.token(), |id| id.0);
        let belief = Belief {
            number: number.get(),
            shared: lease.mode().is_shared(),
            slots: lease.slots().bits(),
        };
        (!lease.remaining().is_zero()).then_some(belief)
    }

    pub(crate) fn ask(&self, ask: Ask) -> oneshot::Receiver<Reply> {
        let (reply, answer) = oneshot::channel();
        let mut state = hold(&self.state);
        let id = state.post(|id| Outgoing::Resource(id, ask));
        state.replies.insert(id, reply);
        answer
    }

    async fn call(&self, request: Request) -> Result<Answer, Fault> {
        let answer = {
            let (reply, answer) = oneshot::channel();
            let mut state = hold(&self.state);
            let id = state.post(|id| Outgoing::Authority(id, request));
            state.answers.insert(id, reply);
            answer
        };
        let broken = |_| Fault::unknown_outcome("the connection broke");
        answer.await.map_err(broken)
    }

    /// How long an answer is valid, counted from `sent`. The mutant counts from its receipt.
    fn good_for(&self, valid_for: Span, sent: u64) -> Span {
        match self.mutant {
            Some(Mutant::DeadlineFromReceipt) => valid_for
                .plus(Timestamp::from_nanos(self.clock.nanos()).since(Timestamp::from_nanos(sent))),
            _ => valid_for,
        }
    }
}

impl State {
    fn post(&mut self, message: impl FnOnce(u32) -> Outgoing) -> u32 {
        self.next += 1;
        if !self.dead {
            self.out.push(message(self.next));
        }
        self.next
    }
}

/// The authority, as the real client uses it.
pub(crate) struct Service(pub(crate) Arc<Port>);

impl LockService for Service {
    fn authority(&self) -> &AuthorityId {
        &self.0.authority
    }

    fn acquire(&self, request: AcquireRequest) -> Operation<'_, Acquired> {
        let asked = Request::Acquire(request.into());
        Box::pin(async move {
            let sent = self.0.clock.nanos();
            let mut acquired = answers::acquired(self.0.call(asked).await?)?;
            if let Acquired::Granted(granted) = &mut acquired {
                granted.valid_for = self.0.good_for(granted.valid_for, sent);
            }
            Ok(acquired)
        })
    }

    fn renew(&self, grant: GrantRef, ttl: Option<Ttl>) -> Operation<'_, Renewal> {
        Box::pin(async move {
            let sent = self.0.clock.nanos();
            let mut renewal = answers::renewed(self.0.call(Request::Renew { grant, ttl }).await?)?;
            if let Renewal::Renewed(renewed) = &mut renewal {
                renewed.valid_for = self.0.good_for(renewed.valid_for, sent);
            }
            Ok(renewal)
        })
    }

    fn release(&self, grant: GrantRef) -> Operation<'_, Released> {
        Box::pin(async move { answers::released(self.0.call(Request::Release(grant)).await?) })
    }

    fn abandon(&self, request: RequestId) -> Operation<'_, ()> {
        Box::pin(async move {
            answers::outcome(self.0.call(Request::Abandon(request)).await?).map(drop)
        })
    }

    fn show(&self, _: LockName) -> Operation<'_, LockView> {
        Box::pin(async { Err(Fault::unsupported("show locks")) })
    }
}
