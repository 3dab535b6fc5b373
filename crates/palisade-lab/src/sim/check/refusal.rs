//! The newest holder is never rejected because of an older grant (A2, A4, A5, F6, F10). An operator's floor after a
//! lost fence is not a grant; it may reject earlier holders.

use palisade_core::Code;
use std::collections::{BTreeMap, BTreeSet};

use super::Check;
use crate::sim::fact::{ChangeKind, Fact};

/// See the module.
#[derive(Default)]
pub(crate) struct Refusal {
    /// The position of each token in the order of the grants.
    places: BTreeMap<u64, u64>,
    grants: u64,
    /// Every floor at which an operator armed a resource: a crash may bring an earlier one back.
    floors: BTreeSet<(u8, u64)>,
}

impl Refusal {
    fn stale(&self, lock: u8, token: u64, highest: Option<u64>) -> Result<(), String> {
        let place = |token: u64| self.places.get(&token);
        let is_floor = highest.is_some_and(|highest| self.floors.contains(&(lock, highest)));
        if is_floor || highest.and_then(place) > place(token) {
            return Ok(());
        }
        Err(format!(
            "resource {lock} rejected token {token} because of token {highest:?}, which is an older grant"
        ))
    }
}

impl Check for Refusal {
    fn name(&self) -> &'static str {
        super::REFUSAL
    }

    fn see(&mut self, _: u64, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Applied(turn) if matches!(turn.what, ChangeKind::Granted(_)) => {
                self.grants += 1;
                // A fence sees the token of the phase; that of a phase that goes on keeps its place.
                let place = self.grants;
                match turn.phase {
                    None => drop(self.places.insert(turn.token, place)),
                    Some(phase) if phase == turn.token => drop(self.places.insert(phase, place)),
                    Some(phase) => drop(self.places.entry(phase).or_insert(place)),
                }
            }
            Fact::Rearmed { lock, floor } => drop(self.floors.insert((*lock, *floor))),
            Fact::Rejected {
                lock,
                token,
                highest,
                code,
                ..
            } => match *code {
                Code::Stale => return self.stale(*lock, *token, *highest),
                // A late duplicate of the holder's own write.
                Code::SequenceStale => {}
                code => return Err(format!("resource {lock} rejected token {token}: {code}")),
            },
            _ => {}
        }
        Ok(())
    }
}
