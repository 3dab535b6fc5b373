//! The targets of a run's resources: each plain lock has one, and a semaphore has one for each of its slots (P3).

use palisade_core::{Invalid, LockName, slot_key};

use super::plan::{Plan, lock_name};

/// A lock, or one slot of a semaphore.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Target {
    pub(crate) lock: u8,
    /// Slots are numbered from 1; a plain lock has none.
    pub(crate) slot: Option<u8>,
}

impl Target {
    /// The name under which the fence keeps it.
    pub(crate) fn key(self) -> Result<LockName, Invalid> {
        let lock = LockName::new(&lock_name(self.lock))?;
        match self.slot {
            None => Ok(lock),
            Some(slot) => slot_key(&lock, slot.into()),
        }
    }
}

impl Plan {
    /// The targets of the resources, in the order of the resources' numbers.
    pub(crate) fn targets(&self) -> Vec<Target> {
        let of_lock = |lock: u8| {
            let permits = self.permits[usize::from(lock)];
            let plain = (permits == 0).then_some(None);
            let slots = plain.into_iter().chain((1..=permits).map(Some));
            slots.map(move |slot| Target { lock, slot })
        };
        (0..self.locks).flat_map(of_lock).collect()
    }

    /// How many resources there are.
    pub(crate) fn resources(&self) -> u8 {
        self.targets().len() as u8
    }

    /// A resource of a lock; of a semaphore's the one that `pick` says.
    pub(crate) fn resource_of(&self, lock: u8, pick: u64) -> u8 {
        let targets = (0..).zip(self.targets());
        let its = targets.filter(|(_, target)| target.lock == lock);
        let its: Vec<u8> = its.map(|(resource, _)| resource).collect();
        its[pick as usize % its.len()]
    }
}
