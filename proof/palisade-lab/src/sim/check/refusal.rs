//! The newest holder is never rejected because of an older grant (A2, A4, A5, F6, F10), nor because of a grant of another
//! lock or another slot (P3). An operator's floor after a lost fence is not a grant; it may reject earlier holders.

use palisade_core::Code;
use std::collections::{BTreeMap, BTreeSet};

use super::rule::{self, Check};
use super::token_locks::TokenLocks;
use crate::sim::fact::{ChangeKind, Fact};
use crate::sim::locks::Locks;
use crate::sim::plan::Plan;
use crate::sim::target::Target;

/// See the module.
pub(crate) struct Refusal {
    /// The target of each resource.
    targets: Vec<Target>,
    /// The grant of each token.
    places: BTreeMap<u64, Place>,
    grants: u64,
    granted: TokenLocks,
    /// Every floor at which an operator armed a resource: a crash may bring an earlier one back.
    floors: BTreeSet<(u8, u64)>,
}

/// A grant, a set of grants, or a phase.
#[derive(Clone, Copy)]
struct Place {
    /// Its position in the order of the grants.
    position: u64,
    locks: Locks,
    slots: u64,
}

impl Refusal {
    pub(crate) fn new(plan: &Plan) -> Refusal {
        Refusal {
            targets: plan.targets(),
            places: BTreeMap::new(),
            grants: 0,
            granted: TokenLocks::default(),
            floors: BTreeSet::new(),
        }
    }

    fn stale(&self, resource: u8, token: u64, highest: Option<u64>) -> Result<(), String> {
        let place = |token: u64| self.places.get(&token);
        let is_floor = highest.is_some_and(|highest| self.floors.contains(&(resource, highest)));
        let by = highest.and_then(place);
        let position = |place: &Place| place.position;
        if !is_floor && by.map(position) <= place(token).map(position) {
            return Err(format!(
                "resource {resource} rejected token {token} because of token {highest:?}, which is an older grant"
            ));
        }
        let target = self.targets[usize::from(resource)];
        if !is_floor && by.is_some_and(|by| !by.is_of(target)) {
            return Err(format!(
                "resource {resource} rejected token {token} because of token {highest:?}, which is no grant of {target:?} (P3)"
            ));
        }
        Ok(())
    }
}

impl Place {
    fn is_of(&self, target: Target) -> bool {
        let slot = target.slot.map_or(0, |slot| 1 << (slot - 1));
        self.locks.has(target.lock) && self.slots & slot == slot
    }
}

impl Check for Refusal {
    fn name(&self) -> &'static str {
        rule::REFUSAL
    }

    fn see(&mut self, _: u64, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Applied(turn) if matches!(turn.what, ChangeKind::Granted(_)) => {
                self.grants += 1;
                // A fence sees the token of the phase; that of a phase that goes on keeps its place.
                let place = Place {
                    position: self.grants,
                    locks: Locks::one(turn.lock),
                    slots: turn.slots,
                };
                let in_set = self.granted.granted(turn);
                match turn.phase {
                    None if in_set => {
                        let set = self.places.entry(turn.token).or_insert(place);
                        set.locks = set.locks.with(turn.lock);
                    }
                    None => drop(self.places.insert(turn.token, place)),
                    Some(phase) if phase == turn.token => drop(self.places.insert(phase, place)),
                    Some(phase) => drop(self.places.entry(phase).or_insert(place)),
                }
            }
            Fact::Recovered { .. } => self.granted.restarted(),
            Fact::Rearmed { resource, floor } => drop(self.floors.insert((*resource, *floor))),
            Fact::Rejected {
                resource,
                token,
                highest,
                code,
                ..
            } => match *code {
                Code::Stale => return self.stale(*resource, *token, *highest),
                // A late duplicate of the holder's own write.
                Code::SequenceStale => {}
                code => {
                    return Err(format!(
                        "resource {resource} rejected token {token}: {code}"
                    ));
                }
            },
            _ => {}
        }
        Ok(())
    }
}
