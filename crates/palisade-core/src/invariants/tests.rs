//! Each predicate can fail.

use core::num::NonZero;

use super::*;
use crate::command::{Acquire, Command, Entry, Under};
use crate::id::{LeaseId, LeaseKey, RequestId};
use crate::machine::Extension;
use crate::machine::slab::{ClientSlot, LeaseSlot, LockSlot, Number as _};
use crate::name::{ClientId, LockName};
use crate::permits::Permits;
use crate::time::{Span, Timestamp, Ttl, WallTime};
use crate::token::Token;

/// The exclusive grant in this lock's record.
fn on(lock: u32) -> GrantSlot {
    GrantSlot::of_lock(LockSlot::of(lock))
}

fn apply(machine: &mut Machine, command: Command) {
    let entry = Entry {
        at: Timestamp::ZERO,
        wall: WallTime::default(),
        by: crate::id::Principal::ANONYMOUS,
        command,
    };
    machine.apply(entry, &mut Vec::new());
}

/// Client `a` holds `x` and `y` under one lease, and two others wait for `x`; `d` and `e` read `z`, `d` in mode update,
/// and `f` waits to write it. `g` waits for `v` and `x` together.
pub(crate) fn sound() -> Machine {
    let mut machine = Machine::new(1);
    let (key, ttl) = (LeaseKey::from_bytes([0; 16]), Ttl::MAX);
    let new = |n| Under::New {
        key: LeaseKey::from_bytes([n; 16]),
        ttl,
    };
    let asks = [
        ("x", "a", Under::New { key, ttl }),
        ("y", "a", Under::Existing { key, ttl: None }),
        ("x", "b", new(1)),
        ("x", "c", new(2)),
        ("z", "d", new(3)),
        ("z", "e", new(4)),
        ("z", "f", new(5)),
    ];
    for ((lock, client, under), n) in asks.into_iter().zip(0..) {
        let command = Command::Acquire(Acquire {
            mode: match client {
                "d" => LockMode::Update,
                "e" => LockMode::Shared,
                _ => LockMode::Exclusive,
            },
            wait: Some(Span::from_millis(1_000)),
            ..Acquire::new(
                LockName::new(lock).unwrap(),
                ClientId::new(client).unwrap(),
                under,
                Some(RequestId::from_bytes([n; 16])),
            )
        });
        apply(&mut machine, command);
    }
    let set = ["x", "v"].map(|lock| LockName::new(lock).unwrap());
    let set = Acquire {
        wait: Some(Span::from_millis(1_000)),
        ..Acquire::of_all(
            set.into(),
            ClientId::new("g").unwrap(),
            new(6),
            Some(RequestId::from_bytes([9; 16])),
        )
        .unwrap()
    };
    apply(&mut machine, Command::Acquire(set));
    assert_eq!(
        (machine.locks(), machine.leases(), machine.waiters()),
        (4, 3, 5)
    );
    machine
}

/// An extension that was over before any lease began.
fn spent() -> Extension {
    Extension {
        limit: Timestamp::ZERO,
        times: NonZero::<u32>::MIN,
    }
}

/// The control arm of every test that calls [`check`]. None of these states can be reached by
/// entries or through a snapshot, so they are made by hand.
#[test]
fn each_predicate_can_fail() {
    let spoils: [fn(&mut Machine); 16] = [
        |machine| {
            machine.tables.locks[LockSlot::of(1)].name =
                machine.tables.locks[LockSlot::of(0)].name.clone()
        },
        |machine| machine.next_token = Some(machine.tables.grant(on(1)).token()),
        |machine| {
            machine
                .tables
                .spoil_grant(on(0), Token::FIRST, Some(LeaseSlot::of(77)))
        },
        |machine| {
            machine
                .tables
                .spoil_grant(on(0), Token::MAX, Some(LeaseSlot::of(0)))
        },
        |machine| machine.tables.leases[LeaseSlot::of(0)].id = LeaseId(Token::MAX),
        |machine| machine.tables.extensions.set(LeaseSlot::of(0), spent()),
        |machine| machine.now = Timestamp::from_millis(1_000),
        |machine| machine.tables.waiters[WaiterSlot::of(0)].arrival = 9,
        |machine| machine.tables.leases[LeaseSlot::of(0)].key = LeaseKey::from_bytes([9; 16]),
        |machine| {
            machine.tables.waiters[WaiterSlot::of(0)].orphan = Some(Timestamp::from_millis(3_000))
        },
        |machine| machine.tables.spoil_phase(LockSlot::of(2), Token::MAX),
        |machine| machine.tables.waiters[WaiterSlot::of(2)].mode = LockMode::Shared,
        |machine| machine.tables.waiters[WaiterSlot::of(2)].mode = LockMode::Upgrade,
        |machine| machine.tables.spoil_permits(LockSlot::of(2)),
        |machine| machine.tables.waiters[WaiterSlot::of(4)].since = Timestamp::from_millis(1),
        |machine| machine.tables.clients[ClientSlot::of(0)].uses += 1,
    ];
    assert_eq!(spoils.len(), ALL.len());
    for (invariant, spoil) in ALL.iter().zip(spoils) {
        let mut machine = sound();
        assert!((invariant.holds)(&machine), "{}", invariant.name);
        spoil(&mut machine);
        assert!(
            !(invariant.holds)(&machine),
            "cannot fail: {}",
            invariant.name
        );
    }
}

/// States that break a predicate by one: those at its very bound.
#[test]
fn each_predicate_fails_at_its_bound() {
    type Spoil = fn(&mut Machine);
    let spoils: [(&str, Spoil); 14] = [
        ("below the counter", |machine| {
            machine.next_token = machine
                .tables
                .grants()
                .map(|(_, grant)| grant.token())
                .max();
        }),
        ("kept for its window", |machine| {
            let waiter = &mut machine.tables.waiters[WaiterSlot::of(0)];
            waiter.deadline = Timestamp::from_millis(60_000);
            waiter.orphan = Some(
                machine
                    .now
                    .after(limits::ORPHAN_WINDOW)
                    .after(Span::from_nanos(1)),
            );
        }),
        ("distinct but within a set", |machine| {
            // `d` and `a`: one token under two leases.
            let lease = machine.tables.writer(LockSlot::of(0)).lease();
            let other = LeaseSlot::of(lease.number() + 1);
            machine
                .tables
                .spoil_grant(on(0), Token::new(2).unwrap(), Some(other));
        }),
        ("distinct but within a set", |machine| {
            // `a` and `d`: one token under one lease, but a reader's grant is no part of a set.
            let lease = machine.tables.writer(LockSlot::of(0)).lease();
            let reader = machine.tables.shares().map(|(slot, _)| slot).next();
            machine
                .tables
                .spoil_grant(reader.unwrap().grant(), Token::FIRST, Some(lease));
        }),
        ("a lease that was extended", |machine| {
            // There are three leases, and this is the extension of another one.
            machine.tables.extensions.set(LeaseSlot::of(77), spent());
        }),
        ("parts of a set", |machine| {
            // Nobody has `x` any more, and the set is first.
            for b_and_c in [0, 1] {
                machine.tables.dequeue(WaiterSlot::of(b_and_c));
            }
            machine.tables.untie(on(0));
        }),
        ("parts of a set", |machine| {
            machine.tables.waiters[WaiterSlot::of(4)].metadata = Some("of the first alone".into());
        }),
        ("parts of a set", |machine| {
            // Both parts wait for the same lock.
            machine.tables.waiters[WaiterSlot::of(4)].lock =
                machine.tables.waiters[WaiterSlot::of(3)].lock;
        }),
        ("permits that are free", |machine| {
            // One is free and one is wanted: the readers have no slots.
            machine.tables.spoil_permits(LockSlot::of(2));
            machine.tables.waiters[WaiterSlot::of(2)].mode =
                LockMode::Permits(Permits::new(1, 1).unwrap());
        }),
        ("a reader does not wait for readers alone", |machine| {
            // Nobody has `z` in mode update any more.
            let update = machine.tables.update_on(LockSlot::of(2)).unwrap();
            machine.tables.remove_share(update);
            machine.tables.waiters[WaiterSlot::of(2)].mode = LockMode::Update;
        }),
        ("its upgrade is first", |machine| {
            // The upgrade is that of another lease.
            machine.tables.waiters[WaiterSlot::of(2)].mode = LockMode::Upgrade;
            machine.tables.waiters[WaiterSlot::of(2)].under = Under::Existing {
                key: LeaseKey::from_bytes([4; 16]),
                ttl: None,
            };
        }),
        ("its upgrade is first", |machine| {
            // It is second.
            machine.tables.waiters[WaiterSlot::of(1)].mode = LockMode::Upgrade;
        }),
        ("its upgrade is first", |machine| {
            // A reader of another lock.
            let update = machine.tables.update_on(LockSlot::of(2)).unwrap();
            machine.tables.spoil_update(LockSlot::of(0), update);
        }),
        ("clients are counted", |machine| {
            let client = machine.tables.clients[ClientSlot::of(0)].clone();
            let unused = machine.tables.clients.insert(client);
            machine.tables.clients[unused].uses = 0;
            machine.tables.clients[unused].waiting = 0;
        }),
    ];
    for (named, spoil) in spoils {
        let invariant = ALL
            .iter()
            .find(|invariant| invariant.name.contains(named))
            .unwrap();
        let mut machine = sound();
        spoil(&mut machine);
        assert!(!(invariant.holds)(&machine), "{}", invariant.name);
    }
}

#[test]
fn a_sound_machine_passes_and_the_first_fault_is_named() {
    let mut machine = sound();
    assert_eq!(check(&machine), Ok(()));
    machine.tables.clients[ClientSlot::of(0)].uses += 1;
    assert_eq!(check(&machine), Err("clients are counted"));
}
