//! Token order (A2, A4, A5): in the order of the grants tokens only grow, across all restarts and restores.

use super::Check;
use crate::sim::fact::{ChangeKind, Fact};

/// See the module.
#[derive(Default)]
pub(crate) struct TokenOrder {
    /// The highest token of a durable grant.
    highest: u64,
}

impl Check for TokenOrder {
    fn name(&self) -> &'static str {
        super::TOKEN_ORDER
    }

    fn see(&mut self, _: u64, fact: &Fact) -> Result<(), String> {
        let Fact::Published(turn) = fact else {
            return Ok(());
        };
        let ChangeKind::Granted(_) = turn.what else {
            return Ok(());
        };
        if turn.token <= self.highest {
            return Err(format!(
                "lock {} was granted with token {} after token {} was issued",
                turn.lock, turn.token, self.highest
            ));
        }
        self.highest = turn.token;
        Ok(())
    }
}
