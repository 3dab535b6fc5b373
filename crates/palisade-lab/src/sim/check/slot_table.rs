//! The slots of semaphores that are held, as the facts tell it.

use std::collections::BTreeMap;

use crate::sim::plan::{LOCKS, Plan};

/// See the module.
pub(super) struct SlotTable {
    /// How many permits each lock has.
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

    /// How many slots nobody has.
    pub(super) fn free(&self, lock: u8) -> u32 {
        let held = self.live[usize::from(lock)].values();
        let held = held.fold(0, |all, held| all | held);
        (self.all(lock) & !held).count_ones()
    }

    /// After a restart these grants are live: lock, grant, client.
    pub(super) fn recovered(&mut self, live: &[(u8, u64, u8)]) {
        self.live = Default::default();
        for (lock, token, _) in live {
            if let Some(slots) = self.of.get(token) {
                self.live[usize::from(*lock)].insert(*token, *slots);
            }
        }
    }
}
