//! Durability of acknowledged grants (A3, A4, A6): after every restart each grant that was acknowledged and not ended
//! is held, and the counter is above every issued token. A copied directory is never opened (A5).

use std::collections::BTreeSet;

use super::rule::{self, Check};
use super::token_locks::TokenLocks;
use crate::sim::fact::{ChangeKind, Fact};

/// See the module.
#[derive(Default)]
pub(crate) struct Durability {
    highest: u64,
    /// Grants that were acknowledged and not ended, not even by an entry that may be lost.
    owed: BTreeSet<(u8, u64)>,
    ended: BTreeSet<(u8, u64)>,
    locks: TokenLocks,
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
            // A backup does not contain later grants; a restore only has to raise the counter above their tokens.
            self.owed.clear();
        }
        let held: BTreeSet<(u8, u64)> = live
            .iter()
            .map(|(lock, token, _)| (*lock, *token))
            .collect();
        match self.owed.iter().find(|grant| !held.contains(grant)) {
            Some((lock, token)) => Err(format!(
                "token {token} of lock {lock} was acknowledged but is not held after the restart"
            )),
            None => Ok(()),
        }
    }
}

impl Check for Durability {
    fn name(&self) -> &'static str {
        rule::DURABILITY
    }

    fn see(&mut self, _: u64, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Acknowledged { token, .. } => {
                self.highest = self.highest.max(*token);
                let grants = self.locks.of(*token).iter().map(|lock| (lock, *token));
                self.owed
                    .extend(grants.filter(|grant| !self.ended.contains(grant)));
            }
            Fact::Applied(turn) => match turn.what {
                ChangeKind::Granted(_) => {
                    self.ended.remove(&(turn.lock, turn.token));
                    self.locks.granted(turn);
                }
                ChangeKind::Ended(_) => {
                    self.owed.remove(&(turn.lock, turn.token));
                    self.ended.insert((turn.lock, turn.token));
                }
            },
            Fact::Recovered {
                restored,
                next,
                live,
                ..
            } => {
                self.locks.restarted();
                return self.recovered(*restored, *next, live);
            }
            Fact::CopyOpened => return Err("a copied directory was opened (A5)".into()),
            _ => {}
        }
        Ok(())
    }
}
