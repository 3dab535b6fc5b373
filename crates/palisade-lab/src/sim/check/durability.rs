//! Durability of acknowledged grants (A3, A4, A6): after every restart each grant that was acknowledged and not ended
//! is held, and the counter is above every issued token. A copied directory is never opened (A5).

use std::collections::{BTreeMap, BTreeSet};

use super::Check;
use crate::sim::fact::{ChangeKind, Fact};

/// See the module.
#[derive(Default)]
pub(crate) struct Durability {
    highest: u64,
    /// Grants that were acknowledged and not ended, not even by an entry that may be lost.
    owed: BTreeSet<u64>,
    ended: BTreeSet<u64>,
    lock_of: BTreeMap<u64, u8>,
}

impl Durability {
    fn recovered(
        &mut self,
        restored: bool,
        next: u64,
        live: &[(u8, u64, u8)],
    ) -> Result<(), String> {
        if next <= self.highest {
            return Err(format!(
                "the next token is {next}, but token {} was acknowledged (A4)",
                self.highest
            ));
        }
        if restored {
            // A backup does not contain later grants; it only has to leap over their tokens.
            self.owed.clear();
        }
        let held: BTreeSet<u64> = live.iter().map(|(_, token, _)| *token).collect();
        match self.owed.iter().find(|token| !held.contains(token)) {
            Some(token) => Err(format!(
                "token {token} of lock {:?} was acknowledged but is not held after the restart",
                self.lock_of.get(token)
            )),
            None => Ok(()),
        }
    }
}

impl Check for Durability {
    fn name(&self) -> &'static str {
        super::DURABILITY
    }

    fn see(&mut self, _: u64, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Acknowledged { token, .. } => {
                self.highest = self.highest.max(*token);
                if !self.ended.contains(token) {
                    self.owed.insert(*token);
                }
            }
            Fact::Applied(turn) => match turn.what {
                ChangeKind::Granted(_) => {
                    self.ended.remove(&turn.token);
                    self.lock_of.insert(turn.token, turn.lock);
                }
                ChangeKind::Ended(_) => {
                    self.owed.remove(&turn.token);
                    self.ended.insert(turn.token);
                }
            },
            Fact::Recovered {
                restored,
                next,
                live,
                ..
            } => return self.recovered(*restored, *next, live),
            Fact::CopyOpened => return Err("a copied directory was opened (A5)".into()),
            _ => {}
        }
        Ok(())
    }
}
