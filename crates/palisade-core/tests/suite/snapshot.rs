//! Snapshots: a machine reads back everything that it writes, and refuses everything that no machine could have
//! written.
//!
//! The invariants cannot be broken from outside through a snapshot: either the records are refused or
//! the machine they make holds every one of them. That each predicate can fail at all is shown next to
//! them, in `src/invariants.rs`.

use palisade_core::machine::{Corrupt, Record};
use palisade_core::{
    Away, Command, Entry, GrantOptions, LeaseId, LockMode, Machine, Outcome, RequestId, Slots,
    Timestamp, invariants, limits,
};
use proptest::prelude::*;

use crate::world::{TTL_MS, World, ask, ask_all, grant, key, lock_name, ms, request, token};

/// The same after a change of leader: some orphans have come back, and some locks are kept for others.
fn stage_led(busy: u8) -> World {
    let mut world = stage(busy);
    world.apply(Command::Grace(Away::Led));
    for n in 0..busy {
        let lock = format!("lock/{n}");
        if n % 2 == 0 {
            world.acquire(ask(&lock, "c").wait(40_000).request(90 + n));
        }
        let held = world.machine.holder(&lock, world.now);
        if let Some(held) = held.filter(|_| n % 4 < 2) {
            world.apply(Command::Revoke {
                lock: lock_name(&lock),
                token: held.token,
                reason: "stuck".into(),
            });
        }
    }
    world
}

/// A machine with some of everything: leases with one grant and with several, queues, metadata,
/// answers and endings. `busy` decides how much.
fn stage(busy: u8) -> World {
    let mut world = World::new();
    let anchor = world.granted(ask("anchor", "a").metadata("the first").request(1));
    for n in 0..busy {
        world.pass(ms(7));
        let lock = format!("lock/{n}");
        let wish = ask(&lock, "a").request(10 + n);
        let held = world.granted(if n % 2 == 0 {
            wish.under(anchor.key)
        } else {
            wish.ttl(60_000)
        });
        world.queued(ask(&lock, "b").wait(30_000).request(50 + n));
        world.queued(
            ask(&lock, "c")
                .wait(40_000)
                .request(90 + n)
                .metadata("next"),
        );
        if n % 3 == 0 {
            world.release(&grant(&lock, &held));
        }
        if n % 4 == 0 {
            world.apply(Command::Abandon(request(90 + n)));
        }
    }
    world
}

fn records(machine: &Machine) -> Vec<Record> {
    machine.records().collect()
}

#[test]
fn a_restored_machine_writes_the_same_records() {
    for busy in [0, 1, 2, 7, 20] {
        for stage in [stage, stage_led, |_| stage_sets(), |_| stage_shared()] {
            let written = records(&stage(busy).machine);
            for seed in [0, 1, u64::MAX] {
                let restored = Machine::restore(seed, written.clone()).unwrap();
                assert_eq!(records(&restored), written);
                assert_eq!(invariants::check(&restored), Ok(()));
            }
        }
    }
}

#[test]
fn every_kind_of_record_takes_part() {
    let written = records(&stage_led(20).machine);
    for kind in [
        "Head", "Lease", "Grant", "Kept", "Waiter", "Answered", "Over",
    ] {
        let of_kind = |record: &&Record| format!("{record:?}").starts_with(kind);
        let count = written.iter().filter(of_kind).count();
        assert!(
            count > usize::from(kind != "Head"),
            "{count} records of kind {kind}"
        );
    }
}

#[test]
fn a_restored_machine_goes_on_alike_through_expiry() {
    for stage in [stage, stage_led] {
        goes_on_alike_through_expiry([stage(12), stage(12)]);
    }
}

fn goes_on_alike_through_expiry(mut worlds: [World; 2]) {
    worlds[1].machine = Machine::restore(99, records(&worlds[0].machine)).unwrap();
    for step in 0..40 {
        let effects = worlds.each_mut().map(|world| {
            world.pass(ms(2_501));
            world.apply(if step == 3 {
                Command::Grace(Away::Paused(palisade_core::Span::from_millis(2_501)))
            } else {
                Command::Expire
            });
            world.effects.clone()
        });
        assert_eq!(effects[0], effects[1]);
    }
    assert_eq!(worlds[0].machine.locks(), 0, "everything ran out");
}

/// Forgetting is part of the state: a machine and its restored copy that forget at different moments
/// would answer a retry differently, and one of them would draw a token that the other does not.
#[test]
fn a_restored_machine_forgets_when_the_first_one_does() {
    let mut world = World::new();
    let mut effects = Vec::new();
    let id = |n: u32| RequestId::from_bytes(u128::from(n).to_le_bytes());
    let mut abandon = |machine: &mut Machine, n| {
        let command = Command::Abandon(id(n));
        let entry = Entry {
            at: Timestamp::ZERO,
            wall: crate::world::wall(Timestamp::ZERO),
            by: palisade_core::Principal::ANONYMOUS,
            command,
        };
        machine.apply(entry, &mut effects);
    };
    // One, two and two again: the first of the twos is replaced, but still occupies an entry.
    let last = u32::try_from(limits::REMEMBERED).unwrap() - 1;
    for n in [1, 2].into_iter().chain(2..=last) {
        abandon(&mut world.machine, n);
    }
    let mut copy = World::new();
    copy.machine = Machine::restore(5, world.machine.records()).unwrap();
    let mut answers = Vec::new();
    for world in [&mut world, &mut copy] {
        abandon(&mut world.machine, last + 1);
        for n in 1..=3 {
            let mut wish = ask(&format!("lock/{n}"), "a").with_key(key(n));
            wish.request = Some(id(n));
            answers.push(world.apply(Command::Acquire(wish)));
        }
    }
    assert_eq!(answers[..3], answers[3..]);
    assert!(
        matches!(answers[0], Outcome::Granted(_)),
        "the oldest is forgotten"
    );
    assert_eq!(answers[1], Outcome::Abandoned);
}

/// The position of the `n`th record of a kind.
fn nth(records: &[Record], is: fn(&Record) -> bool, n: usize) -> usize {
    let mut of_kind = records.iter().enumerate().filter(|(_, record)| is(record));
    of_kind.nth(n).unwrap().0
}

fn is_lease(record: &Record) -> bool {
    matches!(record, Record::Lease(_))
}

fn is_grant(record: &Record) -> bool {
    matches!(record, Record::Grant(_))
}

fn is_share(record: &Record) -> bool {
    matches!(record, Record::Share(_))
}

fn is_waiter(record: &Record) -> bool {
    matches!(record, Record::Waiter(_))
}

fn is_over(record: &Record) -> bool {
    matches!(record, Record::Over(_))
}

/// Changes the fields of the `n`th record of a kind.
macro_rules! spoil {
    ($records:ident, $kind:ident, $n:expr, |$record:ident| $change:expr) => {{
        let at = nth(&$records, |record| matches!(record, Record::$kind(_)), $n);
        let Record::$kind($record) = &mut $records[at] else {
            unreachable!()
        };
        $change;
    }};
}

/// A fault, and the change that brings it into a sound list of records.
type Contradiction = (&'static str, fn(Vec<Record>) -> Vec<Record>);

/// The faults of a lock that is kept.
#[test]
fn each_contradiction_of_an_orphan_is_named() {
    let contradictions: [Contradiction; 5] = [
        ("a lock is kept for nobody", |mut records| {
            records.retain(|record| !matches!(record, Record::Waiter(_)));
            records
        }),
        ("a lock is kept for nobody", |mut records| {
            let waiters = records.iter_mut().filter_map(|record| match record {
                Record::Waiter(waiter) => Some(waiter),
                _ => None,
            });
            waiters.for_each(|waiter| waiter.orphan = None);
            records
        }),
        ("an orphan's place is kept for too long", |mut records| {
            spoil!(records, Waiter, 0, |waiter| waiter.orphan =
                Some(waiter.deadline));
            records
        }),
        ("a lock has two grants", |mut records| {
            spoil!(records, Kept, 0, |kept| kept.lock = lock_name("anchor"));
            records
        }),
        (
            "a lock's last token is not below the counter",
            |mut records| {
                let last = records
                    .iter()
                    .rposition(|record| matches!(record, Record::Kept(_)));
                let Record::Kept(newest) = &mut records[last.unwrap()] else {
                    unreachable!()
                };
                newest.last = token(1_000);
                records
            },
        ),
    ];
    are_named(&records(&stage_led(9).machine), &contradictions);
}

/// A set that is held, and one that waits for some of its locks.
fn stage_sets() -> World {
    let mut world = World::new();
    world.granted(ask_all(&["a", "b"], "holder"));
    let set = ask_all(&["b", "c", "d"], "waiter");
    world.queued(set.wait(30_000).request(1).metadata("text"));
    world
}

#[test]
fn each_contradiction_of_a_set_is_named() {
    let contradictions: [Contradiction; 11] = [
        ("its records are out of order", |mut records| {
            let first = nth(&records, is_grant, 0);
            records.swap(first, first + 1);
            records
        }),
        ("its records are out of order", |mut records| {
            let first = nth(&records, is_waiter, 1);
            records.swap(first, first + 1);
            records
        }),
        ("its records are out of order", |mut records| {
            spoil!(records, Waiter, 1, |part| part.lock = lock_name("b"));
            records
        }),
        ("the parts of a set do not agree", |mut records| {
            spoil!(records, Waiter, 2, |part| part.request = request(2));
            records
        }),
        ("the parts of a set do not agree", |mut records| {
            spoil!(records, Waiter, 1, |part| part.metadata = Some("x".into()));
            records
        }),
        ("the parts of a set do not agree", |mut records| {
            spoil!(records, Waiter, 1, |part| part.mode = LockMode::Shared);
            records
        }),
        ("the parts of a set do not agree", |mut records| {
            spoil!(records, Waiter, 0, |part| part.mode = LockMode::Shared);
            records
        }),
        // They agree in a field that no set sets.
        ("the parts of a set do not agree", |mut records| {
            for part in 0..3 {
                spoil!(records, Waiter, part, |part| part.mode = LockMode::Shared);
            }
            records
        }),
        ("the parts of a set do not agree", |mut records| {
            let delays = GrantOptions::closing(1_000, 0).unwrap();
            for part in 0..3 {
                spoil!(records, Waiter, part, |part| part.options = delays);
            }
            records
        }),
        ("a request waits for a lock that is free", |mut records| {
            spoil!(records, Waiter, 2, |part| part.lock = lock_name("e"));
            records
        }),
        ("a lock is kept for nobody", |mut records| {
            let last = nth(&records, is_waiter, 2);
            records.remove(last);
            records
        }),
    ];
    are_named(&records(&stage_sets().machine), &contradictions);
}

/// A writer, two readers and the holders of all permits of a semaphore; somebody waits for the last four locks.
fn stage_shared() -> World {
    let mut world = World::new();
    world.granted(ask("w", "a"));
    for reader in ["b", "c"] {
        world.granted(ask("r", reader).shared());
    }
    for (holder, wanted) in [("d", 1), ("e", 2)] {
        world.granted(ask("s", holder).permits(wanted, 3));
    }
    world.queued(ask("r", "f").wait(30_000).request(1));
    world.queued(ask("s", "g").permits(1, 3).wait(30_000).request(2));
    world
}

#[test]
fn each_contradiction_of_readers_and_permits_is_named() {
    let contradictions: [Contradiction; 13] = [
        ("a lock has two grants", |mut records| {
            spoil!(records, Share, 0, |share| share.grant.lock = lock_name("w"));
            records
        }),
        ("readers of one lock are in two phases", |mut records| {
            spoil!(records, Share, 1, |share| share.phase = token(3));
            records
        }),
        ("a shared grant is older than its phase", |mut records| {
            spoil!(records, Share, 0, |share| share.phase = token(3));
            records
        }),
        (
            "the holders of a lock do not agree on its permits",
            |mut records| {
                spoil!(records, Share, 3, |share| share.permits = None);
                records
            },
        ),
        (
            "the holders of a lock do not agree on its permits",
            |mut records| {
                let slots = Slots::from_bits(0b110);
                spoil!(records, Share, 3, |share| share.permits = Some((4, slots)));
                records
            },
        ),
        (
            "the holders of a lock do not agree on its permits",
            |mut records| {
                spoil!(records, Share, 3, |share| share.permits =
                    Some((3, Slots::NONE)));
                records
            },
        ),
        (
            "the holders of a lock do not agree on its permits",
            |mut records| {
                spoil!(records, Share, 0, |share| share.permits =
                    Some((3, Slots::NONE)));
                records
            },
        ),
        ("a slot has two holders", |mut records| {
            let slots = Slots::from_bits(0b011);
            spoil!(records, Share, 3, |share| share.permits = Some((3, slots)));
            records
        }),
        ("a lease has a lock twice", |mut records| {
            let Record::Share(first) = records[nth(&records, is_share, 0)].clone() else {
                unreachable!()
            };
            spoil!(records, Share, 1, |share| share.grant.key = first.grant.key);
            records
        }),
        ("two leases have one token", |mut records| {
            spoil!(records, Grant, 0, |grant| grant.token = token(2));
            records
        }),
        (
            "a request waits for a lock of another kind",
            |mut records| {
                spoil!(records, Waiter, 0, |waiter| waiter.lock = lock_name("s"));
                records
            },
        ),
        (
            "a request waits for a lock of another kind",
            |mut records| {
                spoil!(records, Waiter, 1, |waiter| waiter.lock = lock_name("r"));
                records
            },
        ),
        (
            "a request for a shared grant says what is after it",
            |mut records| {
                spoil!(records, Waiter, 1, |waiter| waiter.options =
                    GrantOptions::closing(1_000, 0).unwrap());
                records
            },
        ),
    ];
    are_named(&records(&stage_shared().machine), &contradictions);
}

#[test]
fn each_contradiction_of_a_closed_lock_is_named() {
    let mut world = World::new();
    for lock in ["x", "y"] {
        world.granted(ask(lock, "a").delays(5_000, 0));
    }
    world.pass(ms(TTL_MS));
    world.expire();
    let contradictions: [Contradiction; 4] = [
        ("a semaphore is closed for a time", |mut records| {
            spoil!(records, Kept, 0, |kept| kept.permits = Some(3));
            records
        }),
        ("two closed locks have one last token", |mut records| {
            spoil!(records, Kept, 0, |kept| kept.last = token(2));
            records
        }),
        ("a lock is kept for nobody", |mut records| {
            spoil!(records, Kept, 0, |kept| kept.closed = None);
            records
        }),
        (
            "a lock's last token is not below the counter",
            |mut records| {
                spoil!(records, Head, 0, |head| head.next_token = Some(token(2)));
                records
            },
        ),
    ];
    are_named(&records(&world.machine), &contradictions);
}

#[test]
fn a_set_has_at_most_so_many_parts() {
    let with = |more: usize| {
        let mut world = World::new();
        let names: Vec<String> = (0..limits::SET_LOCKS + more)
            .map(|n| format!("lock/{n:03}"))
            .collect();
        for lock in &names {
            world.granted(ask(lock, "holder"));
        }
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        let set = ask_all(&names[..limits::SET_LOCKS], "waiter");
        world.queued(set.wait(30_000).request(1));
        let mut records = records(&world.machine);
        let last = nth(&records, is_waiter, limits::SET_LOCKS - 1);
        for name in &names[limits::SET_LOCKS..] {
            let Record::Waiter(mut part) = records[last].clone() else {
                unreachable!()
            };
            part.lock = lock_name(name);
            records.insert(last + 1, Record::Waiter(part));
        }
        Machine::restore(1, records).map(drop)
    };
    assert_eq!(with(0), Ok(()));
    assert_eq!(with(1), Err(Corrupt("a set has too many locks")));
}

#[test]
fn each_contradiction_is_named() {
    let contradictions: [Contradiction; 21] = [
        ("it does not begin with a head", |_| Vec::new()),
        ("it does not begin with a head", |records| {
            records[1..].to_vec()
        }),
        ("its records are out of order", |mut records| {
            records.insert(1, records[0].clone());
            records
        }),
        ("its records are out of order", |mut records| {
            let first = nth(&records, is_grant, 0);
            records.swap(first, first + 1);
            records
        }),
        ("its records are out of order", |mut records| {
            let grant = records.remove(nth(&records, is_grant, 0));
            records.push(grant);
            records
        }),
        ("its records are out of order", |mut records| {
            let first = nth(&records, is_waiter, 0);
            records.swap(first, first + 1);
            records
        }),
        ("its records are out of order", |mut records| {
            let first = records.iter().position(is_over).unwrap();
            records.swap(first - 1, first);
            records
        }),
        ("two leases have one token", |mut records| {
            let Record::Grant(second) = records[nth(&records, is_grant, 1)].clone() else {
                unreachable!()
            };
            spoil!(records, Grant, 0, |grant| grant.token = second.token);
            records
        }),
        ("its records are out of order", |mut records| {
            let Record::Lease(first) = records[1].clone() else {
                unreachable!()
            };
            spoil!(records, Lease, 1, |lease| lease.id = first.id);
            records
        }),
        ("a lease's id is not below the counter", |mut records| {
            let last = records.iter().filter(|record| is_lease(record)).count() - 1;
            spoil!(records, Lease, last, |lease| lease.id =
                LeaseId(token(1_000)));
            records
        }),
        ("two leases have one key", |mut records| {
            let Record::Lease(first) = records[1].clone() else {
                unreachable!()
            };
            spoil!(records, Lease, 1, |lease| lease.key = first.key);
            records
        }),
        ("a lease has no grant", |mut records| {
            let anchor = nth(&records, is_grant, 0);
            let Record::Grant(grant) = records[anchor].clone() else {
                unreachable!()
            };
            records.retain(|record| match record {
                Record::Grant(other) => other.key != grant.key,
                Record::Waiter(_) => false,
                _ => true,
            });
            records
        }),
        ("a grant is under no lease", |mut records| {
            records.remove(nth(&records, is_lease, 0));
            records
        }),
        ("a grant is older than its lease", |mut records| {
            let Record::Lease(second) = records[nth(&records, is_lease, 1)].clone() else {
                unreachable!()
            };
            spoil!(records, Grant, 0, |grant| grant.key = second.key);
            records
        }),
        ("a grant's token is not below the counter", |mut records| {
            let last = records.iter().rposition(is_grant).unwrap();
            let Record::Grant(newest) = records[last].clone() else {
                unreachable!()
            };
            spoil!(records, Head, 0, |head| head.next_token =
                Some(newest.token));
            records
        }),
        ("a lock has two grants", |mut records| {
            spoil!(records, Grant, 1, |grant| grant.lock = lock_name("anchor"));
            records
        }),
        ("a request waits for a lock that is free", |mut records| {
            spoil!(records, Waiter, 0, |waiter| waiter.lock =
                lock_name("nowhere"));
            records
        }),
        ("a request waits twice", |mut records| {
            let Record::Waiter(first) = records[nth(&records, is_waiter, 0)].clone() else {
                unreachable!()
            };
            spoil!(records, Waiter, 1, |waiter| waiter.request = first.request);
            records
        }),
        ("a request waits that has not arrived", |mut records| {
            spoil!(records, Head, 0, |head| head.arrivals = 1);
            records
        }),
        ("it was restored after its next token", |mut records| {
            spoil!(records, Head, 0, |head| head.restored =
                Some(token(1 << 50)));
            records
        }),
        ("its records are out of order", |mut records| {
            records.reverse();
            let head = records.pop().unwrap();
            records.insert(0, head);
            records
        }),
    ];
    are_named(&records(&stage(9).machine), &contradictions);
}

fn are_named(whole: &[Record], contradictions: &[Contradiction]) {
    for (why, spoil) in contradictions {
        let got = Machine::restore(3, spoil(whole.to_vec())).map(|machine| records(&machine));
        let refused = got.unwrap_err();
        assert_eq!(refused, Corrupt(why));
        assert_eq!(
            refused.to_string(),
            format!("the snapshot contradicts itself: {why}")
        );
    }
}

/// The damage that can happen to a list of records on its way.
#[derive(Clone, Debug)]
enum Damage {
    Drop(prop::sample::Index),
    Double(prop::sample::Index, prop::sample::Index),
    Swap(prop::sample::Index, prop::sample::Index),
    Later(prop::sample::Index, u64),
}

fn damage() -> impl Strategy<Value = Damage> {
    let at = any::<prop::sample::Index>;
    prop_oneof![
        at().prop_map(Damage::Drop),
        (at(), at()).prop_map(|(from, to)| Damage::Double(from, to)),
        (at(), at()).prop_map(|(one, other)| Damage::Swap(one, other)),
        (at(), 0_u64..60_000).prop_map(|(at, ms)| Damage::Later(at, ms)),
    ]
}

impl Damage {
    fn to(&self, records: &mut Vec<Record>) {
        if records.is_empty() {
            return;
        }
        let len = records.len();
        match self {
            Damage::Drop(at) => {
                records.remove(at.index(len));
            }
            Damage::Double(from, to) => {
                records.insert(to.index(len + 1), records[from.index(len)].clone())
            }
            Damage::Swap(one, other) => records.swap(one.index(len), other.index(len)),
            Damage::Later(at, later) => match &mut records[at.index(len)] {
                Record::Head(head) => head.now = head.now.after(ms(*later)),
                Record::Lease(lease) => lease.expires = Timestamp::from_millis(*later),
                Record::Grant(grant) => grant.token = token(later % 40 + 1),
                Record::Share(share) => share.phase = token(later % 40 + 1),
                Record::Kept(kept) => kept.last = token(later % 40 + 1),
                Record::Waiter(waiter) => waiter.arrival = later % 40,
                Record::Answered(answered) => answered.lock = None,
                Record::Over(over) => over.token = token(later + 1),
            },
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2_000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Damaged records are refused, or they are those of a sound machine: it writes them again, and it
    /// can be worked with to the end.
    #[test]
    fn damaged_records_are_refused_or_sound(
        busy in 0_u8..8,
        led: bool,
        damages in prop::collection::vec(damage(), 1..4),
    ) {
        let mut damaged = records(&if led { stage_led(busy) } else { stage(busy) }.machine);
        for damage in &damages {
            damage.to(&mut damaged);
        }
        if let Ok(machine) = Machine::restore(11, damaged.clone()) {
            prop_assert_eq!(invariants::check(&machine), Ok(()));
            prop_assert_eq!(records(&machine), damaged);
            let mut world = World::new();
            (world.now, world.machine) = (machine.now(), machine);
            while let Some(due) = world.machine.next_due() {
                world.now = due;
                world.expire();
            }
            prop_assert_eq!((world.machine.locks(), world.machine.leases(), world.machine.waiters()), (0, 0, 0));
        }
    }
}

#[test]
fn the_stage_lives_for_longer_than_it_takes_to_set_up() {
    assert!(stage(20).now < Timestamp::from_millis(TTL_MS));
}
