//! What the machine remembers of things that are over, so that a retry gets the first answer and a
//! late message learns how its grant ended.
//!
//! Both memories are rings of [`limits::REMEMBERED`] entries; the oldest makes room.

use core::hash::{BuildHasher, Hash};
use std::collections::VecDeque;

use super::index::Index;
use super::slab::{NIL, Slot};
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
        Ring {
            entries: VecDeque::new(),
            dropped: 0,
            index: Index::new(seed),
        }
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
        if let Some(older) = self
            .index
            .find(&key, |other| other != slot && key_of(other) == key)
        {
            self.index.remove(&key, older);
        }
        self.index
            .insert(&key, slot, |hasher, slot| hasher.hash_one(key_of(slot)));
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

/// Grants that are over, found by their lease.
///
/// ```text
///   index: lease ──► its newest ending ──► the one before ──► …      (links by slot number)
/// ```
///
/// Most leases had one grant, so one index is enough, and it is touched twice for a release. Only the
/// latest [`CHAIN`] endings of a lease are looked at, so that one lease with many grants cannot make
/// anything slow.
#[derive(Clone, Debug)]
pub(super) struct Endings {
    entries: VecDeque<Linked>,
    /// As in [`Ring`].
    dropped: Slot,
    newest: Index,
}

#[derive(Clone, Debug)]
struct Linked {
    over: Over,
    /// The lease's ending before this one, if it had any; perhaps forgotten by now.
    before: Slot,
}

/// Endings of one lease that are looked at.
const CHAIN: usize = 64;

impl Endings {
    pub(super) fn new(seed: u64) -> Endings {
        Endings {
            entries: VecDeque::new(),
            dropped: 0,
            newest: Index::new(seed),
        }
    }

    /// Remembers an ending; the oldest is forgotten when there are too many.
    pub(super) fn remember(&mut self, over: Over) {
        if self.entries.len() >= limits::REMEMBERED {
            self.forget_oldest();
        }
        let key = over.key;
        let before = self.newest_of(&key).unwrap_or(NIL);
        if before != NIL {
            self.newest.remove(&key, before);
        }
        let slot = self.dropped.wrapping_add(self.entries.len() as Slot);
        self.entries.push_back(Linked { over, before });
        let (entries, dropped) = (&self.entries, self.dropped);
        self.newest.insert(&key, slot, |hasher, slot| {
            hasher.hash_one(entries[slot.wrapping_sub(dropped) as usize].over.key)
        });
    }

    /// The endings of a lease, the newest first, as far back as anybody looks.
    pub(super) fn of_lease(&self, key: &LeaseKey) -> impl Iterator<Item = &Over> {
        let newest = self.newest_of(key).and_then(|slot| self.at(slot));
        core::iter::successors(newest, |linked| self.at(linked.before))
            .take(CHAIN)
            .map(|linked| &linked.over)
    }

    /// From the oldest to the newest.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Over> {
        self.entries.iter().map(|linked| &linked.over)
    }

    fn forget_oldest(&mut self) {
        if let Some(oldest) = self.entries.pop_front() {
            self.newest.remove(&oldest.over.key, self.dropped);
            self.dropped = self.dropped.wrapping_add(1);
        }
    }

    fn newest_of(&self, key: &LeaseKey) -> Option<Slot> {
        self.newest.find(key, |slot| {
            self.at(slot).is_some_and(|linked| linked.over.key == *key)
        })
    }

    /// `None` for an ending that is forgotten.
    fn at(&self, slot: Slot) -> Option<&Linked> {
        self.entries.get(slot.wrapping_sub(self.dropped) as usize)
    }
}
