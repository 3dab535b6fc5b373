//! Semaphores: leases that hold slots of one lock (rules P1–P6).
//!
//! A semaphore's holders have records like readers ([`share`](super::share)), so that many may hold one lock. Each has
//! slots besides its number, and its number is its fencing token. The number of slots is stored beside the queue as long
//! as the lock has a record: a semaphore that nobody holds, and nobody waits for, is forgotten.

use alloc::vec::Vec;

use super::Machine;
use super::grants::{LeaseFor, LockStanding};
use super::slab::{LockSlot, ShareSlot};
use super::tables::Tables;
use crate::command::{Acquire, LockMode};
use crate::invalid::Invalid;
use crate::limits;
use crate::name::LockName;
use crate::outcome::{Effect, Ending, Outcome};
use crate::permits::{Permits, Slots, slot_key};
use crate::time::Span;

impl Tables {
    /// How many permits a lock has, if it is a semaphore.
    pub(crate) fn permits(&self, lock: LockSlot) -> Option<u32> {
        self.extra(lock)?.permits
    }

    #[cfg(test)]
    pub(crate) fn spoil_permits(&mut self, lock: LockSlot) {
        self.extra_mut(lock).permits = Some(1);
    }

    /// The slots that are free. A semaphore that was made smaller may have slots beyond its number; they end with
    /// their holders.
    pub(crate) fn free_slots(&self, lock: LockSlot) -> Slots {
        Slots::all(self.number_of_permits(lock)).without(self.taken_slots(lock))
    }

    /// How many permits may be granted. A semaphore that was made smaller may have slots that are free and as many holders
    /// as permits, or more: nobody is granted one until fewer are held (P1).
    pub(crate) fn free_permits(&self, lock: LockSlot) -> u32 {
        let held = self.taken_slots(lock).count();
        self.number_of_permits(lock).saturating_sub(held)
    }

    /// How many permits a semaphore has.
    fn number_of_permits(&self, lock: LockSlot) -> u32 {
        match self.permits(lock) {
            Some(permits) => permits,
            None => unreachable!("permits are asked of a lock that is no semaphore (P1)"),
        }
    }

    fn taken_slots(&self, lock: LockSlot) -> Slots {
        let taken = self.readers_of(lock).map(|share| self.slots_of(share));
        taken.fold(Slots::NONE, Slots::with)
    }
}

impl Machine {
    /// Checks a request for permits before its lock is looked up.
    pub(super) fn check_permits(lock: &LockName, permits: Permits) -> Result<(), Invalid> {
        slot_key(lock, permits.of()).map(drop)
    }

    /// Whether a request is of the lock's kind: an exclusive or a shared one is not for a semaphore, and permits are for
    /// none but a semaphore of that size (P1).
    pub(super) fn check_kind(&self, lock: LockSlot, mode: LockMode) -> Result<(), Invalid> {
        let asked = mode.permits().map(Permits::of);
        match self.tables.permits(lock) {
            has if has == asked => Ok(()),
            has => Err(Invalid::PermitsDiffer { asked, has }),
        }
    }

    /// A lock is asked for that nobody holds and somebody comes before, or permits of a lock that has a writer.
    pub(super) fn decide_kept(
        &mut self,
        lock: LockSlot,
        acquire: Acquire,
        lease: LeaseFor,
    ) -> Outcome {
        match self.check_kind(lock, acquire.mode) {
            Ok(()) if acquire.mode == LockMode::Upgrade => self.refuse_upgrade(&acquire, lease),
            Ok(()) => self.wait_or_deny(lock, acquire),
            Err(invalid) => Outcome::Invalid(invalid),
        }
    }

    /// Decides a request for a semaphore that somebody holds. A later request does not overtake waiting ones (P6).
    pub(super) fn decide_permits(
        &mut self,
        lock: LockSlot,
        acquire: Acquire,
        permits: Permits,
        lease: LeaseFor,
        effects: &mut Vec<Effect>,
    ) -> Outcome {
        if let LeaseFor::Live(mine) = lease
            && let Some(share) = self.tables.find_share(lock, mine)
        {
            return self.again(share, permits, Span::ZERO);
        }
        let waits = self.tables.first_waiter(lock).is_some();
        if waits || self.tables.free_permits(lock) < permits.wanted() {
            return self.wait_or_deny(lock, acquire);
        }
        let Some(number) = self.draw() else {
            return Outcome::TokensExhausted;
        };
        let lease = self.open(number, lease, self.contender(&acquire.client));
        let (mode, metadata) = (acquire.mode, acquire.metadata);
        self.grant_share(lock, number, lease, mode, metadata, Span::ZERO, effects)
    }

    /// A lease that has permits asks for permits again: a repeat, if it asks for as many.
    pub(super) fn again(&self, share: ShareSlot, permits: Permits, waited: Span) -> Outcome {
        match self.tables.slots_of(share).count() {
            held if held == permits.wanted() => Outcome::Granted(self.granted_share(share, waited)),
            held => Outcome::Invalid(Invalid::PermitsHeld {
                held,
                asked: permits.wanted(),
            }),
        }
    }

    /// Ends those holders of a semaphore that have leases over by this instant: at most one for each slot.
    pub(super) fn bring_up_semaphore(&mut self, lock: LockSlot, effects: &mut Vec<Effect>) {
        let holders = self.tables.readers_of(lock);
        let over: Vec<ShareSlot> = holders
            .filter(|share| self.tables.lease_of(share.grant()).is_expired(self.now))
            .collect();
        if over.is_empty() {
            return self.admit(lock, effects);
        }
        for share in over {
            self.leave_phase(share, Ending::Expired, None, effects);
        }
    }

    /// An operator changes the number of a semaphore's permits (P1). Holders of slots beyond it keep them. Waiting
    /// requests for more permits than that are refused. The cost grows with the requests refused, not with those that go
    /// on waiting.
    pub(super) fn resize(
        &mut self,
        name: &LockName,
        of: u32,
        effects: &mut Vec<Effect>,
    ) -> Outcome {
        if let Err(invalid) = Permits::new(1, of) {
            return Outcome::Invalid(invalid);
        }
        if let Err(invalid) = slot_key(name, of) {
            return Outcome::Invalid(invalid);
        }
        let lock = match self.stand(name, effects) {
            LockStanding::Free => return Outcome::NotHeld,
            LockStanding::Kept(lock) | LockStanding::Shared(lock) | LockStanding::Held(lock) => {
                lock
            }
        };
        let Some(has) = self.tables.permits(lock) else {
            return Outcome::Invalid(Invalid::PermitsDiffer {
                asked: Some(of),
                has: None,
            });
        };
        if has != of {
            self.changed = true;
            self.tables.extra_mut(lock).permits = Some(of);
            // From the end of the queue, because a request that leaves the head hands the lock on: all others that must
            // leave are gone by then.
            for (arrival, slot) in self.tables.waits_for_more(lock, of) {
                let waiter = self.tables.waiters.get(slot);
                let Some(waiter) = waiter.filter(|waiter| waiter.arrival == arrival) else {
                    continue;
                };
                let wanted = waiter.mode.permits().map_or(0, Permits::wanted);
                let orphan = waiter.orphan.is_some();
                let refused = Outcome::Invalid(Invalid::Permits { wanted, of });
                self.leave(slot, (!orphan).then_some(refused), effects);
            }
            if let Some(lock) = self.tables.find_lock(name) {
                self.admit(lock, effects);
            }
        }
        Outcome::Done
    }
}

const _: () = assert!(limits::PERMITS == u64::BITS, "a slot is a bit of `Slots`");
