//! No early expiry (A7, A8): by the authority's own clock no lease ends before the time promised with its grant, nor
//! before its full time from its last renewal and from every absence of the authority.

use std::collections::BTreeMap;

use palisade_core::Ending;

use super::Check;
use crate::sim::fact::{ChangeKind, Fact};

/// See the module.
#[derive(Default)]
pub(crate) struct EarlyExpiry {
    leases: BTreeMap<u64, Lease>,
    /// Until when each grant was promised to its holder.
    promised: BTreeMap<u64, u64>,
}

struct Lease {
    ttl: u64,
    not_before: u64,
}

impl EarlyExpiry {
    fn extend(&mut self, token: u64, at: u64, ttl: u64) {
        let lease = self
            .leases
            .entry(token)
            .or_insert(Lease { ttl, not_before: 0 });
        lease.ttl = ttl;
        lease.not_before = lease.not_before.max(at + ttl);
    }
}

impl Check for EarlyExpiry {
    fn name(&self) -> &'static str {
        super::EARLY_EXPIRY
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
                    let promised = self.promised.remove(&turn.token);
                    let not_before = promised.unwrap_or(turn.at + ttl);
                    self.leases.insert(turn.token, Lease { ttl, not_before });
                }
                ChangeKind::Ended(how) => {
                    let lease = self.leases.remove(&turn.token);
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
            Fact::Renewed { token, at, ttl } => self.extend(*token, *at, *ttl),
            Fact::Recovered { at, live, .. } => {
                let mut before = std::mem::take(&mut self.leases);
                for (_, token, _) in live {
                    // A lease whose end was applied and then lost in the crash is back; its time is no longer known
                    // here.
                    if let Some(lease) = before.remove(token) {
                        let not_before = at + lease.ttl;
                        self.leases.insert(
                            *token,
                            Lease {
                                ttl: lease.ttl,
                                not_before,
                            },
                        );
                    }
                }
            }
            Fact::Stalled { at, pause } => {
                let matters = |lease: &&mut Lease| pause.is_none_or(|pause| pause > lease.ttl / 4);
                for lease in self.leases.values_mut().filter(matters) {
                    lease.not_before = lease.not_before.max(at + lease.ttl);
                }
            }
            _ => {}
        }
        Ok(())
    }
}
