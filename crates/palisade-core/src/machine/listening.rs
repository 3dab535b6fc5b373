//! The questions of a holder that listens: whether its grant is live, and which queues have changed.

use alloc::vec::Vec;

use super::Machine;
use crate::command::GrantRef;
use crate::id::Principal;
use crate::name::LockName;
use crate::outcome::{GrantState, Outcome};

impl Machine {
    /// The state of a grant, for a principal that shows its secret. It changes nothing.
    #[must_use]
    pub fn grant_state(&self, by: Principal, named: &GrantRef) -> GrantState {
        if let Some(live) = self.live_grant(named) {
            let lease = self.tables.lease_of(live);
            return if self.may_be_used_by(lease.client, by) {
                let lock = self.tables.lock_of(live);
                GrantState::Live {
                    waiters: self.tables.waiting(lock),
                }
            } else {
                GrantState::Unknown
            };
        }
        match self.past(named) {
            Outcome::Ended { how, .. } => GrantState::Over(how),
            _ => GrantState::Unknown,
        }
    }

    /// Whether changes of queues are noted from now on, for [`Machine::take_changed_queues`]. Not part of the state.
    pub fn note_queues(&mut self, on: bool) {
        if on != self.tables.notes_queues {
            self.tables.notes_queues = on;
            self.tables.changed_queues.clear();
        }
    }

    /// The locks whose queues have changed since this was asked, and how many requests wait for each. The cost grows with
    /// these locks alone. A lock that is forgotten has no holder that could want to know.
    pub fn take_changed_queues(&mut self) -> Vec<(LockName, u32)> {
        let changed = core::mem::take(&mut self.tables.changed_queues);
        let changed = changed.into_iter().filter_map(|slot| {
            let lock = self.tables.locks.get(slot)?;
            Some((lock.name.clone(), self.tables.waiting(slot)))
        });
        changed.collect()
    }
}
