//! Follows the log with a machine of its own, and tells what it says as facts: the checkers see what was
//! decided from the bytes that become durable, not from the orderer.

use std::collections::BTreeMap;

use palisade_core::{Away, Command, Effect, Entry, Machine, Outcome, RequestId};
use palisade_server::pipeline::codec::{decode_batch, encode_command, encode_head};
use palisade_server::pipeline::orderer::Orderer;

use super::ledger::Ledger;
use super::process::Caller;
use super::{ReplyTo, index, turn};
use crate::sim::fact::Fact;
use crate::sim::mutants::Mutant;

/// See the module.
pub(super) struct Follower {
    mutant: Option<Mutant>,
    machine: Machine,
    effects: Vec<Effect>,
    /// The batch as it goes to the log; empty if nothing changed.
    pub(super) batch: Vec<u8>,
    /// Commands of the orderer's batch that were followed.
    seen: usize,
    /// The callers of waiting requests, by the request's number.
    waiting: BTreeMap<u32, ReplyTo>,
}

/// The caller whose request is followed, and how long it wants to wait in nanoseconds.
pub(super) type Asked = (ReplyTo, u64);

impl Follower {
    pub(super) fn new(machine: Machine, mutant: Option<Mutant>) -> Follower {
        Follower {
            mutant,
            machine,
            effects: Vec::new(),
            batch: Vec::new(),
            seen: 0,
            waiting: BTreeMap::new(),
        }
    }

    /// The batch is over.
    pub(super) fn end_batch(&mut self) {
        self.batch.clear();
        self.seen = 0;
    }

    /// The requests that wait through a client's connection, by number, in the order in which they were made.
    /// They do no longer.
    pub(super) fn hang_up(&mut self, client: u8, life: u32) -> Vec<u32> {
        let of_it = |to: &ReplyTo| (to.client, to.life) == (client, life);
        let waiting = self.waiting.iter().filter(|(_, to)| of_it(to));
        let mut gone: Vec<(u32, u32)> = waiting
            .map(|(number, to)| (to.operation, *number))
            .collect();
        gone.sort_unstable();
        self.waiting.retain(|_, to| !of_it(to));
        gone.into_iter().map(|(_, number)| number).collect()
    }

    /// Follows what the orderer's batch has got since it was last followed.
    pub(super) fn follow(
        &mut self,
        orderer: &Orderer<Caller>,
        asked: Option<Asked>,
        ledger: &mut Ledger,
        facts: &mut Vec<Fact>,
    ) {
        let mut entries = Vec::new();
        // Well-formed, because it was encoded a moment ago; or nothing.
        let _ = decode_batch(orderer.entry().unwrap_or_default(), |entry| {
            entries.push(entry);
        });
        for entry in entries.split_off(self.seen.min(entries.len())) {
            self.seen += 1;
            let withdraws = matches!(entry.command, Command::Withdraw(_));
            if withdraws && self.mutant == Some(Mutant::WithdrawalNotLogged) {
                continue;
            }
            if self.batch.is_empty() {
                encode_head(&mut self.batch, entry.at, entry.wall);
            }
            encode_command(&mut self.batch, &entry.command);
            self.apply(entry, asked, ledger, facts);
        }
    }

    /// Decisions first, then the turns in the order of the log.
    fn apply(
        &mut self,
        entry: Entry,
        asked: Option<Asked>,
        ledger: &mut Ledger,
        facts: &mut Vec<Fact>,
    ) {
        let at = entry.at.as_nanos();
        if let Command::Grace(Away::Stalled | Away::Paused(_)) = &entry.command {
            facts.push(Fact::Graced { at });
        }
        let acquires = match &entry.command {
            Command::Acquire(acquire) => acquire
                .request
                .map(|request| (request, index(&acquire.lock), index(&acquire.client))),
            _ => None,
        };
        let outcome = self.machine.apply(entry, &mut self.effects).outcome;
        let effects = std::mem::take(&mut self.effects);
        for effect in &effects {
            if let Effect::Settled { request, outcome } = effect {
                facts.push(self.decided(at, *request, None, outcome, ledger));
            }
        }
        match acquires {
            Some(acquires) => facts.extend(self.acquired(at, acquires, &outcome, asked, ledger)),
            None => facts.extend(renewed(at, &outcome, ledger)),
        }
        for effect in &effects {
            if let Effect::Event(event) = effect {
                let token = ledger.outward(event.token).get();
                facts.push(Fact::Applied(turn(event, token)));
            }
        }
    }

    fn acquired(
        &mut self,
        at: u64,
        (request, lock, client): (RequestId, u8, u8),
        outcome: &Outcome,
        asked: Option<Asked>,
        ledger: &mut Ledger,
    ) -> Option<Fact> {
        if !matches!(outcome, Outcome::Queued) {
            return Some(self.decided(at, request, Some((lock, client)), outcome, ledger));
        }
        let (to, wait) = asked?;
        let request = ledger.number(request);
        self.waiting.insert(request, to);
        Some(Fact::Queued {
            request,
            lock,
            client,
            at,
            wait,
        })
    }

    fn decided(
        &mut self,
        at: u64,
        request: RequestId,
        who: Option<(u8, u8)>,
        outcome: &Outcome,
        ledger: &mut Ledger,
    ) -> Fact {
        let (token, left) = match outcome {
            Outcome::Granted(granted) => {
                ledger.granted(Some(request), granted);
                let left = granted.valid_for.as_nanos() - granted.waited.as_nanos();
                (Some(ledger.outward(granted.token).get()), left)
            }
            _ => (None, 0),
        };
        let request = ledger.number(request);
        self.waiting.remove(&request);
        Fact::Decided {
            request,
            who,
            at,
            token,
            left,
        }
    }
}

fn renewed(at: u64, outcome: &Outcome, ledger: &Ledger) -> Option<Fact> {
    let Outcome::Renewed(renewed) = outcome else {
        return None;
    };
    Some(Fact::Renewed {
        token: ledger.outward(renewed.token).get(),
        at,
        ttl: renewed.ttl.span().as_nanos(),
    })
}
