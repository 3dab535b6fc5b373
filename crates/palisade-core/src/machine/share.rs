//! Shared phases: several leases hold one lock.
//!
//! ```text
//!   lock { token of the phase, SHARED } ──extra.readers──► share ──► share ──► …     by number, the oldest first
//!                                                            │ grant { own number, lease }
//!   (lock, lease) ──index──► share
//! ```
//!
//! An exclusive grant lies inside its lock's record ([`grant`](super::grant)); a lock in a shared phase keeps the phase's
//! token there instead, and each reader has a record of its own. Slots of grants with [`SHARE`] set are numbers of such
//! records.

use alloc::boxed::Box;

use super::grant::{Grant, SHARED};
use super::slab::{NIL, Slot};
use super::tables::Tables;
use crate::id::GrantId;
use crate::name::LockName;
use crate::permits::Slots;
use crate::time::{Timestamp, WallTime};
use crate::token::Token;

/// Set in the slot number of a grant that is shared.
pub(super) const SHARE: Slot = 1 << 31;

/// A grant of a shared phase.
#[derive(Clone, Debug)]
pub(crate) struct Share {
    /// Its token is the grant's own number; a reader's fencing token is its phase's.
    pub(super) grant: Grant,
    pub(super) lock: Slot,
    /// The lock's other readers; slots with [`SHARE`].
    prev: Slot,
    next: Slot,
    slots: Slots,
    /// Whether it is in the index. The newest grant of a lease need not be, because it is always looked at.
    indexed: bool,
    metadata: Option<Box<str>>,
}

/// The names and numbers of a grant of a shared phase.
pub(super) struct Named<'a> {
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
    pub(super) first: Slot,
    pub(super) last: Slot,
    pub(super) count: u32,
    /// The one in mode update, if there is one.
    pub(super) update: Slot,
}

impl Readers {
    pub(super) const NONE: Readers = Readers {
        first: NIL,
        last: NIL,
        count: 0,
        update: NIL,
    };

    pub(super) fn is_empty(&self) -> bool {
        self.count == 0 && self.first == NIL && self.last == NIL && self.update == NIL
    }
}

/// Whether a grant's slot is one of a shared grant.
#[inline]
pub(super) const fn is_share(grant: Slot) -> bool {
    grant & SHARE != 0
}

impl Tables {
    /// Whether a lock is in a shared phase.
    #[inline]
    pub(crate) fn is_shared(&self, lock: Slot) -> bool {
        self.locks[lock].grant.lease() == SHARED
    }

    /// Begins a phase on a lock that nobody holds. Its first reader follows.
    pub(super) fn begin_phase(&mut self, lock: Slot, token: Token) {
        let before = &mut self.locks[lock].grant;
        assert_eq!(
            before.lease(),
            NIL,
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
        lock: Slot,
        number: Token,
        wall: WallTime,
        slots: Slots,
        metadata: Option<Box<str>>,
    ) -> Slot {
        let share = SHARE
            | self.shares.insert(Share {
                grant: Grant::new(number, wall),
                lock,
                prev: NIL,
                next: NIL,
                slots,
                indexed: false,
                metadata,
            });
        self.numbers.insert(&number, share);
        let readers = &mut self.extra_mut(lock).readers;
        readers.count += 1;
        let prev = core::mem::replace(&mut readers.last, share);
        if prev == NIL {
            readers.first = share;
        } else {
            let before = self.share_mut(prev);
            assert_eq!(before.next, NIL, "the youngest reader has one behind it");
            assert!(
                before.grant.token() < number,
                "readers are not in the order of their numbers (S1)"
            );
            before.next = share;
            self.share_mut(share).prev = prev;
        }
        share
    }

    /// Puts a shared grant into the index, because it will not be the newest of its lease any more.
    #[cold]
    #[inline(never)]
    pub(super) fn index_share(&mut self, share: Slot) {
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
    #[cold]
    #[inline(never)]
    pub(crate) fn remove_share(&mut self, share: Slot) {
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
        self.untie(share);
        let Share {
            lock, prev, next, ..
        } = self.shares.remove(share & !SHARE);
        if prev != NIL {
            let before = &mut self.share_mut(prev).next;
            assert_eq!(*before, share, "the readers' links do not agree");
            *before = next;
        }
        if next != NIL {
            let behind = &mut self.share_mut(next).prev;
            assert_eq!(*behind, share, "the readers' links do not agree");
            *behind = prev;
        }
        let readers = &mut self.extra_mut(lock).readers;
        assert!(readers.count > 0, "a reader leaves a lock that has none");
        readers.count -= 1;
        if prev == NIL {
            assert_eq!(readers.first, share, "the oldest reader is another one");
            readers.first = next;
        }
        if next == NIL {
            assert_eq!(readers.last, share, "the youngest reader is another one");
            readers.last = prev;
        }
        if readers.update == share {
            readers.update = NIL;
        }
        // After an upgrade the lock has a writer already.
        if readers.count == 0 && self.is_shared(lock) {
            self.locks[lock].grant.end_phase();
        }
    }

    /// Makes a reader the one in mode update.
    pub(super) fn mark_update(&mut self, share: Slot) {
        let lock = self.share(share).lock;
        let update = &mut self.extra_mut(lock).readers.update;
        assert_eq!(*update, NIL, "a lock has two grants in mode update (S8)");
        *update = share;
    }

    /// A lock's grant in mode update (S8).
    pub(crate) fn update_on(&self, lock: Slot) -> Option<Slot> {
        let update = self.extra(lock).map(|extra| extra.readers.update);
        update.filter(|update| *update != NIL)
    }

    #[cfg(test)]
    pub(super) fn spoil_readers(&mut self, lock: Slot, spoil: fn(&mut Readers)) {
        spoil(&mut self.extra_mut(lock).readers);
    }

    #[cfg(test)]
    pub(crate) fn spoil_update(&mut self, lock: Slot, update: Slot) {
        self.extra_mut(lock).readers.update = update;
    }

    /// Whether a shared grant is in mode update.
    pub(crate) fn is_update(&self, share: Slot) -> bool {
        self.update_on(self.share(share).lock) == Some(share)
    }

    /// The grant of this lease in the lock's phase.
    pub(crate) fn find_share(&self, lock: Slot, lease: Slot) -> Option<Slot> {
        let newest = self.leases[lease].last;
        if newest != NIL && is_share(newest) && self.share(newest).lock == lock {
            return Some(newest);
        }
        self.readers.find(&(lock, lease), |share| {
            let share = self.share(share);
            (share.lock, share.grant.lease()) == (lock, lease)
        })
    }

    /// The grant of the lock's phase with this number.
    #[cold]
    #[inline(never)]
    pub(super) fn reader(&self, lock: Slot, number: Token) -> Option<Slot> {
        self.numbers.find(&number, |share| {
            let share = self.share(share);
            (share.lock, share.grant.token()) == (lock, number)
        })
    }

    /// The youngest reader of a lock, whose number is the highest.
    pub(super) fn youngest_reader(&self, lock: Slot) -> Option<Slot> {
        let last = self.extra(lock).map(|extra| extra.readers.last);
        last.filter(|last| *last != NIL)
    }

    pub(super) fn oldest_reader(&self, lock: Slot) -> Option<Slot> {
        let first = self.extra(lock).map(|extra| extra.readers.first);
        first.filter(|first| *first != NIL)
    }

    /// A lock's readers, the oldest first.
    pub(crate) fn readers_of(&self, lock: Slot) -> impl Iterator<Item = Slot> {
        core::iter::successors(self.oldest_reader(lock), |share| {
            Some(self.share(*share).next).filter(|next| *next != NIL)
        })
    }

    /// How many they are.
    pub(crate) fn readers(&self, lock: Slot) -> u32 {
        self.extra(lock).map_or(0, |extra| extra.readers.count)
    }

    fn share(&self, share: Slot) -> &Share {
        &self.shares[share & !SHARE]
    }

    fn share_mut(&mut self, share: Slot) -> &mut Share {
        &mut self.shares[share & !SHARE]
    }

    // Not inlined, so that an exclusive grant costs only one comparison for each of these.

    #[cold]
    #[inline(never)]
    pub(super) fn lock_of_share(&self, share: Slot) -> Slot {
        self.share(share).lock
    }

    #[cold]
    #[inline(never)]
    pub(super) fn grant_of_share(&self, share: Slot) -> &Grant {
        &self.share(share).grant
    }

    #[cold]
    #[inline(never)]
    pub(super) fn grant_of_share_mut(&mut self, share: Slot) -> &mut Grant {
        &mut self.share_mut(share).grant
    }

    /// The token of a shared grant's phase.
    #[cold]
    #[inline(never)]
    pub(super) fn phase_of(&self, share: Slot) -> Token {
        self.locks[self.share(share).lock].grant.token()
    }

    /// A shared grant with its names and numbers.
    #[inline]
    pub(super) fn named(&self, share: Slot) -> (&Grant, Named<'_>) {
        let Share {
            grant, lock, slots, ..
        } = self.share(share);
        let lock = &self.locks[*lock];
        let (token, reader) = match slots.is_empty() {
            true => (lock.grant.token(), Some(GrantId(grant.token()))),
            false => (grant.token(), None),
        };
        let named = Named {
            lock: &lock.name,
            token,
            reader,
            slots: *slots,
        };
        (grant, named)
    }

    /// The fencing token of a shared grant.
    #[cold]
    #[inline(never)]
    pub(super) fn fencing_of_share(&self, share: Slot) -> Token {
        self.named(share).1.token
    }

    /// Whether a lock has readers and nothing is due for them: nobody waits, and the lease of the oldest is not over.
    pub(super) fn has_live_readers_only(&self, lock: Slot, now: Timestamp) -> bool {
        let record = &self.locks[lock];
        let Some(extra) = self.extras.get(record.extra) else {
            return false;
        };
        let is_shared = record.grant.lease() == SHARED;
        let oldest = extra.readers.first;
        let nobody_waits = extra.first == NIL && extra.permits.is_none();
        is_shared
            && nobody_waits
            && oldest != NIL
            && !self.leases[self.share(oldest).grant.lease()].is_expired(now)
    }

    /// The slots that a grant holds.
    pub(crate) fn slots_of(&self, share: Slot) -> Slots {
        self.share(share).slots
    }

    /// The text that a grant's holder gave about itself.
    pub(crate) fn metadata_of(&self, grant: Slot) -> Option<&str> {
        if is_share(grant) {
            return self.share(grant).metadata.as_deref();
        }
        self.metadata(self.lock_of(grant))
    }

    /// All shared grants, in no particular order.
    pub(crate) fn shares(&self) -> impl Iterator<Item = (Slot, &Grant)> {
        let shares = self.shares.iter();
        shares.map(|(slot, share)| (slot | SHARE, &share.grant))
    }
}
