//! No resurrection (F5): a write takes effect once; a late duplicate brings nothing old back.

use std::collections::BTreeSet;

use super::Check;
use crate::sim::fact::Fact;

/// See the module.
#[derive(Default)]
pub(crate) struct Resurrection {
    /// Writes that took effect: resource, token, number.
    writes: BTreeSet<(u8, u64, u64)>,
}

impl Check for Resurrection {
    fn name(&self) -> &'static str {
        super::RESURRECTION
    }

    fn see(&mut self, _: u64, fact: &Fact) -> Result<(), String> {
        let Fact::Stored {
            lock,
            token,
            sequence,
            ..
        } = fact
        else {
            return Ok(());
        };
        if self.writes.insert((*lock, *token, *sequence)) {
            return Ok(());
        }
        Err(format!(
            "write {sequence} of token {token} took effect twice at resource {lock}"
        ))
    }
}
