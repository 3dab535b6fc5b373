//! From a name or a secret to a slot, by hash. There is no way to iterate, so hashing order cannot
//! reach an effect; the seed only decides where things lie.

use alloc::vec;
use alloc::vec::Vec;
use core::hash::{BuildHasher, Hash};

use foldhash::fast::FixedState;
use hashbrown::HashTable;

use super::slab::Slot;

/// Sub-tables. Each grows on its own, so that growing moves a part of the entries at a time. With eighty,
/// tables that hold a million, or twice or half of it, are well filled.
const PARTS: usize = 80;

/// Finds slots by key. The keys live in the records the slots name; the caller hands in how to get
/// from one to the other.
#[derive(Clone, Debug)]
pub(super) struct Index {
    parts: Vec<HashTable<Slot>>,
    hasher: FixedState,
}

impl Index {
    pub(super) fn new(seed: u64) -> Index {
        Index {
            parts: vec![HashTable::new(); PARTS],
            hasher: FixedState::with_seed(seed),
        }
    }

    /// Makes room for so many entries at once: growing asks for the key of every entry, one after the
    /// other from all over the memory.
    pub(super) fn reserve(&mut self, entries: usize, rehash: impl Fn(&FixedState, Slot) -> u64) {
        let mean = entries / PARTS;
        // Four standard deviations: hardly any part gets more.
        let each = mean + 4 * mean.isqrt();
        let hasher = &self.hasher;
        for part in &mut self.parts {
            part.reserve(each, |slot| rehash(hasher, *slot));
        }
    }

    /// Gives back the room of tables that are mostly empty.
    pub(super) fn fit(&mut self, rehash: impl Fn(&FixedState, Slot) -> u64) {
        let hasher = &self.hasher;
        for part in &mut self.parts {
            if part.capacity() / 4 > part.len() {
                part.shrink_to(2 * part.len(), |slot| rehash(hasher, *slot));
            }
        }
    }

    pub(super) fn hash<K: Hash + ?Sized>(&self, key: &K) -> u64 {
        self.hasher.hash_one(key)
    }

    pub(super) fn find<K: Hash + ?Sized>(
        &self,
        key: &K,
        is: impl Fn(Slot) -> bool,
    ) -> Option<Slot> {
        self.find_hashed(self.hash(key), is)
    }

    /// As [`find`](Index::find), with a hash that this index made, or another one with the same seed.
    pub(super) fn find_hashed(&self, hash: u64, is: impl Fn(Slot) -> bool) -> Option<Slot> {
        self.parts[part(hash)].find(hash, |slot| is(*slot)).copied()
    }

    /// `rehash` gives the hash of the key of any slot that is in here; the table asks when it grows.
    pub(super) fn insert<K: Hash + ?Sized>(
        &mut self,
        key: &K,
        slot: Slot,
        rehash: impl Fn(&FixedState, Slot) -> u64,
    ) {
        let hash = self.hash(key);
        let hasher = &self.hasher;
        self.parts[part(hash)].insert_unique(hash, slot, |slot| rehash(hasher, *slot));
    }

    /// As [`insert`](Index::insert), but an entry with this key, for which `is` is true, makes room for the new one.
    pub(super) fn replace<K: Hash + ?Sized>(
        &mut self,
        key: &K,
        slot: Slot,
        is: impl Fn(Slot) -> bool,
        rehash: impl Fn(&FixedState, Slot) -> u64,
    ) {
        let hash = self.hash(key);
        let hasher = &self.hasher;
        self.parts[part(hash)]
            .entry(hash, |slot| is(*slot), |slot| rehash(hasher, *slot))
            .insert(slot);
    }

    /// Forgets everything; the room stays.
    pub(super) fn clear(&mut self) {
        self.parts.iter_mut().for_each(HashTable::clear);
    }

    pub(super) fn remove<K: Hash + ?Sized>(&mut self, key: &K, slot: Slot) {
        let hash = self.hash(key);
        if let Ok(entry) = self.parts[part(hash)].find_entry(hash, |found| *found == slot) {
            entry.remove();
        }
    }
}

/// Bits that hashbrown does not use: it takes the low ones for the place and the top seven for tags.
fn part(hash: u64) -> usize {
    ((hash >> 41) as u16 as usize * PARTS) >> 16
}
