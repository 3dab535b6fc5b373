//! Work is not absence (A7): leases get their time again when the authority was away, and never because it was busy.

use super::rule::{self, Check};
use crate::sim::fact::Fact;

/// See the module.
#[derive(Default)]
pub(crate) struct Presence {
    /// When the authority was last away, by its own clock.
    away: Option<u64>,
}

impl Check for Presence {
    fn name(&self) -> &'static str {
        rule::PRESENCE
    }

    fn see(&mut self, _: u64, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Stalled { at, .. } => self.away = Some(*at),
            Fact::Graced { at } if self.away != Some(*at) => {
                return Err(
                    "leases got their time again although the authority was not away".into(),
                );
            }
            _ => {}
        }
        Ok(())
    }
}
