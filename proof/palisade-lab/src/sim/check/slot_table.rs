//! The slots of semaphores that are held, as the facts tell it.

use std::collections::BTreeMap;

use crate::sim::plan::{LOCKS, Plan};

/// See the module.
pub(super) struct SlotTable {
    /// How many permits each lock has now.
    permits: [u8; LOCKS],
    /// The slots of each grant so far.
    of: BTreeMap<u64, u64>,
    /// The live grants of each lock.
    live: [BTreeMap<u64, u64>; LOCKS],
}

impl SlotTable {
    pub(super) fn new(plan: &Plan) -> SlotTable {
        SlotTable {
            permits: plan.permits,
            of: BTreeMap::new(),
            live: Default::default(),
        }
    }

    /// All slots of a lock, one bit each.
    pub(super) fn all(&self, lock: u8) -> u64 {
        (1 << self.permits[usize::from(lock)]) - 1
    }

    /// From now on a lock has so many permits.
    pub(super) fn resize(&mut self, lock: u8, permits: u8) {
        self.permits[usize::from(lock)] = permits;
    }

    /// How many permits a lock has.
    pub(super) fn size(&self, lock: u8) -> u8 {
        self.permits[usize::from(lock)]
    }

    /// Whether somebody holds slots of a lock.
    pub(super) fn is_in_use(&self, lock: u8) -> bool {
        !self.live[usize::from(lock)].is_empty()
    }

    /// A grant of slots, or of another kind: a crash may have undone a grant of slots with its number.
    pub(super) fn granted(&mut self, lock: u8, token: u64, slots: u64) {
        if slots == 0 {
            self.of.remove(&token);
            return;
        }
        self.of.insert(token, slots);
        self.live[usize::from(lock)].insert(token, slots);
    }

    /// The live grant that has one of these slots.
    pub(super) fn holder(&self, lock: u8, slots: u64) -> Option<u64> {
        let live = self.live[usize::from(lock)].iter();
        live.filter(|(_, held)| *held & slots != 0)
            .map(|(token, _)| *token)
            .next()
    }

    /// Ends the grants that have one of these slots.
    pub(super) fn vacate(&mut self, lock: u8, slots: u64) {
        self.live[usize::from(lock)].retain(|_, held| *held & slots == 0);
    }

    pub(super) fn ended(&mut self, lock: u8, token: u64) {
        self.live[usize::from(lock)].remove(&token);
    }

    /// Whether a grant has slots.
    pub(super) fn has(&self, token: u64) -> bool {
        self.of.contains_key(&token)
    }

    /// How many permits may be granted: of a semaphore that was made smaller none while as many are held (P1).
    pub(super) fn free(&self, lock: u8) -> u32 {
        let held = self.live[usize::from(lock)].values();
        let held = held.fold(0, |all, held| all | held).count_ones();
        u32::from(self.size(lock)).saturating_sub(held)
    }

    /// After a restart these grants are live (lock, grant, client), and these semaphores have so many permits.
    pub(super) fn recovered(&mut self, live: &[(u8, u64, u8)], permits: &[(u8, u8)]) {
        for (lock, permits) in permits {
            self.resize(*lock, *permits);
        }
        self.live = Default::default();
        for (lock, token, _) in live {
            if let Some(slots) = self.of.get(token) {
                self.live[usize::from(*lock)].insert(*token, *slots);
            }
        }
    }
}
