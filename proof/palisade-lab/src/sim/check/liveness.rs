//! Liveness: after the faults end, every client adds an element within the last part of the run.

use std::collections::BTreeSet;

use super::rule::{self, Check};
use crate::sim::fact::Fact;

/// See the module.
pub(crate) struct Liveness {
    clients: u8,
    quiet: bool,
    added: BTreeSet<u8>,
}

impl Liveness {
    pub(crate) fn new(clients: u8) -> Liveness {
        Liveness {
            clients,
            quiet: false,
            added: BTreeSet::new(),
        }
    }
}

impl Check for Liveness {
    fn name(&self) -> &'static str {
        rule::LIVENESS
    }

    fn see(&mut self, _: u64, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Quiet => self.quiet = true,
            Fact::Added { client, .. } if self.quiet => drop(self.added.insert(*client)),
            Fact::Ended => {
                let stuck = (0..self.clients).find(|client| !self.added.contains(client));
                if let Some(client) = stuck {
                    return Err(format!(
                        "client {client} added nothing after the faults ended"
                    ));
                }
            }
            _ => {}
        }
        Ok(())
    }
}
