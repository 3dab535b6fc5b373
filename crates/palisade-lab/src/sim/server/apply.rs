//! From a message to the machine and from its outcome to an answer, with the mutants' wrappers.

use palisade_core::{
    Acquire, Command, Effect, Ending, Entry, GrantRef, LeaseKey, Outcome, Renewed, RequestId, Span,
    Ttl, Under,
};
use palisade_server::pipeline::codec::encode_command;
use palisade_server::pipeline::{Acquire as Wish, Answer, Failure, Request};

use super::desk::ReplyTo;
use super::{Authority, Incoming, index, turn};
use crate::sim::fact::Fact;
use crate::sim::mutants::Mutant;

/// What a mutant adds to every wait: longer than a run.
const NO_END: Span = Span::from_millis(3_600_000);

impl Authority {
    pub(super) fn message(&mut self, message: Incoming) {
        match message {
            Incoming::Ask(to, request) => self.ask(to, request),
            Incoming::Hangup(client, life) => self.hangup(client, life),
        }
    }

    fn hangup(&mut self, client: u8, life: u32) {
        let Some(process) = &mut self.process else {
            return;
        };
        let full = process.full;
        for request in process.desk.hangup(client, life) {
            let number = self.ledger.number(request);
            self.facts.push(Fact::Gone { request: number });
            let command = Command::Withdraw(request);
            if self.mutant == Some(Mutant::WaiterUnchecked) {
                continue;
            }
            if full {
                self.process
                    .iter_mut()
                    .for_each(|process| process.left.push(command.clone()));
            } else {
                self.apply(command);
            }
        }
    }

    fn ask(&mut self, to: ReplyTo, request: Request) {
        let wanted = match &request {
            Request::Acquire(wish) => wish.wait.map_or(0, Span::as_nanos),
            _ => 0,
        };
        let command = match request {
            Request::Acquire(wish) => self.acquire(wish),
            Request::Renew { grant, ttl } => Command::Renew {
                grant: self.named(grant),
                ttl,
            },
            Request::Release(grant) => Command::Release(self.released(grant)),
            Request::Abandon(request) => {
                let request_number = self.ledger.number(request);
                self.facts.push(Fact::AbandonTaken {
                    request: request_number,
                });
                Command::Abandon(request)
            }
            Request::Revoke {
                lock,
                token,
                reason,
            } => {
                self.facts.push(Fact::RevokeTaken { token: token.get() });
                let token = self.ledger.inward(token);
                Command::Revoke {
                    lock,
                    token,
                    reason,
                }
            }
            _ => return,
        };
        self.carry_out(to, command, wanted);
    }

    fn acquire(&mut self, wish: Wish) -> Command {
        self.ledger.arrived(wish.request);
        let under = match (wish.lease, wish.ttl) {
            (Some(key), ttl) => Under::Existing { key, ttl },
            (None, ttl) => Under::New {
                key: LeaseKey::from_bytes(self.rng.bytes()),
                ttl: ttl.unwrap_or(Ttl::MIN),
            },
        };
        let wait = match (self.mutant, wish.wait) {
            (Some(Mutant::WaiterUnchecked), Some(wait)) => Some(wait.plus(NO_END)),
            (_, wait) => wait,
        };
        Command::Acquire(Acquire {
            lock: wish.lock,
            client: wish.client,
            under,
            wait,
            request: wish.request,
            metadata: wish.metadata,
        })
    }

    /// A grant as the machine knows it.
    fn named(&self, grant: GrantRef) -> GrantRef {
        let token = grant.token.map(|token| self.ledger.inward(token));
        GrantRef { token, ..grant }
    }

    fn released(&mut self, grant: GrantRef) -> GrantRef {
        if let Some(token) = grant.token {
            self.facts.push(Fact::ReleaseTaken { token: token.get() });
        }
        let grant = self.named(grant);
        let present = self.process.as_ref().and_then(|process| {
            let view = process.machine.view(&grant.lock, process.at)?;
            Some(view.holder?.token)
        });
        match (self.mutant, present) {
            (Some(Mutant::ReleaseByName), Some(token)) => self.ledger.present(grant, token),
            _ => grant,
        }
    }

    fn carry_out(&mut self, to: ReplyTo, command: Command, wanted: u64) {
        if let Some(process) = &mut self.process
            && process.full
        {
            let why = "the disk has no room for the log; nothing happened".into();
            return process
                .desk
                .answer(to, Answer::Failed(Failure::Unavailable(why)));
        }
        let waits_as = match &command {
            Command::Acquire(acquire) => acquire
                .request
                .map(|request| (request, index(&acquire.lock))),
            _ => None,
        };
        let renews = match &command {
            Command::Renew { grant, .. } => grant.token,
            _ => None,
        };
        let outcome = self.apply(command);
        let outcome = match (self.mutant, renews, outcome) {
            (
                Some(Mutant::LateRenewal),
                Some(token),
                Outcome::Ended {
                    how: Ending::Expired,
                    ..
                },
            ) => {
                let ttl = Ttl::MIN;
                let valid_for = ttl.span();
                Outcome::Renewed(Renewed {
                    token,
                    ttl,
                    valid_for,
                })
            }
            (_, _, outcome) => outcome,
        };
        let answer = Answer::Outcome(self.outward(outcome.clone()));
        let Some(process) = &mut self.process else {
            return;
        };
        match (outcome, waits_as) {
            (Outcome::Queued, Some((request, lock))) => {
                process.desk.wait(request, to);
                let (client, at) = (to.client, process.at.as_nanos());
                let request = self.ledger.number(request);
                self.facts.push(Fact::Queued {
                    request,
                    lock,
                    client,
                    at,
                    wait: wanted,
                });
            }
            _ => process.desk.answer(to, answer),
        }
    }

    /// Applies one command and puts it into the batch, unless it changed nothing.
    pub(super) fn apply(&mut self, command: Command) -> Outcome {
        let Some(process) = &mut self.process else {
            return Outcome::Done;
        };
        let asked = match &command {
            Command::Acquire(acquire) => acquire
                .request
                .map(|request| (request, index(&acquire.lock), index(&acquire.client))),
            _ => None,
        };
        let before = process.bytes.len();
        encode_command(&mut process.bytes, &command);
        let entry = Entry {
            at: process.at,
            wall: process.wall,
            command,
        };
        let applied = process.machine.apply(entry, &mut process.effects);
        if !applied.changed {
            process.bytes.truncate(before);
        }
        let effects = std::mem::take(&mut process.effects);
        self.record(&effects, asked, &applied.outcome);
        applied.outcome
    }

    /// Turns outcome and effects into facts: decisions first, then the turns in log order.
    fn record(
        &mut self,
        effects: &[Effect],
        asked: Option<(RequestId, u8, u8)>,
        outcome: &Outcome,
    ) {
        for effect in effects {
            if let Effect::Settled { request, outcome } = effect {
                self.decided(*request, None, outcome);
                let answer = Answer::Outcome(self.outward(outcome.clone()));
                if let Some(process) = &mut self.process {
                    process.desk.settle(request, answer);
                }
            }
        }
        match (asked, outcome) {
            (_, Outcome::Queued) => {}
            (Some((request, lock, client)), outcome) => {
                self.decided(request, Some((lock, client)), outcome);
            }
            (None, Outcome::Renewed(renewed)) => {
                let at = self
                    .process
                    .as_ref()
                    .map_or(0, |process| process.at.as_nanos());
                self.facts.push(Fact::Renewed {
                    token: self.ledger.outward(renewed.token).get(),
                    at,
                    ttl: renewed.ttl.span().as_nanos(),
                });
            }
            _ => {}
        }
        for effect in effects {
            if let (Effect::Event(event), Some(process)) = (effect, &mut self.process) {
                let turn = turn(event, self.ledger.outward(event.token).get());
                process.turns.push(turn);
                self.facts.push(Fact::Applied(turn));
            }
        }
    }

    fn decided(&mut self, request: RequestId, who: Option<(u8, u8)>, outcome: &Outcome) {
        let (token, left) = match outcome {
            Outcome::Granted(granted) => {
                self.ledger.granted(Some(request), granted);
                let left = granted.valid_for.as_nanos() - granted.waited.as_nanos();
                (Some(self.ledger.outward(granted.token).get()), left)
            }
            _ => (None, 0),
        };
        let request = self.ledger.number(request);
        let at = self
            .process
            .as_ref()
            .map_or(0, |process| process.at.as_nanos());
        self.facts.push(Fact::Decided {
            request,
            who,
            at,
            token,
            left,
        });
    }

    /// An outcome with the tokens that are given out.
    fn outward(&self, outcome: Outcome) -> Outcome {
        match outcome {
            Outcome::Granted(mut granted) => {
                granted.token = self.ledger.outward(granted.token);
                Outcome::Granted(granted)
            }
            Outcome::Renewed(renewed) => Outcome::Renewed(Renewed {
                token: self.ledger.outward(renewed.token),
                ..renewed
            }),
            Outcome::Stale { highest } => Outcome::Stale {
                highest: self.ledger.outward(highest),
            },
            other => other,
        }
    }
}

/// What an answer that leaves tells its client, where that is "you hold".
pub(super) fn acknowledged(answer: &Answer) -> Option<Fact> {
    let (token, renewal) = match answer {
        Answer::Outcome(Outcome::Granted(granted)) => (granted.token, false),
        Answer::Outcome(Outcome::Renewed(renewed)) => (renewed.token, true),
        _ => return None,
    };
    Some(Fact::Acknowledged {
        token: token.get(),
        renewal,
    })
}
