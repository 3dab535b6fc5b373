//! No resurrection (F5, F7): a write takes effect once, so a late duplicate restores nothing old; and clients that read
//! elements before a restore do not write them back.

use std::collections::{BTreeMap, BTreeSet};

use super::rule::{self, Check};
use crate::sim::fact::Fact;

/// See the module.
#[derive(Default)]
pub(crate) struct Resurrection {
    /// Writes that took effect: resource, token, number.
    writes: BTreeSet<(u8, u64, u64)>,
    sets: BTreeMap<u8, Set>,
}

#[derive(Default)]
struct Set {
    stored: u128,
    /// Elements that a restore removed.
    gone: u128,
}

impl Resurrection {
    fn stored(
        &mut self,
        resource: u8,
        token: u64,
        sequence: u64,
        value: u128,
    ) -> Result<(), String> {
        if !self.writes.insert((resource, token, sequence)) {
            return Err(format!(
                "write {sequence} of token {token} took effect twice at resource {resource}"
            ));
        }
        let set = self.sets.entry(resource).or_default();
        set.stored |= value;
        let back = value & set.gone;
        if back == 0 {
            return Ok(());
        }
        Err(format!(
            "a restore removed element {} of resource {resource}, but write {sequence} of token {token} brings it back",
            back.trailing_zeros()
        ))
    }
}

impl Check for Resurrection {
    fn name(&self) -> &'static str {
        rule::RESURRECTION
    }

    fn see(&mut self, _: u64, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Stored {
                resource,
                token,
                sequence,
                value,
            } => self.stored(*resource, *token, *sequence, *value),
            Fact::ResourceRecovered {
                resource,
                value,
                restored: true,
                ..
            } => {
                let set = self.sets.entry(*resource).or_default();
                set.gone |= set.stored & !value;
                Ok(())
            }
            _ => Ok(()),
        }
    }
}
