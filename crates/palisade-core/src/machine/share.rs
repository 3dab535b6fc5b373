//! Shared phases: several leases hold one lock.
//!
//! ```text
//!   lock { token of the phase, SHARED } ──extra.readers──► share ──► share ──► …     by number, the oldest first
//!                                                            │ grant { own number, lease }
//!   (lock, lease) ──index──► share
//! ```
//!
//! An exclusive grant lies inside its lock's record ([`grant`](super::grant)); a lock in a shared phase keeps the phase's
//! token there instead, and each reader has a record of its own.

use alloc::boxed::Box;

use super::grant::{Grant, GrantAt, GrantSlot, HeldBy};
use super::slab::{LeaseSlot, LockSlot, ShareSlot, SlotLink};
use super::tables::Tables;
use crate::id::GrantId;
use crate::name::LockName;
use crate::permits::Slots;
use crate::time::{Timestamp, WallTime};
use crate::token::Token;

/// A grant of a shared phase.
#[derive(Clone, Debug)]
pub(crate) struct Share {
    /// Its token is the grant's own number; a reader's fencing token is its phase's.
    pub(super) grant: Grant,
    pub(super) lock: LockSlot,
    /// The lock's other readers.
    prev: SlotLink<ShareSlot>,
    next: SlotLink<ShareSlot>,
    slots: Slots,
    /// Whether it is in the index. The newest grant of a lease need not be, because it is always looked at.
    indexed: bool,
    metadata: Option<Box<str>>,
}

/// The names and numbers of a grant of a shared phase.
pub(super) struct SharedGrantName<'a> {
    pub(super) lock: &'a LockName,
    /// The fencing token: a reader's is its phase's, and a semaphore's holder has its own number (P2).
    pub(super) token: Token,
    /// The number that names a reader; a semaphore's holder is named by its token.
    pub(super) reader: Option<GrantId>,
    pub(super) slots: Slots,
}

/// The holders of a shared phase.
#[derive(Clone, Copy, Debug)]
pub(super) struct Readers {
    pub(super) first: SlotLink<ShareSlot>,
    pub(super) last: SlotLink<ShareSlot>,
    pub(super) count: u32,
    /// The one in mode update, if there is one.
    pub(super) update: SlotLink<ShareSlot>,
}

impl Readers {
    pub(super) const NONE: Readers = Readers {
        first: SlotLink::NONE,
        last: SlotLink::NONE,
        count: 0,
        update: SlotLink::NONE,
    };

    pub(super) fn is_empty(&self) -> bool {
        let links = [self.first, self.last, self.update];
        self.count == 0 && links.iter().all(|link| link.is_none())
    }
}

impl Tables {
    /// Whether a lock is in a shared phase.
    #[inline]
    pub(crate) fn is_shared(&self, lock: LockSlot) -> bool {
        self.locks[lock].grant.by() == HeldBy::READERS
    }

    /// Begins a phase on a lock that nobody holds. Its first reader follows.
    pub(super) fn begin_phase(&mut self, lock: LockSlot, token: Token) {
        let before = &mut self.locks[lock].grant;
        assert_eq!(
            before.by(),
            HeldBy::NOBODY,
            "a phase begins on a lock that somebody holds"
        );
        assert!(
            before.token() <= token,
            "a phase's token is below the lock's last (S1)"
        );
        *before = Grant::shared(token);
    }

    /// Adds a reader to a lock's phase, the youngest.
    pub(super) fn add_share(
        &mut self,
        lock: LockSlot,
        number: Token,
        wall: WallTime,
        slots: Slots,
        metadata: Option<Box<str>>,
    ) -> ShareSlot {
        let share = self.shares.insert(Share {
            grant: Grant::new(number, wall),
            lock,
            prev: SlotLink::NONE,
            next: SlotLink::NONE,
            slots,
            indexed: false,
            metadata,
        });
        self.numbers.insert(&number, share);
        let readers = &mut self.extra_mut(lock).readers;
        readers.count += 1;
        let before = core::mem::replace(&mut readers.last, SlotLink::to(share));
        let Some(prev) = before.get() else {
            readers.first = SlotLink::to(share);
            return share;
        };
        let prev = self.share_mut(prev);
        assert!(prev.next.is_none(), "the youngest reader has one behind it");
        let (older, token) = (prev.grant.token(), number);
        assert!(
            older < token,
            "readers are not in the order of their numbers (S1)"
        );
        prev.next = SlotLink::to(share);
        self.share_mut(share).prev = before;
        share
    }

    /// Puts a shared grant into the index, because it will not be the newest of its lease any more.
    pub(super) fn index_share(&mut self, share: ShareSlot) {
        let Share {
            lock,
            grant,
            indexed,
            ..
        } = self.share_mut(share);
        if core::mem::replace(indexed, true) {
            return;
        }
        let key = (*lock, grant.lease());
        self.readers.insert(&key, share);
    }

    /// Takes a reader from its lock and its lease. The phase ends with its last one.
    pub(crate) fn remove_share(&mut self, share: ShareSlot) {
        let Share {
            lock,
            grant,
            indexed,
            ..
        } = self.share(share);
        let (key, number) = ((*lock, grant.lease()), grant.token());
        if *indexed {
            self.readers.remove(&key, share);
        }
        self.numbers.remove(&number, share);
        self.untie(GrantSlot::of_share(share));
        let Share {
            lock, prev, next, ..
        } = self.shares.remove(share);
        let readers = &mut self.extra_mut(lock).readers;
        assert!(readers.count > 0, "a reader leaves a lock that has none");
        readers.count -= 1;
        if readers.update == share {
            readers.update = SlotLink::NONE;
        }
        let linked = match prev.get() {
            None => core::mem::replace(&mut self.extra_mut(lock).readers.first, next),
            Some(prev) => core::mem::replace(&mut self.share_mut(prev).next, next),
        };
        assert!(
            linked == share,
            "the readers' links do not agree: before {share:?}"
        );
        let linked = match next.get() {
            None => core::mem::replace(&mut self.extra_mut(lock).readers.last, prev),
            Some(next) => core::mem::replace(&mut self.share_mut(next).prev, prev),
        };
        assert!(
            linked == share,
            "the readers' links do not agree: behind {share:?}"
        );
        // After an upgrade the lock has a writer already.
        if self.readers(lock) == 0 && self.is_shared(lock) {
            self.locks[lock].grant.end_phase();
        }
    }

    /// Makes a reader the one in mode update.
    pub(super) fn mark_update(&mut self, share: ShareSlot) {
        let lock = self.share(share).lock;
        let update = &mut self.extra_mut(lock).readers.update;
        assert!(
            update.is_none(),
            "a lock has two grants in mode update (S8)"
        );
        *update = SlotLink::to(share);
    }

    /// A lock's grant in mode update (S8).
    pub(crate) fn update_on(&self, lock: LockSlot) -> Option<ShareSlot> {
        self.extra(lock)?.readers.update.get()
    }

    #[cfg(test)]
    pub(super) fn spoil_readers(&mut self, lock: LockSlot, spoil: fn(&mut Readers)) {
        spoil(&mut self.extra_mut(lock).readers);
    }

    #[cfg(test)]
    pub(crate) fn spoil_update(&mut self, lock: LockSlot, update: ShareSlot) {
        self.extra_mut(lock).readers.update = SlotLink::to(update);
    }

    /// Whether a shared grant is in mode update.
    pub(crate) fn is_update(&self, share: ShareSlot) -> bool {
        self.update_on(self.share(share).lock) == Some(share)
    }

    /// The grant of this lease in the lock's phase.
    pub(crate) fn find_share(&self, lock: LockSlot, lease: LeaseSlot) -> Option<ShareSlot> {
        let newest = self.leases[lease].last.get().map(GrantSlot::at);
        if let Some(GrantAt::Share(newest)) = newest
            && self.share(newest).lock == lock
        {
            return Some(newest);
        }
        self.readers.find(&(lock, lease), |share| {
            let share = self.share(share);
            (share.lock, share.grant.lease()) == (lock, lease)
        })
    }

    /// The grant of the lock's phase with this number.
    pub(super) fn reader(&self, lock: LockSlot, number: Token) -> Option<ShareSlot> {
        self.numbers.find(&number, |share| {
            let share = self.share(share);
            (share.lock, share.grant.token()) == (lock, number)
        })
    }

    /// The youngest reader of a lock, whose number is the highest.
    pub(super) fn youngest_reader(&self, lock: LockSlot) -> Option<ShareSlot> {
        self.extra(lock)?.readers.last.get()
    }

    pub(super) fn oldest_reader(&self, lock: LockSlot) -> Option<ShareSlot> {
        self.extra(lock)?.readers.first.get()
    }

    /// A lock's readers, the oldest first.
    pub(crate) fn readers_of(&self, lock: LockSlot) -> impl Iterator<Item = ShareSlot> {
        core::iter::successors(self.oldest_reader(lock), |share| {
            self.share(*share).next.get()
        })
    }

    /// How many they are.
    pub(crate) fn readers(&self, lock: LockSlot) -> u32 {
        self.extra(lock).map_or(0, |extra| extra.readers.count)
    }

    fn share(&self, share: ShareSlot) -> &Share {
        &self.shares[share]
    }

    fn share_mut(&mut self, share: ShareSlot) -> &mut Share {
        &mut self.shares[share]
    }

    // Not inlined, so that an exclusive grant costs only one comparison for each of these.

    pub(super) fn lock_of_share(&self, share: ShareSlot) -> LockSlot {
        self.share(share).lock
    }

    pub(super) fn grant_of_share(&self, share: ShareSlot) -> &Grant {
        &self.share(share).grant
    }

    pub(super) fn grant_of_share_mut(&mut self, share: ShareSlot) -> &mut Grant {
        &mut self.share_mut(share).grant
    }

    /// The token of a shared grant's phase.
    pub(super) fn phase_of(&self, share: ShareSlot) -> Token {
        self.locks[self.share(share).lock].grant.token()
    }

    /// A shared grant with its names and numbers.
    #[inline]
    pub(super) fn named(&self, share: ShareSlot) -> (&Grant, SharedGrantName<'_>) {
        let Share {
            grant, lock, slots, ..
        } = self.share(share);
        let lock = &self.locks[*lock];
        let (token, reader) = if slots.is_empty() {
            (lock.grant.token(), Some(GrantId(grant.token())))
        } else {
            (grant.token(), None)
        };
        let named = SharedGrantName {
            lock: &lock.name,
            token,
            reader,
            slots: *slots,
        };
        (grant, named)
    }

    /// The fencing token of a shared grant.
    pub(super) fn fencing_of_share(&self, share: ShareSlot) -> Token {
        self.named(share).1.token
    }

    /// Whether a lock has readers and nothing is due for them: nobody waits, and the lease of the oldest is not over.
    pub(super) fn has_live_readers_only(&self, lock: LockSlot, now: Timestamp) -> bool {
        let Some(extra) = self.extra(lock) else {
            return false;
        };
        let nobody_waits = extra.first.is_none() && extra.permits.is_none();
        self.is_shared(lock)
            && nobody_waits
            && extra.readers.first.get().is_some_and(|oldest| {
                let lease = &self.leases[self.share(oldest).grant.lease()];
                !lease.is_expired(now)
            })
    }

    /// The slots that a grant holds.
    pub(crate) fn slots_of(&self, share: ShareSlot) -> Slots {
        self.share(share).slots
    }

    /// The text that a grant's holder gave about itself.
    pub(crate) fn metadata_of(&self, grant: GrantSlot) -> Option<&str> {
        match grant.at() {
            GrantAt::Share(share) => self.share(share).metadata.as_deref(),
            GrantAt::Lock(lock) => self.metadata(lock),
        }
    }

    /// All shared grants, in no particular order.
    pub(crate) fn shares(&self) -> impl Iterator<Item = (ShareSlot, &Grant)> {
        let shares = self.shares.iter();
        shares.map(|(slot, share)| (slot, &share.grant))
    }
}
