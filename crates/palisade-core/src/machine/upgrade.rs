//! Mode update: a reader that becomes the writer in one step (rule S8).
//!
//! ```text
//!   readers:  a ─ u ─ b              queue:  upgrade of u ─► first ─► second ─► …
//!                 └ mode update, at most one of a lock
//! ```
//!
//! The upgrade goes to the head of the queue, so new readers wait behind it, and it waits for the other readers alone: no
//! two of them wait for each other, because there is one grant in mode update. It leaves the queue with that grant.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::Machine;
use super::grants::LeaseFor;
use super::slab::{LockSlot, ShareSlot};
use super::tables::Tables;
use crate::command::{Acquire, GrantRef, LockMode, Under};
use crate::invalid::Invalid;
use crate::options::GrantOptions;
use crate::outcome::{Effect, Ending, Outcome};
use crate::time::Span;

impl Tables {
    /// Whether an upgrade waits for a lock.
    pub(super) fn upgrade_waits(&self, lock: LockSlot) -> bool {
        let first = self.first_waiter(lock);
        first.is_some_and(|first| self.waiters[first].mode == LockMode::Upgrade)
    }

    /// Whether an upgrade that is first in a lock's queue has to wait: other readers are there.
    pub(crate) fn upgrade_has_to_wait(&self, lock: LockSlot) -> bool {
        self.update_on(lock).is_some() && self.readers(lock) > 1
    }

    /// The oldest reader that an upgrade waits for.
    pub(super) fn ahead_of_upgrade(&self, lock: LockSlot) -> Option<ShareSlot> {
        let update = self.update_on(lock);
        self.readers_of(lock).find(|share| Some(*share) != update)
    }
}

impl Machine {
    /// Decides a request to upgrade on a lock with readers. It may come from the reader in mode update, or from a client
    /// that wrongly takes itself for it.
    pub(super) fn decide_upgrade(
        &mut self,
        lock: LockSlot,
        acquire: Acquire,
        lease: LeaseFor,
        effects: &mut Vec<Effect>,
    ) -> Outcome {
        let share = match lease {
            LeaseFor::Live(mine) => self.tables.find_share(lock, mine),
            LeaseFor::New { .. } => None,
        };
        let Some(share) = share else {
            return self.refuse_upgrade(&acquire, lease);
        };
        if !self.tables.is_update(share) {
            return Outcome::Invalid(Invalid::Upgrade);
        }
        if self.is_restored(lock) {
            return Outcome::Invalid(Invalid::Restored);
        }
        if self.tables.upgrade_waits(lock) {
            return Outcome::Invalid(Invalid::UpgradeWaits);
        }
        if self.tables.upgrade_has_to_wait(lock) {
            return self.wait_or_deny(lock, acquire);
        }
        self.upgrade(share, acquire.metadata, Span::ZERO, effects)
    }

    /// Refuses to upgrade a grant that the lease does not have, and says what became of the grant, if that is known.
    pub(super) fn refuse_upgrade(&self, acquire: &Acquire, lease: LeaseFor) -> Outcome {
        let lock = self.tables.find_lock(&acquire.lock);
        let writer = lock.filter(|lock| self.tables.is_exclusive(*lock));
        let writer = writer.map(|lock| self.tables.writer(lock).lease());
        match (lease, acquire.under) {
            (LeaseFor::Live(mine), Under::Existing { key, .. }) if writer != Some(mine) => self
                .past(&GrantRef {
                    lock: acquire.lock.clone(),
                    key,
                    token: None,
                }),
            _ => Outcome::Invalid(Invalid::NotUpdate),
        }
    }

    /// The turn of an upgrade that waited: its grant is the only reader, or is over.
    pub(super) fn upgrade_waiter(
        &mut self,
        lock: LockSlot,
        lease: LeaseFor,
        metadata: Option<Box<str>>,
        waited: Span,
        effects: &mut Vec<Effect>,
    ) -> Outcome {
        let LeaseFor::Live(mine) = lease else {
            return Outcome::NotHeld;
        };
        match self.tables.find_share(lock, mine) {
            Some(share) => self.upgrade(share, metadata, waited, effects),
            None => self.past(&GrantRef {
                lock: self.tables.locks[lock].name.clone(),
                key: self.tables.leases[mine].key,
                token: None,
            }),
        }
    }

    /// Makes the only reader of a lock its writer, with a new number. Late writes of other readers have lower tokens
    /// (S8).
    fn upgrade(
        &mut self,
        share: ShareSlot,
        metadata: Option<Box<str>>,
        waited: Span,
        effects: &mut Vec<Effect>,
    ) -> Outcome {
        let Some(number) = self.draw() else {
            return Outcome::TokensExhausted;
        };
        let lock = self.tables.lock_of_share(share);
        let lease = self.tables.grant_of_share(share).lease();
        self.note_end_of_share(share, Ending::Superseded, None, effects);
        // Tied before the shared grant is taken from the lease: the lease must not end with it.
        self.tables.regrant(lock, number, self.wall, lease);
        self.tables.remove_share(share);
        self.finish_grant(lock, metadata, GrantOptions::NONE, waited, effects)
    }

    /// Whether the first request in a lock's queue is for mode update, or an upgrade: these wait for some of the readers
    /// only.
    pub(super) fn update_is_first(&self, lock: LockSlot) -> bool {
        let first = self.tables.first_waiter(lock);
        first.is_some_and(|first| {
            let mode = self.tables.waiters[first].mode;
            matches!(mode, LockMode::Update | LockMode::Upgrade)
        })
    }

    /// The refusal for a lease that has a lock as a reader and asks for it in another mode.
    pub(super) fn other_mode(&self, share: ShareSlot) -> Invalid {
        if self.tables.is_update(share) {
            Invalid::UpdateHeld
        } else {
            Invalid::Upgrade
        }
    }
}
