//! No lease without end (A7): a lease that expires does so within twice its time since its last renewal, not counting the
//! absences of the authority, whatever they were and however many. A renewal names one grant of a lease and is for all.

use std::collections::BTreeMap;

use palisade_core::Ending;

use super::rule::{self, Check};
use crate::sim::fact::{ChangeKind, Fact};

/// A pause that is too short to matter to any lease, and the time that a round takes.
const SLACK: u64 = 700_000_000;

/// See the module.
#[derive(Default)]
pub(crate) struct LateExpiry {
    /// When each lease is over at the latest. Of renewals that a crash may have undone the last one counts.
    leases: BTreeMap<u64, u64>,
    /// The lease of each grant.
    lease_of: BTreeMap<u64, u64>,
}

impl LateExpiry {
    /// For so long the authority noticed nothing, or was away.
    fn later(&mut self, by: u64) {
        for latest in self.leases.values_mut() {
            *latest += by;
        }
    }
}

impl Check for LateExpiry {
    fn name(&self) -> &'static str {
        rule::LATE_EXPIRY
    }

    fn see(&mut self, _: u64, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Applied(turn) => match turn.what {
                ChangeKind::Granted(ttl) => {
                    self.lease_of.insert(turn.token, turn.lease);
                    // Only with its first grant a lease begins. A crash may have undone another one of this number.
                    if turn.token == turn.lease {
                        self.leases.insert(turn.lease, turn.at + 2 * ttl);
                    }
                }
                ChangeKind::Ended(Ending::Expired) => {
                    if let Some(latest) = self.leases.get(&turn.lease)
                        && turn.at > latest + SLACK
                    {
                        return Err(format!(
                            "token {} expired {} ms after twice its time",
                            turn.token,
                            (turn.at - latest) / 1_000_000
                        ));
                    }
                }
                ChangeKind::Ended(_) => {}
            },
            Fact::Renewed { token, at, ttl } => {
                if let Some(lease) = self.lease_of.get(token) {
                    let latest = self.leases.entry(*lease).or_default();
                    *latest = (*latest).max(at + 2 * ttl);
                }
            }
            Fact::Recovered { down, .. } => self.later(*down),
            Fact::Stalled { away, .. } => self.later(*away),
            Fact::Busy { span } => self.later(*span),
            _ => {}
        }
        Ok(())
    }
}
