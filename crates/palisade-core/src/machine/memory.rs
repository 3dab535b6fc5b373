//! The memory of requests and grants that are over, so that a retry gets the first answer and a
//! late message learns how its grant ended.
//!
//! Both memories are rings of [`limits::REMEMBERED`] entries; the oldest makes room.

use alloc::collections::VecDeque;
use core::hash::{Hash, Hasher};

use super::index::Index;
use super::slab::{NIL, Slot};
use crate::command::Others;
use crate::id::{LeaseKey, Principal, RequestId};
use crate::limits;
use crate::name::LockName;
use crate::outcome::{Ending, Outcome};
use crate::token::Token;

/// The answer a request got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// Who asked.
    pub by: Principal,
    /// The request.
    pub request: RequestId,
    /// The lock it asked for; `None` if it was given up before it arrived.
    pub lock: Option<LockName>,
    /// The other locks it asked for, of a set. A repeat names the same ones, and abandoning it touches no others, whatever
    /// has the token of its answer.
    pub also: Others,
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

/// The key of a remembered entry.
pub(super) trait Keyed {
    type Key<'a>: Hash + PartialEq
    where
        Self: 'a;

    /// Among entries with one key the newest is found.
    fn key(&self) -> Self::Key<'_>;
}

impl Keyed for Answered {
    type Key<'a> = Asked;

    fn key(&self) -> Asked {
        Asked {
            by: self.by,
            request: self.request,
        }
    }
}

/// The name of a request: its id, under its principal.
#[derive(PartialEq, Eq)]
pub(super) struct Asked {
    pub(super) by: Principal,
    pub(super) request: RequestId,
}

/// The id is random, so it alone decides where an entry lies.
impl Hash for Asked {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.request.hash(state);
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
    newest: Recent,
}

impl<T: Keyed> Ring<T> {
    pub(super) fn new(seed: u64) -> Ring<T> {
        Ring {
            entries: VecDeque::new(),
            dropped: 0,
            newest: Recent::new(seed),
        }
    }

    /// Remembers an entry; the oldest is forgotten when the ring is full.
    pub(super) fn remember(&mut self, entry: T) {
        if self.entries.len() >= limits::REMEMBERED {
            self.entries.pop_front();
            self.dropped = self.dropped.wrapping_add(1);
        }
        let slot = self.dropped.wrapping_add(self.entries.len() as Slot);
        self.entries.push_back(entry);
        let (entries, dropped) = (&self.entries, self.dropped);
        self.newest.insert(slot, |slot| {
            entries[slot.wrapping_sub(dropped) as usize].key()
        });
    }

    pub(super) fn get<'a>(&'a self, key: &T::Key<'a>) -> Option<&'a T> {
        self.find(key).and_then(|slot| self.at(slot))
    }

    /// From the oldest to the newest, replaced ones too.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.entries.iter()
    }

    fn find<'a>(&'a self, key: &T::Key<'a>) -> Option<Slot> {
        self.newest
            .find(key, |slot| self.at(slot).is_some_and(|it| it.key() == *key))
    }

    /// `None` for an entry that is forgotten.
    fn at(&self, slot: Slot) -> Option<&T> {
        self.entries.get(slot.wrapping_sub(self.dropped) as usize)
    }
}

/// Where the newest entry of each key is, among the last [`limits::REMEMBERED`].
///
/// ```text
///   older: as many entries as were remembered before …│ newer: … the latest of them
///          └ what the ring has forgotten of these is still here, and finds nothing
/// ```
///
/// Two indexes take turns: when the newer one has taken in a whole ring, it becomes the older one, and all
/// that the older one knew is forgotten at once. So no entry ever has to be looked for to be forgotten.
#[derive(Clone, Debug)]
struct Recent {
    newer: Index,
    older: Index,
    /// Entries that `newer` took in.
    taken: usize,
}

impl Recent {
    fn new(seed: u64) -> Recent {
        Recent {
            newer: Index::new(seed),
            older: Index::new(seed),
            taken: 0,
        }
    }

    fn find<K: Hash + ?Sized>(&self, key: &K, is: impl Fn(Slot) -> bool) -> Option<Slot> {
        let hash = self.newer.hash(key);
        let newer = self.newer.find_hashed(hash, &is);
        newer.or_else(|| self.older.find_hashed(hash, &is))
    }

    /// `key_of` gives the key of any entry that is not forgotten.
    fn insert<K: Hash + PartialEq>(&mut self, slot: Slot, key_of: impl Fn(Slot) -> K) {
        if self.taken == limits::REMEMBERED {
            core::mem::swap(&mut self.newer, &mut self.older);
            self.newer.clear();
            self.taken = 0;
        }
        self.taken += 1;
        let key = key_of(slot);
        self.newer.replace(&key, slot, |other| key_of(other) == key);
    }
}

/// Grants that are over, found by their lease.
///
/// ```text
///   lease ──► its newest ending ──► the one before ──► …      (links by slot number)
/// ```
///
/// Only the latest [`CHAIN`] endings of a lease are looked at, so that one lease with many grants cannot
/// make anything slow.
#[derive(Clone, Debug)]
pub(super) struct Endings(Ring<Linked>);

#[derive(Clone, Debug)]
struct Linked {
    over: Over,
    /// The lease's ending before this one, if it had any; perhaps forgotten by now.
    before: Slot,
}

impl Keyed for Linked {
    type Key<'a> = LeaseKey;

    fn key(&self) -> LeaseKey {
        self.over.key
    }
}

/// Endings of one lease that are looked at.
const CHAIN: usize = 64;

impl Endings {
    pub(super) fn new(seed: u64) -> Endings {
        Endings(Ring::new(seed))
    }

    /// Remembers an ending; the oldest is forgotten when there are too many.
    pub(super) fn remember(&mut self, over: Over) {
        let before = self.0.find(&over.key).unwrap_or(NIL);
        self.0.remember(Linked { over, before });
    }

    /// The endings of a lease, the newest first, as far back as anybody looks.
    pub(super) fn of_lease(&self, key: &LeaseKey) -> impl Iterator<Item = &Over> {
        core::iter::successors(self.0.get(key), |linked| self.0.at(linked.before))
            .take(CHAIN)
            .map(|linked| &linked.over)
    }

    /// From the oldest to the newest.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Over> {
        self.0.iter().map(|linked| &linked.over)
    }
}

#[cfg(test)]
mod tests {
    use alloc::collections::BTreeMap;

    use super::*;

    #[derive(Debug, PartialEq)]
    struct Entry {
        key: u64,
        number: u64,
    }

    impl Keyed for Entry {
        type Key<'a> = u64;

        fn key(&self) -> u64 {
            self.key
        }
    }

    /// Keys that come back after one, some, almost as many, more and more than twice as many entries as a ring has.
    fn key_of(number: u64) -> u64 {
        let ring = limits::REMEMBERED as u64 / 5;
        let (kind, turn) = (number % 5, number / 5);
        let cycles = [1, 199, ring - 1, ring + 1, 2 * ring + 1];
        kind + 5 * (turn % cycles[kind as usize])
    }

    /// What a ring must know, kept without forgetting anything: the last number of each key.
    #[test]
    fn the_newest_of_each_key_is_found_until_it_is_the_oldest() {
        let ring_size = limits::REMEMBERED as u64;
        let (mut ring, mut last) = (Ring::new(7), BTreeMap::new());
        let (mut found, mut forgotten, mut again) = (0, 0, 0);
        for number in 0..4 * ring_size + 3 {
            let key = key_of(number);
            ring.remember(Entry { key, number });
            again += u32::from(last.insert(key, number).is_some());
            // Around the places where the oldest entries are, and all over the ring.
            for back in [0, 1, number % ring_size, ring_size - 1, ring_size] {
                let Some(asked) = number.checked_sub(back).map(key_of) else {
                    continue;
                };
                let known = last
                    .get(&asked)
                    .filter(|newest| number - **newest < ring_size);
                assert_eq!(
                    ring.get(&asked).map(|entry| &entry.number),
                    known,
                    "key {asked} at {number}"
                );
                match known {
                    Some(_) => found += 1,
                    None => forgotten += 1,
                }
            }
        }
        assert_eq!(ring.iter().count(), limits::REMEMBERED);
        assert!(found > 0 && forgotten > 0 && again > 0);
    }
}
