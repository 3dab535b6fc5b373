//! What the machine remembers of things that are over, so that a retry gets the first answer and a
//! late message learns how its grant ended.
//!
//! Both memories are rings of [`limits::REMEMBERED`] entries; the oldest makes room.

use core::hash::{BuildHasher, Hash};
use std::collections::VecDeque;

use super::index::Index;
use super::slab::Slot;
use crate::id::{LeaseKey, RequestId};
use crate::limits;
use crate::name::LockName;
use crate::outcome::{Ending, Outcome};
use crate::token::Token;

/// The answer a request got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// The request.
    pub request: RequestId,
    /// The lock it asked for; `None` if it was given up before it arrived.
    pub lock: Option<LockName>,
    /// Its first answer.
    pub outcome: Outcome,
}

/// A grant that is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Over {
    /// The lease it was under.
    pub key: LeaseKey,
    /// The lock.
    pub lock: LockName,
    /// Its token.
    pub token: Token,
    /// How it ended.
    pub how: Ending,
}

/// What a remembered entry is found by.
pub(super) trait Keyed {
    type Key<'a>: Hash + PartialEq
    where
        Self: 'a;

    /// Among entries with one key the newest is found.
    fn key(&self) -> Self::Key<'_>;
}

impl Keyed for Answered {
    type Key<'a> = RequestId;

    fn key(&self) -> RequestId {
        self.request
    }
}

impl Keyed for Over {
    type Key<'a> = (&'a LeaseKey, &'a LockName);

    fn key(&self) -> (&LeaseKey, &LockName) {
        (&self.key, &self.lock)
    }
}

/// A bounded ring of entries, the newest of each key in an index.
///
/// An entry that a newer one replaced stays until it is the oldest: the rings of two machines then
/// forget at the same moment, even if one was restored from a snapshot of the other.
#[derive(Clone, Debug)]
pub(super) struct Ring<T> {
    entries: VecDeque<T>,
    /// How many entries have been dropped: the entry at `i` has the slot number `dropped + i`.
    dropped: Slot,
    index: Index,
}

impl<T: Keyed> Ring<T> {
    pub(super) fn new(seed: u64) -> Ring<T> {
        Ring { entries: VecDeque::new(), dropped: 0, index: Index::new(seed) }
    }

    /// Remembers an entry; the oldest is forgotten when the ring is full.
    pub(super) fn remember(&mut self, entry: T) {
        if self.is_full() {
            self.forget_oldest();
        }
        self.push(entry);
    }

    pub(super) fn get<'a>(&'a self, key: &T::Key<'a>) -> Option<&'a T> {
        self.find(key).map(|slot| self.at(slot))
    }

    /// From the oldest to the newest, replaced ones too.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.entries.iter()
    }

    fn is_full(&self) -> bool {
        self.entries.len() >= limits::REMEMBERED
    }

    fn push(&mut self, entry: T) -> Slot {
        let slot = self.dropped.wrapping_add(self.entries.len() as Slot);
        self.entries.push_back(entry);
        let (entries, dropped) = (&self.entries, self.dropped);
        let key_of = |slot: Slot| entries[slot.wrapping_sub(dropped) as usize].key();
        let key = key_of(slot);
        if let Some(older) = self.index.find(&key, |other| other != slot && key_of(other) == key) {
            self.index.remove(&key, older);
        }
        self.index.insert(&key, slot, |hasher, slot| hasher.hash_one(key_of(slot)));
        slot
    }

    fn forget_oldest(&mut self) -> Option<(Slot, T)> {
        let (slot, oldest) = (self.dropped, self.entries.pop_front()?);
        self.index.remove(&oldest.key(), slot);
        self.dropped = slot.wrapping_add(1);
        Some((slot, oldest))
    }

    fn find<'a>(&'a self, key: &T::Key<'a>) -> Option<Slot> {
        self.index.find(key, |slot| self.at(slot).key() == *key)
    }

    fn at(&self, slot: Slot) -> &T {
        &self.entries[slot.wrapping_sub(self.dropped) as usize]
    }
}

/// Grants that are over: found by lease and lock, or by the lease alone and then the last it had.
#[derive(Clone, Debug)]
pub(super) struct Endings {
    grants: Ring<Over>,
    last_of_lease: Index,
}

impl Endings {
    pub(super) fn new(seed: u64) -> Endings {
        Endings { grants: Ring::new(seed), last_of_lease: Index::new(seed) }
    }

    pub(super) fn remember(&mut self, over: Over) {
        if self.grants.is_full()
            && let Some((slot, oldest)) = self.grants.forget_oldest()
        {
            self.last_of_lease.remove(&oldest.key, slot);
        }
        let key = over.key;
        if let Some(before) = self.find_last(&key) {
            self.last_of_lease.remove(&key, before);
        }
        let slot = self.grants.push(over);
        let grants = &self.grants;
        self.last_of_lease.insert(&key, slot, |hasher, slot| hasher.hash_one(grants.at(slot).key));
    }

    pub(super) fn of_grant(&self, key: &LeaseKey, lock: &LockName) -> Option<&Over> {
        let slot = self.grants.find(&(key, lock))?;
        Some(self.grants.at(slot))
    }

    pub(super) fn last_of_lease(&self, key: &LeaseKey) -> Option<&Over> {
        self.find_last(key).map(|slot| self.grants.at(slot))
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Over> {
        self.grants.iter()
    }

    fn find_last(&self, key: &LeaseKey) -> Option<Slot> {
        self.last_of_lease.find(key, |slot| self.grants.at(slot).key == *key)
    }
}
