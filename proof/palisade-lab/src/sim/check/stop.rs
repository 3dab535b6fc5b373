//! A planned stop grants nothing to the requests whose waits it ends (R22): they learn that the authority
//! stops.

use super::rule::{self, Check};
use crate::sim::fact::{ChangeKind, Fact, LockChange};

/// See the module.
#[derive(Default)]
pub(crate) struct Stop {
    stopping: bool,
}

impl Check for Stop {
    fn name(&self) -> &'static str {
        rule::STOP
    }

    fn see(&mut self, _: u64, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Stopping { begins } => self.stopping = *begins,
            Fact::Applied(LockChange {
                lock,
                token,
                what: ChangeKind::Granted(_),
                ..
            }) if self.stopping => {
                return Err(format!(
                    "lock {lock} was granted with token {token} to a request whose wait a stop was ending"
                ));
            }
            _ => {}
        }
        Ok(())
    }
}
