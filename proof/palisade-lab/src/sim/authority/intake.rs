//! Messages on their way into the loop. Between two of them the follower reports what the last one did, and mutants put their
//! own before the next.

use std::collections::VecDeque;
use std::rc::Rc;

use palisade_core::{GrantRef, LeaseKey, Principal, RequestId, Span, Timestamp};
use palisade_pipeline::Request;
use palisade_pipeline::orderer::Orderer;
use palisade_pipeline::round::{Inbox, RoundInput};

use super::call::Call;
use super::caller::{Caller, Incoming, ReplyTo, index, session};
use super::follower::{CallerAndWait, Follower};
use super::queues::{in_turn, overtaken};
use super::{Lab, seams};
use crate::sim::fact::Fact;
use crate::sim::mutants::Mutant;

/// The operation of a request that the lab itself makes: no client waits for its answer.
const NOBODYS: u32 = u32::MAX;

/// The lab's own inputs that come before a message.
#[derive(Default)]
pub(super) struct BeforeNext {
    inputs: VecDeque<RoundInput<Caller>>,
    /// Those for the next message are known.
    known: bool,
}

/// The messages that have reached the process.
pub(super) struct SimInbox<'a> {
    pub(super) lab: &'a mut Lab,
    pub(super) follower: &'a mut Follower,
    pub(super) inbox: &'a mut VecDeque<Incoming>,
    pub(super) coming: &'a mut BeforeNext,
    pub(super) now: Timestamp,
    /// The secret for the lab's own request.
    pub(super) own_key: Option<LeaseKey>,
    /// The caller of the last input, for the follower.
    pub(super) asked: Option<CallerAndWait>,
    /// Waits are being ended for a stop.
    pub(super) drains: bool,
}

impl Inbox<Caller> for SimInbox<'_> {
    fn next(&mut self, so_far: &Orderer<Caller>) -> Option<RoundInput<Caller>> {
        self.report(so_far);
        loop {
            if let Some(own) = self.coming.inputs.pop_front() {
                self.lab.own_requests += 1;
                let key = u128::from(self.lab.own_requests);
                self.own_key = Some(LeaseKey::from_bytes(key.to_be_bytes()));
                return Some(own);
            }
            let next = self.inbox.front()?;
            let asks = match next {
                Incoming::Ask(to, request) => Some((*to, request)),
                Incoming::Call(call, request) => Some((call.to(), request)),
                _ => None,
            };
            if let Some((to, request)) = asks
                && !std::mem::replace(&mut self.coming.known, true)
            {
                self.coming.inputs = before(self.lab, self.follower, to, request, so_far);
                continue;
            }
            self.coming.known = false;
            match self.inbox.pop_front()? {
                Incoming::Ask(to, request) => return Some(self.ask(to, None, request, so_far)),
                Incoming::Call(call, request) => {
                    return Some(self.ask(call.to(), Some(call), request, so_far));
                }
                Incoming::Gone(request, may_return) => {
                    if let Some(gone) = self.gone(request, may_return) {
                        return Some(gone);
                    }
                }
                Incoming::Unclaimed(grant) => {
                    if let Some(grant) = self.lab.unclaimed(grant) {
                        return Some(RoundInput::Unclaimed(Principal::ANONYMOUS, grant));
                    }
                }
                Incoming::Hangup(client, incarnation) => {
                    let gone = self.follower.hang_up(client, incarnation).into_iter();
                    let gone = gone.map(|request| Fact::Gone {
                        request,
                        single: false,
                    });
                    self.lab.facts.extend(gone);
                    if self.lab.mutant != Some(Mutant::WaiterUnchecked) {
                        return Some(RoundInput::Hangup(session(client, incarnation)));
                    }
                }
                Incoming::Drain => {
                    self.lab.facts.push(Fact::Stopping { begins: true });
                    self.drains = true;
                    if self.lab.mutant != Some(Mutant::StopOneByOne) {
                        return Some(RoundInput::Drain);
                    }
                    let sessions = in_turn(so_far.machine(), self.follower, &mut self.lab.ids);
                    let hangups = sessions.into_iter().map(RoundInput::Hangup);
                    self.coming.inputs.extend(hangups);
                }
                Incoming::Stop => return Some(RoundInput::Stop),
            }
        }
    }

    fn now(&self) -> Timestamp {
        self.now
    }

    fn key(&mut self) -> LeaseKey {
        let own = self.own_key.take();
        own.unwrap_or_else(|| LeaseKey::from_bytes(self.lab.rng.bytes()))
    }
}

impl SimInbox<'_> {
    /// Reports the commands that are new in the batch.
    pub(super) fn report(&mut self, so_far: &Orderer<Caller>) {
        let (ids, facts) = (&mut self.lab.ids, &mut self.lab.facts);
        self.follower.follow(so_far, self.asked.take(), ids, facts);
        self.own_key = None;
        if self.drains && self.coming.inputs.is_empty() {
            self.drains = false;
            facts.push(Fact::Stopping { begins: false });
        }
    }

    /// A single caller is gone. One whose place is reserved leaves its queue later, if at all.
    fn gone(&mut self, request: RequestId, may_return: bool) -> Option<RoundInput<Caller>> {
        let number = self.lab.ids.number(request);
        if !may_return && self.follower.leaves(number) {
            self.lab.facts.push(Fact::Gone {
                request: number,
                single: true,
            });
        }
        (self.lab.mutant != Some(Mutant::CallersUnchecked)).then_some(RoundInput::Gone {
            by: Principal::ANONYMOUS,
            request,
            may_return,
        })
    }

    fn ask(
        &mut self,
        to: ReplyTo,
        call: Option<Rc<Call>>,
        request: Request,
        so_far: &Orderer<Caller>,
    ) -> RoundInput<Caller> {
        let wanted = match &request {
            Request::Acquire(wish) => wish.wait.map_or(0, Span::as_nanos),
            _ => 0,
        };
        let caller = Caller {
            to,
            call,
            renews: match &request {
                Request::Renew { grant, .. } => grant.token,
                _ => None,
            },
            resizes: match &request {
                Request::Resize { lock, permits } => Some((index(lock), *permits as u8)),
                _ => None,
            },
        };
        let lab = &mut *self.lab;
        lab.facts.extend(seams::taken(&request, &mut lab.ids));
        let (machine, at) = (so_far.machine(), so_far.now());
        let request = seams::inward(request, lab.mutant, machine, at, &mut lab.ids);
        self.asked = Some((to, wanted));
        RoundInput::Ask(request.into(), caller)
    }
}

impl Lab {
    /// A grant reached nobody, and nobody can ask for it again. Returns it if the loop is to hear of it.
    pub(super) fn unclaimed(&mut self, grant: GrantRef) -> Option<GrantRef> {
        let lock = index(&grant.lock);
        let token = self.ids.outward(grant.token?).get();
        self.facts.push(Fact::Unclaimed { lock, token });
        (self.mutant != Some(Mutant::UnclaimedKept)).then_some(grant)
    }
}

/// The lab's own inputs before a request.
fn before(
    lab: &mut Lab,
    follower: &Follower,
    to: ReplyTo,
    request: &Request,
    so_far: &Orderer<Caller>,
) -> VecDeque<RoundInput<Caller>> {
    let machine = so_far.machine();
    let sessions = lab
        .mutant
        .map(|mutant| overtaken(mutant, machine, follower, request, &mut lab.ids));
    let sessions = sessions.into_iter().flatten().map(RoundInput::Hangup);
    let nobody = Caller {
        to: ReplyTo {
            operation: NOBODYS,
            ..to
        },
        call: None,
        renews: None,
        resizes: None,
    };
    let own = seams::first(request, lab.mutant, machine, so_far.now());
    let own = own
        .into_iter()
        .map(|asked| RoundInput::Ask(asked, nobody.clone()));
    sessions.chain(own).collect()
}
