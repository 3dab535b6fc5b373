//! No early expiry (A7, A8): by the authority's own clock no lease ends before the time promised with its first grant, nor
//! before its full time from its last renewal and from every absence of the authority, but for what would be more than
//! twice its time since the last renewal that was acknowledged, absences not counted. All grants of a lease have one time:
//! one that comes under an existing lease renews nothing, and a renewal names one of them and is for all.

use std::collections::BTreeMap;

use palisade_core::{Ending, limits};

use super::rule::{self, Check};
use crate::sim::fact::{ChangeKind, Fact, LockChange};

/// See the module.
#[derive(Default)]
pub(crate) struct EarlyExpiry {
    leases: BTreeMap<u64, Lease>,
    /// The lease of each grant.
    lease_of: BTreeMap<u64, u64>,
    /// Until when each grant was promised to its holder.
    promised: BTreeMap<u64, u64>,
}

#[derive(Default)]
struct Lease {
    ttl: u64,
    not_before: u64,
    /// Twice its time since its last renewal, as applied, and since the last one that was acknowledged: how far absences
    /// extend it. 0 if that renewal is not known here, which is never too much.
    applied: u64,
    limit: u64,
    /// The absences that `limit` does not contain: a crash may undo their entries, and the clock then shows what it did
    /// before them, or counts them again.
    not_durable: u64,
}

impl Lease {
    fn renewed(&mut self, at: u64, ttl: u64) {
        (self.ttl, self.applied) = (ttl, at + 2 * ttl);
        self.not_before = self.not_before.max(at + ttl);
    }

    /// The authority was away until `at`.
    fn extended(&mut self, at: u64, away: u64) {
        self.applied += away;
        self.not_durable += away;
        let limit = self.limit + self.not_durable;
        self.not_before = self.not_before.max(limit.min(at + self.ttl));
    }
}

impl EarlyExpiry {
    fn granted(&mut self, turn: &LockChange, ttl: u64) {
        self.lease_of.insert(turn.token, turn.lease);
        let promised = self.promised.get(&turn.token).copied();
        if turn.token == turn.lease {
            // Its first grant. A crash may have undone another lease of this number.
            let new = Lease {
                ttl,
                not_before: promised.unwrap_or(turn.at + ttl),
                applied: turn.at + 2 * ttl,
                ..Lease::default()
            };
            self.leases.insert(turn.lease, new);
        } else {
            let lease = self.leases.entry(turn.lease).or_default();
            lease.ttl = ttl;
            lease.not_before = lease.not_before.max(promised.unwrap_or(0));
        }
    }

    fn of(&mut self, token: u64) -> Option<&mut Lease> {
        self.leases.get_mut(self.lease_of.get(&token)?)
    }

    /// Everything that was applied is durable.
    fn durable(&mut self) {
        for lease in self.leases.values_mut() {
            lease.limit += std::mem::take(&mut lease.not_durable);
        }
    }

    /// The authority was away until `at` for so long, which matters to leases that do not bear it.
    fn absent(&mut self, at: u64, away: u64) {
        let stall = limits::STALL.as_nanos();
        for lease in self.leases.values_mut() {
            if away >= stall || away > lease.ttl / 4 {
                lease.extended(at, away);
            }
        }
    }

    /// The authority started from its durable state.
    fn recovered(&mut self, at: u64, down: u64, restored: bool, live: &[(u8, u64, u8)]) {
        let leases = live
            .iter()
            .filter_map(|(_, token, _)| self.lease_of.get(token));
        let mut before = std::mem::take(&mut self.leases);
        // A lease whose end was applied and then lost in the crash is back; its time is no longer known here.
        let back = leases.filter_map(|lease| Some((*lease, before.remove(lease)?)));
        self.leases = back.collect();
        for lease in self.leases.values_mut() {
            // A backup's clock stands where it stood then.
            let limit = if restored { 0 } else { lease.limit };
            // A renewal that was not acknowledged may be lost, and an absence too.
            *lease = Lease {
                ttl: lease.ttl,
                applied: limit,
                limit,
                ..Lease::default()
            };
            lease.extended(at, down);
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
                ChangeKind::Granted(ttl) => self.granted(turn, ttl),
                // With the first of its grants the lease is over, and the others are not extended.
                ChangeKind::Ended(Ending::Expired) => {
                    if let Some(lease) = self.leases.remove(&turn.lease)
                        && turn.at < lease.not_before
                    {
                        return Err(format!(
                            "token {} expired {} ms early",
                            turn.token,
                            (lease.not_before - turn.at).div_ceil(1_000_000)
                        ));
                    }
                }
                ChangeKind::Ended(_) => {}
            },
            Fact::Renewed { token, at, ttl } => {
                if let Some(lease) = self.lease_of.get(token) {
                    // It may be new here: its end was applied, and then lost in a crash.
                    self.leases.entry(*lease).or_default().renewed(*at, *ttl);
                }
            }
            Fact::Acknowledged { token, .. } => {
                self.durable();
                if let Some(lease) = self.of(*token) {
                    lease.limit = lease.applied;
                }
            }
            Fact::Published(_) => self.durable(),
            Fact::Recovered {
                at,
                down,
                live,
                restored,
                ..
            } => self.recovered(*at, *down, *restored, live),
            Fact::Stalled { at, away } => self.absent(*at, *away),
            _ => {}
        }
        Ok(())
    }
}
