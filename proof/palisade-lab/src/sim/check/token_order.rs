//! Token order (A2, A4, A5): in the order of the grants tokens only grow, across all restarts and restores. The locks of
//! a set have one.

use super::rule::{self, Check};
use super::token_locks::TokenLocks;
use crate::sim::fact::{ChangeKind, Fact};

/// See the module.
#[derive(Default)]
pub(crate) struct TokenOrder {
    /// The highest token of a durable grant.
    highest: u64,
    locks: TokenLocks,
}

impl Check for TokenOrder {
    fn name(&self) -> &'static str {
        rule::TOKEN_ORDER
    }

    fn see(&mut self, _: u64, fact: &Fact) -> Result<(), String> {
        let turn = match fact {
            Fact::Published(turn) => turn,
            Fact::Recovered { .. } => {
                self.locks.restarted();
                return Ok(());
            }
            _ => return Ok(()),
        };
        let ChangeKind::Granted(_) = turn.what else {
            return Ok(());
        };
        let in_set = self.locks.granted(turn);
        if turn.token < self.highest || turn.token == self.highest && !in_set {
            return Err(format!(
                "lock {} was granted with token {} after token {} was issued",
                turn.lock, turn.token, self.highest
            ));
        }
        self.highest = turn.token;
        Ok(())
    }
}
