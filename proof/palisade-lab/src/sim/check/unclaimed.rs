//! A grant that reached nobody, and that nobody can ask for again, is given back before other requests are decided (A10).
//! Otherwise its lock is closed to those who wait, until its lease ends. While the disk is full nothing can be given back.

use std::collections::{BTreeMap, BTreeSet};

use super::rule::{self, Check};
use crate::sim::fact::{ChangeKind, Fact};

/// How much the authority may still decide before it gives such a grant back: the batch being built, and as many more as the
/// releases of all callers may need.
const DECISIONS: u32 = 16;

/// See the module.
#[derive(Default)]
pub(crate) struct Unclaimed {
    live: BTreeSet<(u8, u64)>,
    /// The grants that nobody takes up, and how much was decided since.
    owed: BTreeMap<(u8, u64), u32>,
}

impl Unclaimed {
    fn decided(&mut self) -> Result<(), String> {
        for ((lock, token), decisions) in &mut self.owed {
            *decisions += 1;
            if *decisions > DECISIONS {
                return Err(format!(
                    "token {token} of lock {lock} reached nobody, and {decisions} decisions later it is still granted"
                ));
            }
        }
        Ok(())
    }
}

impl Check for Unclaimed {
    fn name(&self) -> &'static str {
        rule::UNCLAIMED
    }

    fn see(&mut self, _: u64, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Applied(turn) => {
                let grant = (turn.lock, turn.token);
                match turn.what {
                    ChangeKind::Granted(_) => drop(self.live.insert(grant)),
                    ChangeKind::Ended(_) => {
                        self.live.remove(&grant);
                        self.owed.remove(&grant);
                    }
                }
            }
            Fact::Unclaimed { lock, token } if self.live.contains(&(*lock, *token)) => {
                self.owed.insert((*lock, *token), 0);
            }
            Fact::DiskFull => self.owed.values_mut().for_each(|decisions| *decisions = 0),
            Fact::Recovered { live, .. } => {
                self.live = live
                    .iter()
                    .map(|(lock, token, _)| (*lock, *token))
                    .collect();
                // The process that knew of it is gone.
                self.owed.clear();
            }
            Fact::Decided { .. } | Fact::Queued { .. } | Fact::Renewed { .. } => {
                return self.decided();
            }
            _ => {}
        }
        Ok(())
    }
}
