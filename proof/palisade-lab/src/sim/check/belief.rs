//! The holder's deadline (H1): no client believes that it holds a lock at the moment when the authority grants it to
//! another. Promised only for clocks within 1 %; not promised after a revocation (the holder learns with its next
//! renewal), nor for grants that a restored backup does not know.

use std::collections::BTreeSet;

use palisade_core::Ending;

use super::rule::{self, Check};
use crate::sim::fact::{ChangeKind, Fact};

/// See the module.
pub(crate) struct Belief {
    promised: bool,
    /// Grants for which nothing is promised any more.
    void: BTreeSet<(u8, u64)>,
    granted: BTreeSet<(u8, u64)>,
}

impl Belief {
    pub(crate) fn new(promised: bool) -> Belief {
        Belief {
            promised,
            void: BTreeSet::new(),
            granted: BTreeSet::new(),
        }
    }
}

impl Check for Belief {
    fn name(&self) -> &'static str {
        rule::BELIEF
    }

    fn see(&mut self, _: u64, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Applied(turn) => match turn.what {
                ChangeKind::Granted(_) => {
                    self.granted.insert((turn.lock, turn.token));
                }
                ChangeKind::Ended(Ending::Revoked | Ending::Superseded) => {
                    self.void.insert((turn.lock, turn.token));
                }
                ChangeKind::Ended(_) => {}
            },
            Fact::Recovered { restored: true, .. } => self.void.append(&mut self.granted),
            Fact::Believers {
                lock,
                token,
                believers,
            } if self.promised => {
                let mut believers = believers.iter();
                let promised = believers.find(|(_, old)| !self.void.contains(&(*lock, *old)));
                if let Some((client, old)) = promised {
                    return Err(format!(
                        "lock {lock} is granted with token {token} while client {client} believes in token {old}"
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
