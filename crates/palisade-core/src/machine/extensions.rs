//! Leases that last longer than their last renewal said, because the authority was away (rule A7).
//!
//! ```text
//!   renewed ────── ttl ──────► expires             the authority was away: its own time does not count
//!      │                          └── full time again, but not beyond ──► limit = renewed + 2 · ttl + away
//!      └───────────────────────────── 2 · ttl of serving ────────────────────┘
//! ```
//!
//! A renewal forgets the extension, so between two absences the table is empty and costs a renewal one comparison.

use alloc::vec::Vec;
use core::num::NonZero;

use super::slab::{LeaseSlot, Number};
use crate::time::Timestamp;

/// How far a lease was extended since its last renewal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extension {
    /// No extension goes beyond: then the lease will have had twice its time to live since its last renewal, not counting
    /// the time in which the authority was away.
    pub limit: Timestamp,
    /// How often it was extended.
    pub times: NonZero<u32>,
}

/// The extensions, by the slots of their leases.
#[derive(Clone, Debug, Default)]
pub(crate) struct Extensions {
    of: Vec<Option<Extension>>,
    count: usize,
}

impl Extensions {
    pub(crate) fn count(&self) -> usize {
        self.count
    }

    pub(crate) fn get(&self, lease: LeaseSlot) -> Option<Extension> {
        self.of.get(lease.number() as usize).copied().flatten()
    }

    pub(crate) fn set(&mut self, lease: LeaseSlot, extension: Extension) {
        let place = lease.number() as usize;
        if self.of.len() <= place {
            self.of.resize(place + 1, None);
        }
        if self.of[place].replace(extension).is_none() {
            self.count += 1;
        }
    }

    /// The lease was renewed, or is over.
    #[inline]
    pub(super) fn forget(&mut self, lease: LeaseSlot) {
        if self.count > 0 {
            self.forget_it(lease);
        }
    }

    fn forget_it(&mut self, lease: LeaseSlot) {
        let known = self
            .of
            .get_mut(lease.number() as usize)
            .and_then(Option::take);
        if known.is_none() {
            return;
        }
        self.count -= 1;
        if self.count == 0 {
            self.of = Vec::new();
        }
    }
}
