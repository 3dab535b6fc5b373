//! No lost update (F1, F2, F4, F5, F7): an element with an acknowledged addition stays in its set, whatever cresources,
//! holders and the authority do.

use std::collections::BTreeMap;

use super::rule::{self, Check};
use crate::sim::fact::Fact;

/// See the module.
#[derive(Default)]
pub(crate) struct LostUpdate {
    sets: BTreeMap<u8, Set>,
}

#[derive(Default)]
struct Set {
    value: u128,
    acknowledged: u128,
    /// Elements that a restored backup lacks: their acknowledgements may still be in flight.
    before_restore: u128,
    /// All elements ever stored.
    stored: u128,
}

impl LostUpdate {
    fn is_now(&mut self, resource: u8, value: u128, what: &str) -> Result<(), String> {
        let set = self.sets.entry(resource).or_default();
        set.value = value;
        set.stored |= value;
        set.check(resource, what)
    }
}

impl Set {
    fn check(&self, resource: u8, what: &str) -> Result<(), String> {
        let lost = self.acknowledged & !self.value;
        if lost == 0 {
            return Ok(());
        }
        Err(format!(
            "acknowledged element {} of resource {resource} is gone after {what}",
            lost.trailing_zeros()
        ))
    }
}

impl Check for LostUpdate {
    fn name(&self) -> &'static str {
        rule::LOST_UPDATE
    }

    fn see(&mut self, _: u64, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Stored {
                resource,
                token,
                sequence,
                value,
            } => self.is_now(
                *resource,
                *value,
                &format!("write {sequence} of token {token}"),
            ),
            Fact::Added {
                resource,
                element: Some(element),
                ..
            } => {
                let set = self.sets.entry(*resource).or_default();
                if set.before_restore & 1 << element == 0 {
                    set.acknowledged |= 1 << element;
                }
                set.check(*resource, "its own acknowledgement")
            }
            Fact::ResourceRecovered {
                resource,
                value,
                restored,
                ..
            } => {
                if *restored {
                    // A backup lacks the later elements.
                    let set = self.sets.entry(*resource).or_default();
                    set.acknowledged &= value;
                    set.before_restore |= set.stored & !value;
                }
                self.is_now(*resource, *value, "the restart")
            }
            _ => Ok(()),
        }
    }
}
