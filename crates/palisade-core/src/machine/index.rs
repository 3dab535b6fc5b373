//! From a name or a secret to a slot, by hash. There is no way to iterate, so hashing order cannot
//! reach an effect; the seed only decides where things lie.
//!
//! ```text
//!   home      0    1    2    3    4    5    6    7   tail
//!   hash    │ 03 │    │ 20 │ 27 │ 2f │ 41 │    │ 7c │ 7d │ …      home: the first digit
//! ```
//!
//! Linear probing that keeps its entries sorted by hash (O. Amble and D. E. Knuth, "Ordered hash tables", 1974). A search for
//! an absent key ends at the first higher hash, an entry lies with its neighbours in one or two cache lines, and as hashes
//! are stored, a table grows and shrinks without asking for a key.

use alloc::boxed::Box;
use alloc::vec;
use alloc::vec::Vec;
use core::hash::{Hash, Hasher};
use core::marker::PhantomData;

use foldhash::SharedSeed;
use foldhash::fast::FoldHasher;

use super::slab::Number;

/// The number of sub-tables. Each grows on its own, so that growing moves only some of the entries at a time. With eighty,
/// tables that hold a million entries, or twice or half as many, are well filled.
const PARTS: usize = 80;

/// Finds slots by key. The keys live in the records that the slots name; the caller passes a function that compares them.
#[derive(Clone, Debug)]
pub(super) struct Index<S> {
    /// An array, so that [`part`] needs no check.
    parts: Box<[Part; PARTS]>,
    seeds: Seeds,
    slots: PhantomData<S>,
}

/// The hash's seeds, all derived from the machine's secret seed. With public constants, a caller that chooses binary keys,
/// such as request ids, could make one factor of the hash zero. All its keys would then collide, whatever the rest of the
/// seed is.
#[derive(Clone, Debug)]
struct Seeds {
    own: u64,
    shared: SharedSeed,
}

impl<S: Number> Index<S> {
    pub(super) fn new(seed: u64) -> Index<S> {
        Index {
            parts: Box::new([const { Part::EMPTY }; PARTS]),
            seeds: Seeds {
                own: seed,
                shared: SharedSeed::from_u64(seed),
            },
            slots: PhantomData,
        }
    }

    /// Makes room for this many more entries at once.
    pub(super) fn reserve(&mut self, entries: usize) {
        let mean = entries / PARTS;
        // Four standard deviations: hardly any part gets more entries.
        let each = mean + 4 * mean.isqrt();
        for part in &mut *self.parts {
            part.reserve(each);
        }
    }

    /// Gives back the room of tables that are mostly empty.
    pub(super) fn fit(&mut self) {
        self.parts.iter_mut().for_each(Part::fit);
    }

    pub(super) fn hash<K: Hash + ?Sized>(&self, key: &K) -> u64 {
        let mut hasher = FoldHasher::with_seed(self.seeds.own, &self.seeds.shared);
        key.hash(&mut hasher);
        hasher.finish()
    }

    /// Reads where an entry with this key would lie, for a search that comes soon: the processor waits for several such reads
    /// at once.
    #[inline]
    pub(super) fn touch<K: Hash + ?Sized>(&self, key: &K) {
        let hash = self.hash(key);
        let part = &self.parts[part(hash)];
        let home = part.home(short(hash));
        core::hint::black_box(part.entries.get(home).copied());
    }

    pub(super) fn find<K: Hash + ?Sized>(&self, key: &K, is: impl Fn(S) -> bool) -> Option<S> {
        self.find_hashed(self.hash(key), is)
    }

    /// As [`find`](Index::find), with a hash that this index made, or another one with the same seed.
    #[inline]
    pub(super) fn find_hashed(&self, hash: u64, is: impl Fn(S) -> bool) -> Option<S> {
        let found = self.parts[part(hash)].find(short(hash), |slot| is(S::of(slot)));
        found.map(S::of)
    }

    /// Inserts a slot under a key that is not in here.
    pub(super) fn insert<K: Hash + ?Sized>(&mut self, key: &K, slot: S) {
        self.insert_hashed(self.hash(key), slot);
    }

    /// As [`insert`](Index::insert), with a hash that this index made.
    pub(super) fn insert_hashed(&mut self, hash: u64, slot: S) {
        self.replace_hashed(hash, slot, |_| false);
    }

    /// As [`insert_hashed`](Index::insert_hashed), but an entry for which `is` is true makes room for the new one, and is
    /// returned.
    #[inline]
    pub(super) fn replace_hashed(
        &mut self,
        hash: u64,
        slot: S,
        is: impl Fn(S) -> bool,
    ) -> Option<S> {
        let part = &mut self.parts[part(hash)];
        let entry = Entry::new(short(hash), slot.number());
        match part.search(entry.hash(), |slot| is(S::of(slot))) {
            Ok(place) => {
                let before = core::mem::replace(&mut part.entries[place], entry);
                Some(S::of(before.slot()))
            }
            Err(place) => {
                part.insert(place, entry);
                None
            }
        }
    }

    /// Forgets everything; the room stays.
    pub(super) fn clear(&mut self) {
        self.parts.iter_mut().for_each(Part::clear);
    }

    pub(super) fn remove<K: Hash + ?Sized>(&mut self, key: &K, slot: S) {
        let (hash, slot) = (self.hash(key), slot.number());
        let part = &mut self.parts[part(hash)];
        let found = part.search(short(hash), |found| found == slot);
        let Ok(place) = found else {
            unreachable!("slot {slot} is not in the index under its key");
        };
        part.remove(place);
    }
}

/// The part that a hash belongs to, by bits that [`short`] does not take.
fn part(hash: u64) -> usize {
    ((hash >> 41) as u16 as usize * PARTS) >> 16
}

/// The bits of a hash that a part compares: the lower half, which never equals the hash of an empty place.
fn short(hash: u64) -> u32 {
    (hash as u32).min(NOTHING - 1)
}

/// The hash of an empty place, higher than all others: a search ends there as at any higher hash.
const NOTHING: u32 = u32::MAX;

/// The least number of homes.
const LEAST: usize = 8;

/// Places after the last home, for entries that do not find room in theirs.
const TAIL: usize = 8;

/// A hash above a slot, in one word that is compared and moved as a whole.
#[derive(Clone, Copy, Debug)]
struct Entry(u64);

impl Entry {
    const EMPTY: Entry = Entry::new(NOTHING, 0);

    const fn new(hash: u32, slot: u32) -> Entry {
        Entry((hash as u64) << u32::BITS | slot as u64)
    }

    const fn hash(self) -> u32 {
        (self.0 >> u32::BITS) as u32
    }

    const fn slot(self) -> u32 {
        self.0 as u32
    }

    const fn is_empty(self) -> bool {
        self.0 >= Entry::EMPTY.0
    }
}

/// One table. Entries with one hash lie in the order in which they came.
#[derive(Clone, Debug)]
struct Part {
    /// A power of two of homes, or nothing at all, and a tail that grows.
    entries: Vec<Entry>,
    len: usize,
    /// How many entries it may contain before it grows.
    room: usize,
    /// How far a hash is shifted to give its home.
    shift: u32,
}

impl Part {
    /// No home at all, wherever a hash is shifted to.
    const EMPTY: Part = Part {
        entries: Vec::new(),
        len: 0,
        room: 0,
        shift: u32::BITS - 1,
    };

    /// `homes` is a power of two, at least [`LEAST`].
    fn with_homes(homes: usize) -> Part {
        Part {
            entries: vec![Entry::EMPTY; homes + TAIL],
            len: 0,
            room: homes / 8 * 7,
            shift: u32::BITS - homes.trailing_zeros(),
        }
    }

    /// The least number of homes for this many entries: at most seven eighths of them are taken.
    fn homes_for(entries: usize) -> usize {
        let homes = entries.saturating_mul(8).div_ceil(7);
        homes.next_power_of_two().max(LEAST)
    }

    #[inline]
    fn home(&self, hash: u32) -> usize {
        (hash >> self.shift) as usize
    }

    /// The places from the home of a hash on.
    #[inline]
    fn places_for(&self, hash: u32) -> &[Entry] {
        match self.entries.get(self.home(hash)..) {
            Some(places) => places,
            None => {
                assert!(self.entries.is_empty(), "a hash has no home");
                &[]
            }
        }
    }

    /// The slot of the entry with this hash for which `is` is true.
    #[inline]
    fn find(&self, hash: u32, is: impl Fn(u32) -> bool) -> Option<u32> {
        for entry in self.places_for(hash) {
            if entry.hash() > hash {
                return None;
            }
            if entry.hash() == hash && is(entry.slot()) {
                return Some(entry.slot());
            }
        }
        None
    }

    /// Where the entry is for which `is` is true, or else where a new one with this hash belongs.
    #[inline]
    fn search(&self, hash: u32, is: impl Fn(u32) -> bool) -> Result<usize, usize> {
        let places = self.places_for(hash);
        let home = self.entries.len() - places.len();
        for (entry, place) in places.iter().zip(home..) {
            if entry.hash() > hash {
                return Err(place);
            }
            if entry.hash() == hash && is(entry.slot()) {
                return Ok(place);
            }
        }
        Err(self.entries.len())
    }

    /// Puts an entry where [`search`](Part::search) has said that it belongs.
    fn insert(&mut self, place: usize, entry: Entry) {
        if self.len == self.room {
            self.resize(Part::homes_for(self.len + 1));
            let (Ok(place) | Err(place)) = self.search(entry.hash(), |_| false);
            return self.insert(place, entry);
        }
        self.len += 1;
        let mut pushed = entry;
        for here in &mut self.entries[place..] {
            pushed = core::mem::replace(here, pushed);
            if pushed.is_empty() {
                return;
            }
        }
        self.entries.push(pushed);
    }

    /// Those behind it move up, as far as the next that is in its home.
    fn remove(&mut self, place: usize) {
        let mut gap = place;
        while let Some(next) = self.entries.get(gap + 1).copied() {
            if next.is_empty() || self.home(next.hash()) == gap + 1 {
                break;
            }
            self.entries[gap] = next;
            gap += 1;
        }
        self.entries[gap] = Entry::EMPTY;
        self.len -= 1;
    }

    fn reserve(&mut self, more: usize) {
        if self.len + more > self.room {
            self.resize(Part::homes_for(self.len + more));
        }
    }

    fn fit(&mut self) {
        if self.len == 0 {
            *self = Part::EMPTY;
        } else if self.room / 4 > self.len {
            self.resize(Part::homes_for(2 * self.len));
        }
    }

    fn clear(&mut self) {
        self.entries.fill(Entry::EMPTY);
        self.len = 0;
    }

    /// Moves the entries in one pass over old and new places, because their order stays.
    fn resize(&mut self, homes: usize) {
        let old = core::mem::replace(self, Part::with_homes(homes));
        self.len = old.len;
        let mut free = 0;
        for entry in old.entries.into_iter().filter(|entry| !entry.is_empty()) {
            let place = self.home(entry.hash()).max(free);
            match self.entries.get_mut(place) {
                Some(here) => *here = entry,
                None => self.entries.push(entry),
            }
            free = place + 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every entry is in its home, or later without a gap in between, and the hashes ascend.
    fn assert_in_order(part: &Part) {
        let taken = part.entries.iter().zip(0..);
        let taken: Vec<_> = taken.filter(|(entry, _)| !entry.is_empty()).collect();
        assert_eq!(taken.len(), part.len);
        assert!(8 * part.len <= 7 * part.entries.len());
        assert!(taken.is_sorted_by_key(|(entry, _)| entry.hash()));
        for (entry, place) in taken {
            let way = &part.entries[part.home(entry.hash())..=place];
            assert!(
                way.iter().all(|entry| !entry.is_empty()),
                "a gap before {place}"
            );
        }
    }

    #[test]
    fn no_hash_is_that_of_an_empty_place_and_its_upper_bits_are_its_home() {
        assert_eq!([short(7), short(u64::MAX)], [7, NOTHING - 1]);
        let part = Part::with_homes(8);
        let homes = [0, 0x1FFF_FFFF, 0x2000_0000, NOTHING - 1].map(|hash| part.home(hash));
        assert_eq!(homes, [0, 0, 1, 7]);
        assert_eq!([Part::EMPTY.room, part.room], [0, 7]);
        assert_eq!([0, 7, 8, 14, 15].map(Part::homes_for), [8, 8, 16, 16, 32]);
    }

    fn random(seed: &mut u64) -> u64 {
        *seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        *seed >> 33
    }

    /// Few hashes, at both ends and in one cluster, so that nearly all entries are pushed aside by others.
    fn hash_of(slot: u32) -> u32 {
        let ends = [0, NOTHING - 1, NOTHING / 2];
        match slot % 4 {
            kind @ 0..3 => ends[kind as usize].saturating_sub(slot % 7),
            _ => slot.wrapping_mul(0x9E37_79B9).min(NOTHING - 1),
        }
    }

    #[test]
    fn what_is_in_is_found_and_nothing_else() {
        let (mut seed, mut part) = (1, Part::EMPTY);
        let mut inside = alloc::collections::BTreeSet::new();
        for round in 0..20_000 {
            let slot = random(&mut seed) as u32 % 600;
            // It fills, and it empties.
            let adds = random(&mut seed) % 5 < if round % 8_000 < 4_000 { 4 } else { 1 };
            let found = part.search(hash_of(slot), |found| found == slot);
            assert_eq!(
                found.is_ok(),
                inside.contains(&slot),
                "{slot} in round {round}"
            );
            match (found, adds) {
                (Err(place), true) => {
                    let hash = hash_of(slot);
                    part.insert(place, Entry::new(hash, slot));
                    inside.insert(slot);
                }
                (Ok(place), false) => {
                    part.remove(place);
                    inside.remove(&slot);
                }
                _ => {}
            }
            if round % 500 == 0 {
                part.fit();
            }
            assert_in_order(&part);
        }
        part.clear();
        assert_in_order(&part);
        assert!(
            part.len == 0 && (0..600).all(|slot| part.search(hash_of(slot), |_| true).is_err())
        );
        part.fit();
        assert!(part.entries.is_empty());
    }

    /// Many keys with one hash make searches slow, but do not enlarge the table.
    #[test]
    fn a_thousand_entries_of_one_hash_take_no_more_room_than_others() {
        for hash in [0, NOTHING - 1] {
            let mut part = Part::EMPTY;
            for slot in 0..1_000 {
                let place = part.search(hash, |_| false).unwrap_err();
                part.insert(place, Entry::new(hash, slot));
            }
            assert_in_order(&part);
            let slots = part.entries.iter().filter(|entry| !entry.is_empty());
            assert!(slots.map(|entry| entry.slot()).eq(0..1_000));
            assert!(part.entries.len() <= Part::homes_for(1_000) + 1_000 + TAIL);
        }
    }

    /// How many entries a search compares at most, of keys that a caller chose.
    fn longest_search<K: Hash + PartialEq>(keys: &[K], seed: u64) -> usize {
        let mut index: Index<u32> = Index::new(seed);
        for (key, slot) in keys.iter().zip(0..) {
            index.insert(key, slot);
        }
        let compared = |key| {
            let count = core::cell::Cell::new(0);
            index.find(key, |slot| {
                count.set(count.get() + 1);
                keys[slot as usize] == *key
            });
            count.get()
        };
        keys.iter().map(compared).max().unwrap_or(0)
    }

    /// Keys that make one factor of foldhash zero where its constants are the published ones: their last eight bytes, or
    /// those before their middle, are a constant. With [`foldhash::fast::FixedState`] a search compares all of them.
    #[test]
    fn chosen_keys_cost_what_random_ones_cost() {
        let constants: [u64; 2] = [0x3f84_d5b5_b547_0917, 0xc0ac_29b7_c97c_50dd];
        for seed in [0, 1, 0x5eed_5eed_5eed_5eed] {
            for constant in constants {
                let short: Vec<[u8; 16]> = (0..4_096_u64)
                    .map(|n| (u128::from(n) | u128::from(constant) << 64).to_le_bytes())
                    .collect();
                assert!(longest_search(&short, seed) <= 3, "{constant:x} {seed}");
                let long: Vec<[u64; 4]> =
                    (0..4_096).map(|n| [n, n ^ 7, constant, constant]).collect();
                assert!(longest_search(&long, seed) <= 3, "{constant:x} {seed}");
            }
        }
        // The control: the same keys under the published constants all have one hash.
        let fixed = foldhash::fast::FixedState::with_seed(7);
        let hash = |n: u64| {
            let key = (u128::from(n) | u128::from(constants[0]) << 64).to_le_bytes();
            core::hash::BuildHasher::hash_one(&fixed, crate::id::RequestId::from_bytes(key))
        };
        assert!((1..4_096).all(|n| hash(n) == hash(0)));
    }

    #[test]
    fn what_was_reserved_does_not_grow() {
        let mut index: Index<u32> = Index::new(3);
        index.reserve(100_000);
        let room =
            |index: &Index<u32>| index.parts.iter().map(|part| part.room).collect::<Vec<_>>();
        let before = room(&index);
        for slot in 0..100_000 {
            index.insert(&u64::from(slot), slot);
        }
        assert_eq!(room(&index), before);
        let before = index.replace_hashed(index.hash(&7_u64), 100_000, |slot| slot == 7);
        assert_eq!(before, Some(7));
        assert_eq!(index.find(&7_u64, |_| true), Some(100_000));
        index.remove(&7_u64, 100_000);
        assert_eq!(index.find(&7_u64, |_| true), None);
    }
}
