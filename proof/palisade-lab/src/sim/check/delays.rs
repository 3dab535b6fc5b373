//! Closed for its time (D1, D2, D4): after an expiry or a revocation nobody is granted the lock within the lock-delay,
//! also if the authority is started again; and nobody is granted it before the at-least-for of a grant is over. Only a
//! client that takes its own lock over need not wait.
//!
//! A crash may undo entries that were applied and are not on stable storage. The checker then demands only the smaller
//! bounds of the two states.

use std::collections::{BTreeMap, BTreeSet};

use palisade_core::Ending;

use super::rule::{self, Check};
use crate::sim::fact::{ChangeKind, Fact, LockChange};

/// See the module.
#[derive(Default)]
pub(crate) struct Delays {
    /// The lock-delay and the at-least-for of each request.
    asked: BTreeMap<u32, (u64, u64)>,
    /// The request of each grant, and until when the grant was promised.
    decided: BTreeMap<u64, (u32, u64)>,
    grants: BTreeMap<u64, Grant>,
    abandoned: BTreeSet<u32>,
    /// By lock, as applied and as on stable storage.
    applied: BTreeMap<u8, Closing>,
    durable: BTreeMap<u8, Closing>,
}

#[derive(Clone, Copy, Default)]
struct Grant {
    request: Option<u32>,
    /// Its lease does not expire before.
    not_before: u64,
    lock_delay: u64,
    /// The end of its at-least-for.
    reserves: u64,
}

/// The time after a lock's grants.
#[derive(Clone, Copy, Default)]
struct Closing {
    /// The end of the latest lock-delay.
    delayed: u64,
    /// The end of the latest at-least-for, and without that of the newest grant.
    reserved: u64,
    inherited: u64,
    /// The client whose grant was superseded by the entry being applied.
    taken_over: Option<u8>,
}

impl Delays {
    fn granted(&mut self, turn: &LockChange) -> Result<(), String> {
        let LockChange {
            lock,
            client,
            token,
            at,
            ..
        } = *turn;
        let decided = self.decided.get(&token).copied();
        let request = decided.map(|(request, _)| request);
        let asked = request.and_then(|request| self.asked.get(&request));
        let (lock_delay, at_least_for) = asked.copied().unwrap_or_default();
        let closing = self.applied.entry(lock).or_default();
        if closing.taken_over.take() != Some(client) {
            closing.is_over(lock, token, at)?;
        }
        let grant = Grant {
            request,
            not_before: decided.map_or(at, |(_, until)| until),
            lock_delay,
            reserves: if at_least_for > 0 {
                at + at_least_for
            } else {
                0
            },
        };
        closing.inherited = closing.reserved;
        closing.reserved = closing.reserved.max(grant.reserves);
        self.grants.insert(token, grant);
        Ok(())
    }

    fn ended(&mut self, turn: &LockChange, how: Ending) {
        let closing = self.applied.entry(turn.lock).or_default();
        let grant = self.grants.get(&turn.token).copied().unwrap_or_default();
        let from = match how {
            Ending::Superseded => {
                closing.taken_over = Some(turn.client);
                return;
            }
            Ending::Released => {
                // A request that its caller gave up reserves nothing.
                if grant
                    .request
                    .is_some_and(|request| self.abandoned.contains(&request))
                {
                    closing.reserved = closing.inherited;
                }
                return;
            }
            Ending::Expired => grant.not_before,
            Ending::Revoked => turn.at,
        };
        if grant.lock_delay > 0 {
            closing.delayed = from + grant.lock_delay;
        }
    }

    fn renewed(&mut self, token: u64, until: u64) {
        if let Some(grant) = self.grants.get_mut(&token) {
            grant.not_before = grant.not_before.max(until);
        }
    }

    fn recovered(&mut self, at: u64, live: &[(u8, u64, u8)]) {
        let applied = std::mem::take(&mut self.applied);
        for (lock, closing) in applied {
            let durable = self.durable.get(&lock).copied().unwrap_or_default();
            self.applied.insert(lock, closing.at_most(&durable));
        }
        self.live_again(at, live);
    }

    /// After a restore, the backup decides: its locks are closed as it says, and its grants reserve the time that they
    /// asked for.
    fn restored(&mut self, at: u64, live: &[(u8, u64, u8)], closed: &[(u8, u64)]) {
        self.applied.clear();
        for (lock, token, _) in live {
            let grant = self.grants.get(token).copied().unwrap_or_default();
            self.applied.entry(*lock).or_default().reserved = grant.reserves;
        }
        for (lock, until) in closed {
            self.applied.entry(*lock).or_default().delayed = *until;
        }
        self.live_again(at, live);
    }

    fn live_again(&mut self, at: u64, live: &[(u8, u64, u8)]) {
        for (_, token, _) in live {
            if let Some(grant) = self.grants.get_mut(token) {
                // It may have been renewed, and the renewal lost.
                grant.not_before = grant.not_before.min(at);
            }
        }
        self.durable = self.applied.clone();
    }
}

impl Closing {
    fn is_over(&self, lock: u8, token: u64, at: u64) -> Result<(), String> {
        let early = |until: u64| (until - at).div_ceil(1_000_000);
        if at < self.delayed {
            return Err(format!(
                "lock {lock} was granted with token {token}, {} ms before its lock-delay was over (D1, D2)",
                early(self.delayed)
            ));
        }
        if at < self.reserved {
            return Err(format!(
                "lock {lock} was granted with token {token}, {} ms before the at-least-for of another grant was over (D4)",
                early(self.reserved)
            ));
        }
        Ok(())
    }

    /// The bounds that hold in either state.
    fn at_most(&self, other: &Closing) -> Closing {
        Closing {
            delayed: self.delayed.min(other.delayed),
            reserved: self.reserved.min(other.reserved),
            inherited: self.inherited.min(other.inherited),
            taken_over: None,
        }
    }
}

impl Check for Delays {
    fn name(&self) -> &'static str {
        rule::DELAYS
    }

    fn see(&mut self, _: u64, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::AcquireTaken {
                request: Some(request),
                lock_delay,
                at_least_for,
                ..
            } => drop(self.asked.insert(*request, (*lock_delay, *at_least_for))),
            Fact::AbandonTaken { request } => drop(self.abandoned.insert(*request)),
            Fact::Decided {
                request,
                token: Some(token),
                at,
                left,
                ..
            } => drop(self.decided.insert(*token, (*request, at + left))),
            Fact::Renewed { token, at, ttl } => self.renewed(*token, at + ttl),
            Fact::Applied(turn) => match turn.what {
                ChangeKind::Granted(_) => return self.granted(turn),
                ChangeKind::Ended(how) => self.ended(turn, how),
            },
            Fact::Published(turn) => {
                let closing = self.applied.get(&turn.lock).copied().unwrap_or_default();
                self.durable.insert(turn.lock, closing);
            }
            Fact::Recovered {
                at,
                restored: false,
                live,
                ..
            } => self.recovered(*at, live),
            Fact::Recovered {
                at, live, closed, ..
            } => self.restored(*at, live, closed),
            _ => {}
        }
        Ok(())
    }
}
