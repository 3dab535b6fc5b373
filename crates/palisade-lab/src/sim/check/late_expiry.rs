//! No lease without end (A7): a lease that expires does so within twice its time since its last renewal, not counting the
//! absences of the authority, whatever they were and however many.

use std::collections::BTreeMap;

use palisade_core::Ending;

use super::rule::{self, Check};
use super::token_locks::TokenLocks;
use crate::sim::fact::{ChangeKind, Fact};

/// A pause that is too short to matter to any lease, and the time that a round takes.
const SLACK: u64 = 700_000_000;

/// See the module.
#[derive(Default)]
pub(crate) struct LateExpiry {
    /// When each lease is over at the latest, by lock and token.
    leases: BTreeMap<(u8, u64), u64>,
    locks: TokenLocks,
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
                    self.locks.granted(turn);
                    self.leases
                        .insert((turn.lock, turn.token), turn.at + 2 * ttl);
                }
                ChangeKind::Ended(how) => {
                    let latest = self.leases.remove(&(turn.lock, turn.token));
                    if let (Ending::Expired, Some(latest)) = (how, latest)
                        && turn.at > latest + SLACK
                    {
                        return Err(format!(
                            "token {} expired {} ms after twice its time",
                            turn.token,
                            (turn.at - latest) / 1_000_000
                        ));
                    }
                }
            },
            Fact::Renewed { token, at, ttl } => {
                for lock in self.locks.of(*token).iter() {
                    if let Some(latest) = self.leases.get_mut(&(lock, *token)) {
                        *latest = (*latest).max(at + 2 * ttl);
                    }
                }
            }
            // The end of a grant that was applied and then lost in a crash: when it was renewed is no longer known here.
            Fact::Recovered { down, .. } => {
                self.locks.restarted();
                self.later(*down);
            }
            Fact::Stalled { away, .. } => self.later(*away),
            Fact::Busy { span } => self.later(*span),
            _ => {}
        }
        Ok(())
    }
}
