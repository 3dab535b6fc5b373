//! How long a request waits at most: for everything ahead of it when it arrived, and for nothing that came later (M2,
//! S6).
//!
//! The bound is computed when a request arrives. Everything ahead of it that it cannot share a lock with is over at a
//! known instant: a holder when its lease ends, a waiting request one lease after its own bound. The latest of these is
//! the bound, so it includes the waits of the requests ahead. All instants are whole milliseconds, where timers are
//! exact.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};

use palisade_core::{Command, GrantRef, Granted, Outcome, Timestamp};

use crate::world::{Ask, World, ask, ask_all, lock_name, ms, request};

/// A request of a storm: when it arrives, its mode, and how long it would hold.
#[derive(Clone)]
struct Arrival {
    at: u64,
    locks: Vec<String>,
    shared: bool,
    ttl: u64,
    /// When it releases, counted from its grant; its lease ends first if this is the time to live.
    uses: u64,
}

impl Arrival {
    fn conflicts_with(&self, other: &Arrival) -> bool {
        let mut locks = self.locks.iter();
        !(self.shared && other.shared) && locks.any(|lock| other.locks.contains(lock))
    }

    fn ask(&self, id: u8) -> Ask {
        let (client, patience) = (format!("c{id}"), 80_000_000);
        let locks: Vec<&str> = self.locks.iter().map(String::as_str).collect();
        let wish = match (&locks[..], self.shared) {
            ([lock], true) => ask(lock, &client).shared(),
            ([lock], false) => ask(lock, &client),
            (locks, _) => ask_all(locks, &client),
        };
        wish.ttl(self.ttl).wait(patience).request(id)
    }
}

/// A rule that the control arms drop.
#[derive(Clone, Copy, PartialEq)]
enum Dropped {
    Nothing,
    /// Waiting sets lose their places when a request for one of their locks comes (M2).
    PlaceOfSets,
    /// Waiting writers lose their places when a reader comes (S6).
    PlaceOfWriters,
}

impl Dropped {
    fn loses(self, waits: &Arrival, comes: &Arrival) -> bool {
        waits.conflicts_with(comes)
            && match self {
                Dropped::Nothing => false,
                Dropped::PlaceOfSets => waits.locks.len() > 1 && comes.locks.len() == 1,
                Dropped::PlaceOfWriters => !waits.shared && comes.shared,
            }
    }
}

/// A request, in milliseconds.
struct Waited {
    arrived: u64,
    /// By when it must have been granted.
    bound: u64,
    granted: u64,
}

struct Storm<'a> {
    world: World,
    arrivals: &'a [Arrival],
    dropped: Dropped,
    bounds: Vec<u64>,
    granted: BTreeMap<u8, u64>,
    /// Those that do not hold yet, in order of arrival.
    waiting: Vec<u8>,
    releases: BinaryHeap<Reverse<(u64, u8)>>,
    keys: BTreeMap<u8, Granted>,
    released: BTreeSet<u8>,
}

impl<'a> Storm<'a> {
    /// Runs to the end: every request is granted once, and over.
    fn run(arrivals: &'a [Arrival], dropped: Dropped) -> Vec<Waited> {
        let mut storm = Storm {
            world: World::new(),
            arrivals,
            dropped,
            bounds: Vec::new(),
            granted: BTreeMap::new(),
            waiting: Vec::new(),
            releases: BinaryHeap::new(),
            keys: BTreeMap::new(),
            released: BTreeSet::new(),
        };
        loop {
            let next = arrivals.get(storm.bounds.len()).map(|next| next.at);
            let release = storm.releases.peek().map(|Reverse((at, _))| *at);
            let due = storm.world.machine.next_due().map(millis);
            let Some(at) = [next, release, due].into_iter().flatten().min() else {
                break;
            };
            storm.world.now = Timestamp::ZERO.after(ms(at));
            if due == Some(at) {
                storm.apply(None, Command::Expire);
            } else if release == Some(at) {
                storm.release();
            } else {
                storm.arrive();
            }
        }
        assert!(
            storm.waiting.is_empty(),
            "{:?} wait for ever",
            storm.waiting
        );
        let bounds = storm.bounds.iter().zip(arrivals);
        let waited = bounds.zip(storm.granted.values());
        waited
            .map(|((bound, arrival), granted)| Waited {
                arrived: arrival.at,
                bound: *bound,
                granted: *granted,
            })
            .collect()
    }

    fn arrive(&mut self) {
        let id = self.bounds.len() as u8;
        let arrival = &self.arrivals[usize::from(id)];
        let ahead = self.arrivals.iter().zip(&self.bounds).enumerate();
        let in_the_way = ahead.filter(|(n, (other, _))| {
            arrival.conflicts_with(other) && !self.released.contains(&(*n as u8))
        });
        let over = in_the_way.map(|(n, (other, bound))| {
            let begins = self.granted.get(&(n as u8)).unwrap_or(bound);
            begins + other.ttl
        });
        self.bounds.push(over.fold(arrival.at, u64::max));
        let waiting = self.waiting.iter().copied();
        let loses = |other: &u8| {
            self.dropped
                .loses(&self.arrivals[usize::from(*other)], arrival)
        };
        let mut back: Vec<u8> = waiting.filter(loses).collect();
        for other in &back {
            self.apply(None, Command::Withdraw(request(*other)));
        }
        back.insert(0, id);
        self.waiting.push(id);
        for id in back {
            // Another one that left let it in.
            if self.granted.contains_key(&id) {
                continue;
            }
            let wish = self.arrivals[usize::from(id)].ask(id);
            let acquire = wish.with_key(crate::world::key(u32::from(id) + 1));
            self.apply(Some(id), Command::Acquire(acquire));
        }
    }

    fn apply(&mut self, asks: Option<u8>, command: Command) {
        let outcome = self.world.apply(command);
        let settled = self.world.settled();
        let others = settled
            .into_iter()
            .map(|(id, outcome)| (id.as_bytes()[0], outcome));
        for (id, outcome) in asks.map(|id| (id, outcome)).into_iter().chain(others) {
            match outcome {
                Outcome::Granted(granted) => self.hold(id, granted),
                Outcome::Queued => {}
                other => panic!("request {id}: {other:?}"),
            }
        }
    }

    fn hold(&mut self, id: u8, granted: Granted) {
        let arrival = &self.arrivals[usize::from(id)];
        let now = millis(self.world.now);
        assert_eq!(self.granted.insert(id, now), None, "granted twice");
        self.waiting.retain(|other| *other != id);
        if arrival.uses < arrival.ttl {
            self.releases.push(Reverse((now + arrival.uses, id)));
            self.keys.insert(id, granted);
        }
    }

    fn release(&mut self) {
        let Some(Reverse((_, id))) = self.releases.pop() else {
            return;
        };
        let granted = self.keys.remove(&id).unwrap();
        self.released.insert(id);
        for lock in &self.arrivals[usize::from(id)].locks {
            let named = GrantRef {
                lock: lock_name(lock),
                key: granted.key,
                token: Some(granted.number()),
            };
            self.apply(None, Command::Release(named));
        }
    }
}

fn millis(at: Timestamp) -> u64 {
    assert_eq!(at.as_nanos() % 1_000_000, 0, "{at:?}");
    at.as_nanos() / 1_000_000
}

fn random(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed;
    move |below| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    }
}

/// Single locks, readers, pairs and sets of eight, of ten locks. With an even seed everybody dies holding.
fn storm_of_sets(seed: u64) -> Vec<Arrival> {
    let (mut draw, mut at) = (random(seed), 0);
    let mut arrivals = Vec::new();
    for _ in 0..150 {
        at += draw(60);
        let count = [1, 1, 1, 1, 1, 2, 8][draw(7) as usize];
        let mut names: Vec<u64> = (0..10).collect();
        let picked = (0..count).map(|_| names.remove(draw(names.len() as u64) as usize));
        let locks: Vec<String> = picked.map(|name| format!("l{name}")).collect();
        let ttl = 100 + draw(200);
        arrivals.push(Arrival {
            at,
            shared: count == 1 && draw(3) == 0,
            locks,
            ttl,
            uses: if seed.is_multiple_of(2) {
                ttl
            } else {
                draw(ttl) + 1
            },
        });
    }
    arrivals
}

/// A reader every few milliseconds, and now and then a writer.
fn storm_of_readers(seed: u64) -> Vec<Arrival> {
    let (mut draw, mut at) = (random(seed), 0);
    let mut arrivals = Vec::new();
    for n in 0..200 {
        at += draw(20);
        let ttl = 100 + draw(200);
        arrivals.push(Arrival {
            at,
            shared: n % 100 != 12,
            locks: vec!["l".to_owned()],
            ttl,
            uses: if seed.is_multiple_of(2) {
                ttl
            } else {
                draw(ttl) + 1
            },
        });
    }
    arrivals
}

/// For these requests: how many waited, how many longer than their bounds, and the longest wait.
fn late(waited: &[Waited], which: impl Fn(usize) -> bool) -> (usize, usize, u64) {
    let of = waited.iter().enumerate().filter(|(n, _)| which(*n));
    let of: Vec<&Waited> = of.map(|(_, one)| one).collect();
    let longest = of.iter().map(|one| one.granted - one.arrived).max();
    (
        of.iter().filter(|one| one.granted > one.arrived).count(),
        of.iter().filter(|one| one.granted > one.bound).count(),
        longest.unwrap_or_default(),
    )
}

fn within_bounds(storm: fn(u64) -> Vec<Arrival>, which: fn(&Arrival) -> bool, control: Dropped) {
    let mut all = [(0, 0, 0); 2];
    for seed in 1..=12 {
        let arrivals = storm(seed);
        let kept = Storm::run(&arrivals, Dropped::Nothing);
        for (n, one) in kept.iter().enumerate() {
            assert!(
                one.granted <= one.bound,
                "seed {seed}, request {n}: {} ms after its bound",
                one.granted - one.bound
            );
            // Where everybody holds to the end of the lease, it is no more and no less.
            assert!(
                seed % 2 == 1 || one.granted == one.bound,
                "seed {seed}, {n}"
            );
        }
        let without = Storm::run(&arrivals, control);
        for (all, waited) in all.iter_mut().zip([kept, without]) {
            let (waited, late, longest) = late(&waited, |n| which(&arrivals[n]));
            *all = (all.0 + waited, all.1 + late, all.2.max(longest));
        }
    }
    let [kept, without] = all;
    println!(
        "waited, later than the bound, longest wait in ms: {kept:?}, without the rule {without:?}"
    );
    assert!(kept.0 > 20 && kept.1 == 0, "{kept:?}");
    assert!(
        without.1 > 20,
        "the control arm keeps the bound: {without:?}"
    );
}

/// Control arm: sets that lose their places wait longer.
#[test]
fn a_set_of_eight_waits_for_those_ahead_of_it_and_what_they_wait_for() {
    within_bounds(
        storm_of_sets,
        |arrival| arrival.locks.len() == 8,
        Dropped::PlaceOfSets,
    );
}

/// Control arm: writers that lose their places wait longer.
#[test]
fn in_a_storm_of_readers_a_writer_waits_for_those_ahead_of_it_alone() {
    within_bounds(
        storm_of_readers,
        |arrival| !arrival.shared,
        Dropped::PlaceOfWriters,
    );
}
