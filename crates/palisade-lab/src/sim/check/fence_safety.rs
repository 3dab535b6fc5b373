//! Fence safety: no acknowledged update is lost, nothing old comes back, and the newest holder is never
//! refused because of an older grant. Whatever the clocks and the authority do.

use std::collections::{BTreeMap, BTreeSet};

use super::Check;
use crate::sim::fact::{Fact, What};

/// See the module.
#[derive(Default)]
pub(crate) struct FenceSafety {
    resources: BTreeMap<u8, Resource>,
    /// The place of each token in the order of the grants.
    order: BTreeMap<u64, u64>,
    grants: u64,
}

#[derive(Default)]
struct Resource {
    value: u128,
    acknowledged: u128,
    /// Writes that took effect.
    writes: BTreeSet<(u64, u64)>,
    floor: Option<u64>,
}

impl FenceSafety {
    fn stored(&mut self, lock: u8, token: u64, sequence: u64, value: u128) -> Result<(), String> {
        let resource = self.resources.entry(lock).or_default();
        if !resource.writes.insert((token, sequence)) {
            return Err(format!("write {sequence} of token {token} took effect twice at resource {lock}"));
        }
        resource.value = value;
        resource.check(lock, &format!("write {sequence} of token {token}"))
    }

    fn rejected(&self, lock: u8, token: u64, highest: Option<u64>) -> Result<(), String> {
        let floor = self.resources.get(&lock).and_then(|resource| resource.floor);
        if highest.is_none() || highest == floor {
            return Ok(());
        }
        let place = |token: u64| self.order.get(&token);
        let newer = highest.and_then(place) > place(token);
        if newer {
            return Ok(());
        }
        Err(format!(
            "resource {lock} refused token {token} because of token {highest:?}, which is the older grant"
        ))
    }
}

impl Resource {
    fn check(&self, lock: u8, what: &str) -> Result<(), String> {
        let lost = self.acknowledged & !self.value;
        if lost == 0 {
            return Ok(());
        }
        Err(format!(
            "acknowledged element {} of resource {lock} is gone after {what}",
            lost.trailing_zeros()
        ))
    }
}

impl Check for FenceSafety {
    fn name(&self) -> &'static str {
        "fence safety"
    }

    fn see(&mut self, _: u64, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Applied(turn) if matches!(turn.what, What::Granted(_)) => {
                self.grants += 1;
                self.order.insert(turn.token, self.grants);
            }
            Fact::Stored {
                lock,
                token,
                sequence,
                value,
            } => return self.stored(*lock, *token, *sequence, *value),
            Fact::Added {
                lock,
                element: Some(element),
                ..
            } => {
                let resource = self.resources.entry(*lock).or_default();
                resource.acknowledged |= 1 << element;
                return resource.check(*lock, "its own acknowledgement");
            }
            Fact::ResourceRecovered { lock, value, .. } => {
                let resource = self.resources.entry(*lock).or_default();
                resource.value = *value;
                return resource.check(*lock, "the restart");
            }
            Fact::Rearmed { lock, floor } => {
                self.resources.entry(*lock).or_default().floor = Some(*floor);
            }
            Fact::Rejected {
                lock,
                token,
                highest,
                code: "stale",
                ..
            } => return self.rejected(*lock, *token, *highest),
            // A late duplicate of the holder's own write.
            Fact::Rejected {
                code: "sequence_stale",
                ..
            } => {}
            Fact::Rejected {
                lock, token, code, ..
            } => {
                return Err(format!("resource {lock} refused token {token}: {code}"));
            }
            _ => {}
        }
        Ok(())
    }
}
