//! No early expiry (A7, A8): by the authority's own clock no lease ends before the time promised with its grant, nor
//! before its full time from its last renewal and from every absence of the authority, but for what would be more than
//! twice its time since the last renewal that was acknowledged, absences not counted. A renewal is for all locks of a set
//! (M3).

use std::collections::BTreeMap;

use palisade_core::{Ending, limits};

use super::rule::{self, Check};
use super::token_locks::TokenLocks;
use crate::sim::fact::{ChangeKind, Fact};

/// See the module.
#[derive(Default)]
pub(crate) struct EarlyExpiry {
    /// By lock and token.
    leases: BTreeMap<(u8, u64), Lease>,
    locks: TokenLocks,
    /// Until when each grant was promised to its holder.
    promised: BTreeMap<u64, u64>,
    /// Twice the time of each grant since its last renewal, as applied, and since the last one that was acknowledged: how
    /// far absences extend it.
    applied: BTreeMap<u64, u64>,
    limits: BTreeMap<u64, u64>,
}

struct Lease {
    ttl: u64,
    not_before: u64,
}

impl EarlyExpiry {
    /// The authority was away until `at` for so long, which matters to leases that do not bear it.
    fn absent(&mut self, at: u64, away: u64) {
        for limit in self.applied.values_mut().chain(self.limits.values_mut()) {
            *limit += away;
        }
        let stall = limits::STALL.as_nanos();
        for ((_, token), lease) in &mut self.leases {
            if away >= stall || away > lease.ttl / 4 {
                let limit = self.limits.get(token).copied().unwrap_or(0);
                lease.not_before = lease.not_before.max(limit.min(at + lease.ttl));
            }
        }
    }

    fn extend(&mut self, token: u64, at: u64, ttl: u64) {
        let locks = self.locks.of(token);
        let is_known = |lock: &u8| self.leases.contains_key(&(*lock, token));
        let known: Vec<u8> = locks.iter().filter(is_known).collect();
        let extended = match known.is_empty() {
            // The end of its grants was applied, and then lost in a crash.
            true => locks.iter().collect(),
            false => known,
        };
        for lock in extended {
            let lease = self.leases.entry((lock, token));
            let lease = lease.or_insert(Lease { ttl, not_before: 0 });
            lease.ttl = ttl;
            lease.not_before = lease.not_before.max(at + ttl);
        }
    }
}

impl Check for EarlyExpiry {
    fn name(&self) -> &'static str {
        rule::EARLY_EXPIRY
    }

    fn see(&mut self, _: u64, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Decided {
                token: Some(token),
                at,
                left,
                ..
            } => drop(self.promised.insert(*token, at + left)),
            Fact::Applied(turn) => match turn.what {
                ChangeKind::Granted(ttl) => {
                    self.locks.granted(turn);
                    let promised = self.promised.get(&turn.token).copied();
                    let not_before = promised.unwrap_or(turn.at + ttl);
                    self.applied.insert(turn.token, turn.at + 2 * ttl);
                    let grant = (turn.lock, turn.token);
                    self.leases.insert(grant, Lease { ttl, not_before });
                }
                ChangeKind::Ended(how) => {
                    let lease = self.leases.remove(&(turn.lock, turn.token));
                    if let (Ending::Expired, Some(lease)) = (how, lease)
                        && turn.at < lease.not_before
                    {
                        return Err(format!(
                            "token {} expired {} ms early",
                            turn.token,
                            (lease.not_before - turn.at).div_ceil(1_000_000)
                        ));
                    }
                }
            },
            Fact::Renewed { token, at, ttl } => {
                self.applied.insert(*token, at + 2 * ttl);
                self.extend(*token, *at, *ttl);
            }
            Fact::Acknowledged { token, .. } => {
                // Its batch is durable, and with it everything applied.
                let limit = self.applied.get(token).map(|limit| (*token, *limit));
                self.limits.extend(limit);
            }
            Fact::Recovered {
                at,
                down,
                live,
                restored,
                ..
            } => {
                self.locks.restarted();
                if *restored {
                    // The backup's clock stands where it stood then.
                    self.limits.clear();
                }
                let mut before = std::mem::take(&mut self.leases);
                for (lock, token, _) in live {
                    // A lease whose end was applied and then lost in the crash is back; its time is no longer known
                    // here.
                    if let Some(lease) = before.remove(&(*lock, *token)) {
                        let limit = self.limits.get(token).map_or(0, |limit| limit + down);
                        let not_before = limit.min(at + lease.ttl);
                        self.leases.insert(
                            (*lock, *token),
                            Lease {
                                ttl: lease.ttl,
                                not_before,
                            },
                        );
                    }
                }
                let limits = self.applied.values_mut().chain(self.limits.values_mut());
                limits.for_each(|limit| *limit += down);
            }
            Fact::Stalled { at, away } => self.absent(*at, *away),
            _ => {}
        }
        Ok(())
    }
}
