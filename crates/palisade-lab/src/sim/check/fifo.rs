//! First come, first served (A10): a lock goes to the longest waiting request whose caller is still there and whose
//! wait is not over.

use std::collections::{BTreeMap, BTreeSet};

use super::Check;
use crate::sim::fact::{ChangeKind, Fact};

/// See the module.
#[derive(Default)]
pub(crate) struct Fifo {
    queues: BTreeMap<u8, Vec<Waiter>>,
    /// Requests whose callers left, until they return.
    gone: BTreeSet<u32>,
    /// Each lock's holder, and every token granted so far.
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
            // It left and returned: at the end of the queue.
            Some(place) if back => {
                queue.remove(place);
            }
            // Another attempt keeps its place and its deadline.
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
            // The answer to a repeated request.
            return Ok(());
        }
        let Some((lock, place)) = waited else {
            return self.at_once(who, token);
        };
        if who.is_some() && self.gone.remove(&request) {
            // It left, and returns as a new request.
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
                "token {token} went to request {request}, with {before} ahead of it"
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

    /// Only the holder itself, taking its own lock over, may pass the queue.
    fn at_once(&self, who: Option<(u8, u8)>, token: u64) -> Result<(), String> {
        let Some((lock, client)) = who else {
            return Err(format!(
                "token {token} went to a request that no longer waited"
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
                ChangeKind::Granted(_) => {
                    self.granted.insert(turn.token);
                    self.holders.insert(turn.lock, turn.client);
                }
                ChangeKind::Ended(_) => drop(self.holders.remove(&turn.lock)),
            },
            // All connections are gone, so all waits are over.
            Fact::Recovered { live, next, .. } => {
                // Decisions that the crash lost are made again.
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
