//! The memory of requests and grants that are over, so that a retry gets the first answer and a
//! late message learns how its grant ended.
//!
//! Both memories are rings of [`limits::REMEMBERED`] entries, each shared among principals: see [`Shared`].

use alloc::collections::{BTreeMap, VecDeque};
use core::hash::{Hash, Hasher};

use super::index::Index;
use super::slab::{Number, SlotLink};
use crate::command::Others;
use crate::id::{LeaseKey, Principal, RequestId};
use crate::limits;
use crate::name::LockName;
use crate::outcome::{Ending, Outcome};
use crate::token::Token;

/// The answer a request got.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answered {
    /// The principal that asked.
    pub by: Principal,
    /// The request.
    pub request: RequestId,
    /// The lock it asked for; `None` if it was given up before it arrived.
    pub lock: Option<LockName>,
    /// The other locks it asked for, of a set. A repeat names the same ones. Abandoning it touches no others, even if they
    /// have the token of its answer.
    pub also: Others,
    /// Its first answer.
    pub outcome: Outcome,
}

/// A grant that is over.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Over {
    /// The principal it belonged to.
    pub by: Principal,
    /// The lease it was under.
    pub key: LeaseKey,
    /// The lock.
    pub lock: LockName,
    /// Its token.
    pub token: Token,
    /// How it ended.
    pub how: Ending,
    /// How often it was remembered again. If two are in the wrong order in the memory, the one that was remembered again more
    /// often ended first.
    pub again: u32,
}

/// The number of an entry among all that a ring ever had. It may be that of an entry that is forgotten.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RingPlace(u32);

impl RingPlace {
    /// Before all others.
    const FIRST: RingPlace = RingPlace(0);

    /// The number that so many entries later has.
    fn after(self, entries: usize) -> RingPlace {
        RingPlace(self.0.wrapping_add(entries as u32))
    }

    /// How many entries it is behind another one.
    fn behind(self, other: RingPlace) -> usize {
        self.0.wrapping_sub(other.0) as usize
    }
}

impl Number for RingPlace {
    #[inline]
    fn of(number: u32) -> RingPlace {
        RingPlace(number)
    }

    #[inline]
    fn number(self) -> u32 {
        self.0
    }
}

/// The key of a remembered entry.
pub(super) trait Keyed {
    type Key: Hash + PartialEq;

    /// Among entries with one key the newest is found.
    fn key(&self) -> Self::Key;
}

/// An entry of a memory that is shared among principals.
pub(super) trait Owned: Keyed + Sized {
    /// The principal it belongs to.
    fn by(&self) -> Principal;

    /// Whether anybody looks at an entry after a newer one got its key.
    const IS_READ_WHEN_REPLACED: bool;

    /// It is remembered after the one that was the newest with its key. Only of entries that are read when replaced.
    fn follow(&mut self, before: RingPlace);

    /// It is remembered again.
    fn count_again(&mut self);
}

impl Keyed for Answered {
    type Key = NamedRequest;

    fn key(&self) -> NamedRequest {
        NamedRequest {
            by: self.by,
            request: self.request,
        }
    }
}

impl Owned for Answered {
    #[inline]
    fn by(&self) -> Principal {
        self.by
    }

    const IS_READ_WHEN_REPLACED: bool = false;

    fn follow(&mut self, _: RingPlace) {}

    /// An answer is found by its own key only, so its place among others does not matter.
    fn count_again(&mut self) {}
}

/// The name of a request: its id, under its principal.
#[derive(PartialEq, Eq)]
pub(super) struct NamedRequest {
    pub(super) by: Principal,
    pub(super) request: RequestId,
}

/// The id is random, so it alone decides where an entry lies.
impl Hash for NamedRequest {
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
    dropped: RingPlace,
    newest: RecentIndex,
}

impl<T: Keyed> Ring<T> {
    pub(super) fn new(seed: u64) -> Ring<T> {
        Ring {
            entries: VecDeque::new(),
            dropped: RingPlace::FIRST,
            newest: RecentIndex::new(seed),
        }
    }

    fn forget_oldest(&mut self) -> Option<T> {
        let oldest = self.entries.pop_front()?;
        self.dropped = self.dropped.after(1);
        Some(oldest)
    }

    /// Adds the newest entry, and returns the one that was the newest with its key if that is `wanted`.
    fn push(&mut self, entry: T, wanted: bool) -> Option<RingPlace> {
        assert!(self.entries.len() < MOST, "an index would lose an entry");
        let slot = self.dropped.after(self.entries.len());
        let (entries, dropped) = (&self.entries, self.dropped);
        let key = entry.key();
        let is_same = |other: RingPlace| {
            let other = entries.get(other.behind(dropped));
            other.is_some_and(|other| other.key() == key)
        };
        let before = self.newest.insert(&key, slot, is_same, wanted);
        self.entries.push_back(entry);
        before
    }

    pub(super) fn get(&self, key: &T::Key) -> Option<&T> {
        self.find(key).and_then(|slot| self.at(slot))
    }

    /// From the oldest to the newest, replaced ones too.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.entries.iter()
    }

    fn find(&self, key: &T::Key) -> Option<RingPlace> {
        self.newest
            .find(key, |slot| self.at(slot).is_some_and(|it| it.key() == *key))
    }

    /// `None` for an entry that is forgotten.
    fn at(&self, slot: RingPlace) -> Option<&T> {
        self.entries.get(slot.behind(self.dropped))
    }
}

/// A memory that is shared among principals: one that fills it makes it forget its own entries first (N9).
///
/// ```text
///   full: the oldest entry is looked at ───┬─ of a principal with more than its share ──► forgotten
///         (at most LOOKS for a new one)    └─ of one with less ──► remembered again, as the newest
/// ```
///
/// A share is half of the ring, divided by the number of principals: so at most half of the entries are ever remembered
/// again, and between two that are forgotten the ring grows by less than [`MOST`] leaves room for. All of this follows from
/// the entries in their order, so a machine that was restored from a snapshot forgets at the same moment.
#[derive(Clone, Debug)]
pub(super) struct Shared<T> {
    ring: Ring<T>,
    counts: BTreeMap<Principal, u32>,
    /// The principal of the latest entry, and its count, which is not in `counts`: most entries in a row are of one.
    latest: (Principal, u32),
}

/// The answers to requests.
pub(super) type Answers = Shared<Answered>;

/// How many of the oldest entries are looked at for a new one.
const LOOKS: u32 = 3;

/// The most entries of a ring: with the share above, a third of one half is more than [`limits::REMEMBERED`].
const MOST: usize = limits::REMEMBERED + limits::REMEMBERED / 4;

const _: () = assert!(MOST - limits::REMEMBERED > limits::REMEMBERED / 2 / LOOKS as usize);

impl<T: Owned> Shared<T> {
    pub(super) fn new(seed: u64) -> Shared<T> {
        Shared {
            ring: Ring::new(seed),
            counts: BTreeMap::new(),
            latest: (Principal::ANONYMOUS, 0),
        }
    }

    pub(super) fn remember(&mut self, entry: T) {
        if self.ring.entries.len() >= limits::REMEMBERED {
            self.make_room();
        }
        self.restore(entry);
    }

    /// Remembers one of a snapshot, which has no more of them than there may be.
    pub(super) fn restore(&mut self, entry: T) {
        if self.ring.entries.len() >= MOST - 1 {
            self.forget_oldest();
        }
        *self.count(entry.by()) += 1;
        self.push(entry);
    }

    #[inline]
    fn push(&mut self, entry: T) {
        if let Some(before) = self.ring.push(entry, T::IS_READ_WHEN_REPLACED)
            && let Some(entry) = self.ring.entries.back_mut()
        {
            entry.follow(before);
        }
    }

    fn make_room(&mut self) {
        for _ in 0..LOOKS {
            let Some(oldest) = self.ring.entries.front() else {
                return;
            };
            let (by, count) = (oldest.by(), *self.count(oldest.by()));
            if count <= self.share() && self.remember_again() {
                continue;
            }
            self.ring.forget_oldest();
            *self.count(by) -= 1;
            if self.ring.entries.len() < limits::REMEMBERED {
                return;
            }
        }
    }

    /// Makes the oldest entry the newest, if anybody needs it.
    fn remember_again(&mut self) -> bool {
        let Some(oldest) = self.ring.entries.front() else {
            return false;
        };
        let is_read =
            T::IS_READ_WHEN_REPLACED || self.ring.find(&oldest.key()) == Some(self.ring.dropped);
        let again = is_read.then(|| self.ring.forget_oldest()).flatten();
        let Some(mut again) = again else {
            return false;
        };
        again.count_again();
        self.push(again);
        true
    }

    /// How many entries of one principal are not forgotten for another's.
    fn share(&self) -> u32 {
        let principals = self.counts.len() + usize::from(self.latest.1 > 0);
        (limits::REMEMBERED / 2 / principals.max(1)) as u32
    }

    fn forget_oldest(&mut self) {
        if let Some(oldest) = self.ring.forget_oldest() {
            *self.count(oldest.by()) -= 1;
        }
    }

    /// The count of a principal, which is the latest from now on.
    #[inline]
    fn count(&mut self, by: Principal) -> &mut u32 {
        if self.latest.0 != by {
            self.change_latest(by);
        }
        &mut self.latest.1
    }

    fn change_latest(&mut self, by: Principal) {
        let count = self.counts.remove(&by).unwrap_or(0);
        let (before, its) = core::mem::replace(&mut self.latest, (by, count));
        if its > 0 {
            self.counts.insert(before, its);
        }
    }

    pub(super) fn get(&self, key: &T::Key) -> Option<&T> {
        self.ring.get(key)
    }

    /// From the oldest to the newest, replaced ones too.
    pub(super) fn iter(&self) -> impl Iterator<Item = &T> {
        self.ring.iter()
    }
}

/// Where the newest entry of each key is, among the last [`MOST`].
///
/// ```text
///   older: as many entries as were remembered before …│ newer: … the latest of them
///          └ what the ring has forgotten of these is still here, and finds nothing
/// ```
///
/// Two indexes take turns: when the newer one has as many entries as a ring ever has, it becomes the older one, and the
/// content of the older one is forgotten at once. So no entry ever has to be searched for to be forgotten.
#[derive(Clone, Debug)]
struct RecentIndex {
    newer: Index<RingPlace>,
    older: Index<RingPlace>,
    /// The number of entries added to `newer`.
    taken: usize,
}

impl RecentIndex {
    fn new(seed: u64) -> RecentIndex {
        RecentIndex {
            newer: Index::new(seed),
            older: Index::new(seed),
            taken: 0,
        }
    }

    fn find<K: Hash + ?Sized>(&self, key: &K, is: impl Fn(RingPlace) -> bool) -> Option<RingPlace> {
        let hash = self.newer.hash(key);
        let newer = self.newer.find_hashed(hash, &is);
        newer.or_else(|| self.older.find_hashed(hash, &is))
    }

    /// Adds the newest entry with a key; `is_same` says of another one whether it has the same. Returns the newest one
    /// before it if that is `wanted`.
    fn insert<K: Hash>(
        &mut self,
        key: &K,
        slot: RingPlace,
        is_same: impl Fn(RingPlace) -> bool,
        wanted: bool,
    ) -> Option<RingPlace> {
        if self.taken == MOST {
            core::mem::swap(&mut self.newer, &mut self.older);
            self.newer.clear();
            self.taken = 0;
        }
        self.taken += 1;
        let hash = self.newer.hash(key);
        let before = self.newer.replace_hashed(hash, slot, &is_same);
        if before.is_some() || !wanted {
            return before;
        }
        self.older.find_hashed(hash, is_same)
    }
}

/// Grants that are over, found by their lease.
///
/// ```text
///   lease ──► its newest in the memory ──► the one before ──► …      (links by slot number)
/// ```
///
/// Only the latest [`CHAIN`] endings of a lease are looked at, so that one lease with many grants cannot
/// make anything slow.
#[derive(Clone, Debug)]
pub(super) struct Endings(Shared<Linked>);

#[derive(Clone, Debug)]
struct Linked {
    over: Over,
    /// The lease's ending before this one, if it had any; perhaps forgotten by now.
    before: SlotLink<RingPlace>,
}

impl Keyed for Linked {
    type Key = LeaseKey;

    fn key(&self) -> LeaseKey {
        self.over.key
    }
}

impl Owned for Linked {
    #[inline]
    fn by(&self) -> Principal {
        self.over.by
    }

    const IS_READ_WHEN_REPLACED: bool = true;

    fn follow(&mut self, before: RingPlace) {
        self.before = SlotLink::to(before);
    }

    fn count_again(&mut self) {
        self.over.again = self.over.again.saturating_add(1);
    }
}

/// Endings of one lease that are looked at.
const CHAIN: usize = 64;

impl Endings {
    pub(super) fn new(seed: u64) -> Endings {
        Endings(Shared::new(seed))
    }

    /// Remembers an ending.
    pub(super) fn remember(&mut self, over: Over) {
        self.0.remember(Linked {
            over,
            before: SlotLink::NONE,
        });
    }

    /// Remembers one of a snapshot.
    pub(super) fn restore(&mut self, over: Over) {
        self.0.restore(Linked {
            over,
            before: SlotLink::NONE,
        });
    }

    /// The latest ending of a lease that is meant.
    pub(super) fn latest(&self, key: &LeaseKey, is_meant: impl Fn(&Over) -> bool) -> Option<&Over> {
        let all = self.of_lease(key).filter(|over| is_meant(over));
        // The first among those that were remembered again least often.
        all.min_by_key(|over| over.again)
    }

    /// The endings of a lease, as far back as anybody looks. Each is older than those before it that were remembered again as
    /// often.
    pub(super) fn of_lease(&self, key: &LeaseKey) -> impl Iterator<Item = &Over> {
        let ring = &self.0.ring;
        core::iter::successors(ring.get(key), |linked| ring.at(linked.before.get()?))
            .take(CHAIN)
            .map(|linked| &linked.over)
            // A slot that was forgotten long ago may be another lease's by now.
            .take_while(|over| over.key == *key)
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

    /// The control: a memory that nobody shares.
    impl<T: Keyed> Ring<T> {
        fn remember(&mut self, entry: T) {
            if self.entries.len() >= limits::REMEMBERED {
                self.forget_oldest();
            }
            self.push(entry, false);
        }
    }

    fn answered(by: u8, number: u128) -> Answered {
        Answered {
            by: Principal::from_bytes([by; 16]),
            request: RequestId::from_bytes(number.to_be_bytes()),
            lock: None,
            also: crate::Others::NONE,
            outcome: Outcome::Abandoned,
        }
    }

    /// The control is a ring without shares, which forgets the modest one's answers, too.
    #[test]
    fn a_principal_that_asks_for_much_makes_the_memory_forget_its_own_answers() {
        const MODEST: u128 = 20_000;
        const RING: u128 = limits::REMEMBERED as u128;
        let (mut answers, mut plain) = (Answers::new(7), Ring::new(7));
        let mut remember = |answers: &mut Answers, by, number| {
            answers.remember(answered(by, number));
            plain.remember(answered(by, number));
            assert!(answers.ring.entries.len() < MOST);
        };
        let asked = |by, number| answered(by, number).key();
        for number in 0..MODEST {
            remember(&mut answers, 1, number);
        }
        for number in 0..5 * RING {
            remember(&mut answers, 2, number);
            if number % 1_000 == 0 {
                assert!(
                    answers.get(&asked(1, number % MODEST)).is_some(),
                    "{number}"
                );
                assert!(answers.get(&asked(2, number)).is_some());
            }
        }
        let kept = (0..MODEST).filter(|number| answers.get(&asked(1, *number)).is_some());
        assert_eq!(kept.count(), MODEST as usize);
        // Principal 1 does not have the ring to itself: the rest of it contains the latest answers of principal 2.
        let latest = 5 * RING - (RING - 2 * MODEST)..5 * RING;
        assert!(
            latest
                .clone()
                .all(|number| answers.get(&asked(2, number)).is_some())
        );
        assert!(answers.get(&asked(2, 0)).is_none());
        assert!(answers.iter().count() < MOST);
        assert!((0..MODEST).all(|number| plain.get(&asked(1, number)).is_none()));
    }

    #[test]
    fn a_memory_that_was_restored_forgets_at_the_same_moment() {
        let mut answers = Answers::new(7);
        let more = |answers: &mut Answers, from: u128| {
            for number in from..from + limits::REMEMBERED as u128 {
                let by = if number % 16 == 0 {
                    (number % 7) as u8
                } else {
                    9
                };
                answers.remember(answered(by, number % 300_000));
            }
        };
        more(&mut answers, 0);
        more(&mut answers, 1 << 20);
        let mut restored = Answers::new(8);
        answers.iter().cloned().for_each(|it| restored.restore(it));
        for turn in 2..5 {
            more(&mut answers, turn << 20);
            more(&mut restored, turn << 20);
            assert!(answers.iter().eq(restored.iter()), "{turn}");
        }
    }

    fn ended(by: u8, lease: u64, token: u64, how: Ending) -> Over {
        Over {
            by: Principal::from_bytes([by; 16]),
            key: LeaseKey::from_bytes((u128::from(by) << 64 | u128::from(lease)).to_be_bytes()),
            lock: LockName::new("lock").unwrap(),
            token: Token::new(token).unwrap(),
            how,
            again: 0,
        }
    }

    /// Leases with three grants; the first ended last. Controls: a ring without shares, which forgets them, and the newest
    /// ending of a lease in the memory, which is not the latest while the endings are remembered again.
    #[test]
    fn a_principal_that_ends_much_makes_the_memory_forget_its_own_endings() {
        const LEASES: u64 = 5_000;
        const RING: u64 = limits::REMEMBERED as u64;
        let (mut endings, mut plain) = (Endings::new(7), Ring::new(7));
        let mut remember = |endings: &mut Endings, over: Over| {
            plain.remember(Linked {
                over: over.clone(),
                before: SlotLink::NONE,
            });
            endings.remember(over);
            assert!(endings.0.ring.entries.len() < MOST);
        };
        let of_modest = |lease, token, how| ended(1, lease, 3 * lease + token, how);
        for lease in 0..LEASES {
            remember(&mut endings, of_modest(lease, 3, Ending::Released));
            remember(&mut endings, of_modest(lease, 2, Ending::Revoked));
            remember(&mut endings, of_modest(lease, 1, Ending::Expired));
        }
        let (mut restored, mut out_of_order) = (Endings::new(8), 0);
        for number in 1..=5 * RING {
            let other = ended(2, number, number, Ending::Released);
            remember(&mut endings, other.clone());
            if number == 3 * RING {
                endings.iter().cloned().for_each(|it| restored.restore(it));
            } else if number > 3 * RING {
                restored.remember(other.clone());
            }
            let lease = number % LEASES;
            for (known, is_whole) in [(&endings, true), (&restored, number > 3 * RING)] {
                let last = of_modest(lease, 1, Ending::Expired);
                let found = |token| known.latest(&last.key, |over| over.token.get() == token);
                let latest = known.latest(&last.key, |_| true).filter(|_| is_whole);
                assert_eq!(
                    latest.map(|over| (over.token, over.how)),
                    is_whole.then_some((last.token, last.how)),
                    "{number}"
                );
                let all = (1..=3).filter(|token| found(3 * lease + token).is_some());
                assert!(!is_whole || all.count() == 3, "{number}");
                let newest = known.of_lease(&last.key).next();
                out_of_order += u32::from(newest.is_some_and(|over| over.token != last.token));
            }
            assert!(endings.latest(&other.key, |_| true).is_some());
        }
        assert!(out_of_order > 0);
        assert!(restored.iter().eq(endings.iter()));
        let first = ended(2, 1, 1, Ending::Released);
        assert!(endings.latest(&first.key, |_| true).is_none());
        assert!((0..LEASES).all(|lease| {
            plain
                .get(&of_modest(lease, 1, Ending::Expired).key)
                .is_none()
        }));
    }

    #[derive(Debug, PartialEq)]
    struct Entry {
        key: u64,
        number: u64,
    }

    impl Keyed for Entry {
        type Key = u64;

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

    /// Compares the ring with a map that forgets nothing: the last number of each key.
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
