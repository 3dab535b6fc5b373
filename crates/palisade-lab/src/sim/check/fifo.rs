//! First come, first served, and nobody who left (A10): a lock goes to the longest waiting request that
//! is still there and whose wait is not over.

use std::collections::{BTreeMap, BTreeSet};

use super::Check;
use crate::sim::fact::{Fact, What};

/// See the module.
#[derive(Default)]
pub(crate) struct Fifo {
    queues: BTreeMap<u8, Vec<Waiter>>,
    /// Requests whose callers left, until they come again.
    gone: BTreeSet<u32>,
    /// Who holds each lock, and every token granted so far.
    holders: BTreeMap<u8, u8>,
    granted: BTreeSet<u64>,
}

struct Waiter {
    request: u32,
    until: u64,
}

impl Fifo {
    fn queued(&mut self, request: u32, lock: u8, until: u64) {
        let queue = self.queues.entry(lock).or_default();
        let back = self.gone.remove(&request);
        match queue.iter().position(|waiter| waiter.request == request) {
            // It left and came again: at the end.
            Some(place) if back => {
                queue.remove(place);
            }
            // Another attempt keeps its place and its end.
            Some(_) => return,
            None => {}
        }
        queue.push(Waiter { request, until });
    }

    fn decided(
        &mut self,
        request: u32,
        who: Option<(u8, u8)>,
        at: u64,
        token: Option<u64>,
    ) -> Result<(), String> {
        let waited = self.queues.iter().find_map(|(lock, queue)| {
            let place = queue.iter().position(|waiter| waiter.request == request)?;
            Some((*lock, place))
        });
        let Some(token) = token else {
            if let Some((lock, place)) = waited {
                self.leave(lock, place);
            }
            return Ok(());
        };
        if self.granted.contains(&token) {
            // The answer to a repeat.
            return Ok(());
        }
        let Some((lock, place)) = waited else {
            return self.at_once(who, token);
        };
        if who.is_some() && self.gone.remove(&request) {
            // It left, and comes as a new one.
            self.leave(lock, place);
            return self.at_once(who, token);
        }
        let before = self.waiting(lock, place);
        let until = self.leave(lock, place);
        if self.gone.contains(&request) {
            return Err(format!(
                "token {token} went to request {request}, whose caller had left"
            ));
        }
        if before != 0 {
            return Err(format!(
                "token {token} went to request {request}, with {before} before it"
            ));
        }
        if at >= until {
            let late = (at - until) / 1_000_000;
            return Err(format!(
                "token {token} went to request {request} {late} ms after its wait was over"
            ));
        }
        Ok(())
    }

    /// Nobody passes a queue, but who takes his own lock back.
    fn at_once(&self, who: Option<(u8, u8)>, token: u64) -> Result<(), String> {
        let Some((lock, client)) = who else {
            return Err(format!(
                "token {token} went to a request that did not wait any more"
            ));
        };
        let waiting = self.waiting(lock, usize::MAX);
        if waiting == 0 || self.holders.get(&lock) == Some(&client) {
            return Ok(());
        }
        Err(format!(
            "token {token} went to client {client} at once, with {waiting} waiting"
        ))
    }

    /// How many of the first `places` of a queue are still there.
    fn waiting(&self, lock: u8, places: usize) -> usize {
        let queue = self.queues.get(&lock).into_iter().flatten();
        queue
            .take(places)
            .filter(|waiter| !self.gone.contains(&waiter.request))
            .count()
    }

    fn leave(&mut self, lock: u8, place: usize) -> u64 {
        let queue = self.queues.entry(lock).or_default();
        queue.remove(place).until
    }
}

impl Check for Fifo {
    fn name(&self) -> &'static str {
        super::FIFO
    }

    fn see(&mut self, _: u64, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Queued {
                request,
                lock,
                at,
                wait,
                ..
            } => self.queued(*request, *lock, at.saturating_add(*wait)),
            Fact::Decided {
                request,
                who,
                at,
                token,
                ..
            } => return self.decided(*request, *who, *at, *token),
            Fact::Gone { request } => drop(self.gone.insert(*request)),
            Fact::Applied(turn) => match turn.what {
                What::Granted(_) => {
                    self.granted.insert(turn.token);
                    self.holders.insert(turn.lock, turn.client);
                }
                What::Ended(_) => drop(self.holders.remove(&turn.lock)),
            },
            // Nobody is connected any more: all waits are over.
            Fact::Recovered { live, next, .. } => {
                // What was decided and lost with the crash is drawn again.
                self.granted.retain(|token| token < next);
                self.queues.clear();
                self.gone.clear();
                self.holders = live
                    .iter()
                    .map(|(lock, _, client)| (*lock, *client))
                    .collect();
            }
            _ => {}
        }
        Ok(())
    }
}
