//! Tables that no sequence of entries can lead to, each planted by hand. The first entry that meets one fails at an assertion:
//! nothing is answered, and nothing can be written down.

use alloc::string::{String, ToString as _};
use alloc::vec::Vec;
use std::panic::{AssertUnwindSafe, catch_unwind};

use super::Machine;
use super::grant::GrantSlot;
use super::slab::{ClientSlot, LeaseSlot, LockSlot, Number as _, SlotLink, WaiterSlot};
use crate::command::{Acquire, Command, Entry, GrantRef, LockMode, Under};
use crate::id::{LeaseKey, Principal, RequestId};
use crate::invariants;
use crate::invariants::tests::sound;
use crate::name::{ClientId, LockName};
use crate::options::GrantOptions;
use crate::outcome::Outcome;
use crate::permits::Permits;
use crate::time::{Span, Timestamp, Ttl, WallTime};
use crate::token::Token;

/// One planted state, the entry that meets it, and the assertion that fails.
struct Corruption {
    planted: fn(&mut Machine),
    entry: Command,
    fails: &'static str,
}

fn key(n: u8) -> LeaseKey {
    LeaseKey::from_bytes([n; 16])
}

fn lock(name: &str) -> LockName {
    LockName::new(name).unwrap()
}

fn acquire(name: &str, client: &str, under: Under, request: u8) -> Acquire {
    Acquire {
        wait: Some(Span::from_millis(1_000)),
        ..Acquire::new(
            lock(name),
            ClientId::new(client).unwrap(),
            under,
            Some(RequestId::from_bytes([request; 16])),
        )
    }
}

/// The grant of `y`.
fn y() -> GrantSlot {
    GrantSlot::of_lock(LockSlot::of(1))
}

/// A new client asks for a lock.
fn wants(name: &str) -> Command {
    let under = Under::New {
        key: key(77),
        ttl: Ttl::MAX,
    };
    Command::Acquire(acquire(name, "new", under, 77))
}

fn releases(name: &str, lease: u8) -> Command {
    Command::Release(GrantRef {
        lock: lock(name),
        key: key(lease),
        token: None,
    })
}

fn withdraws(request: u8) -> Command {
    Command::Withdraw(RequestId::from_bytes([request; 16]))
}

fn apply(machine: &mut Machine, command: Command) -> Outcome {
    let entry = Entry {
        at: Timestamp::ZERO,
        wall: WallTime::default(),
        by: Principal::ANONYMOUS,
        command,
    };
    machine.apply(entry, &mut Vec::new()).outcome
}

/// [`sound`], with a lock `w` that is closed after its last grant, and a semaphore `s` with one of two permits taken, for
/// which `j` waits.
fn machine() -> Machine {
    let mut machine = sound();
    let under = |n| Under::New {
        key: key(n),
        ttl: Ttl::MAX,
    };
    let closes = Acquire {
        options: GrantOptions::closing(60_000, 0).unwrap(),
        ..acquire("w", "h", under(20), 20)
    };
    let Outcome::Granted(granted) = apply(&mut machine, Command::Acquire(closes)) else {
        panic!("it is free");
    };
    let revoked = Command::Revoke {
        lock: lock("w"),
        token: granted.token,
        reason: "".into(),
    };
    apply(&mut machine, revoked);
    for (client, n, wanted) in [("i", 21, 1), ("j", 22, 2)] {
        let mode = LockMode::Permits(Permits::new(wanted, 2).unwrap());
        let permits = Acquire {
            mode,
            ..acquire("s", client, under(n), n)
        };
        apply(&mut machine, Command::Acquire(permits));
    }
    assert_eq!(invariants::check(&machine), Ok(()));
    machine
}

fn corruptions() -> Vec<Corruption> {
    let of = |planted, entry, fails| Corruption {
        planted,
        entry,
        fails,
    };
    Vec::from([
        of(
            |machine| machine.tables.locks.spoil_free(LockSlot::of(0)),
            wants("new"),
            "a slot in the list of free ones is used",
        ),
        of(
            |machine| drop(machine.tables.locks.remove(LockSlot::of(1))),
            wants("y"),
            "a record names slot 1, which is free",
        ),
        of(
            |machine| {
                machine.tables.leases.remove(LeaseSlot::of(0));
            },
            wants("x"),
            "a record names slot 0, which is free",
        ),
        of(
            |machine| {
                let extra = machine.tables.locks[LockSlot::of(0)].extra;
                drop(machine.tables.extras.remove(extra.get().unwrap()));
            },
            wants("x"),
            "which is free",
        ),
        of(
            |machine| machine.tables.spoil_key(LeaseSlot::of(2)),
            Command::Revoke {
                lock: lock("z"),
                token: Token::new(4).unwrap(),
                reason: "".into(),
            },
            "is not in the index under its key",
        ),
        of(
            |machine| machine.tables.spoil_grant(y(), Token::FIRST, None),
            wants("y"),
            "a lock is kept for nobody",
        ),
        of(
            |machine| machine.tables.leases[LeaseSlot::of(0)].first = SlotLink::to(y()),
            releases("x", 0),
            "a lease's links do not agree: before",
        ),
        of(
            |machine| {
                machine.tables.leases[LeaseSlot::of(0)].last =
                    SlotLink::to(GrantSlot::of_lock(LockSlot::of(0)))
            },
            Command::Acquire(acquire(
                "u",
                "a",
                Under::Existing {
                    key: key(0),
                    ttl: None,
                },
                78,
            )),
            "a lease's last grant has one behind it",
        ),
        of(
            |machine| machine.next_token = Some(Token::FIRST),
            releases("x", 0),
            "a token does not rise above the lock's last (A2)",
        ),
        of(
            |machine| machine.tables.clients[ClientSlot::of(1)].waiting = 0,
            withdraws(2),
            "a request leaves that its client has not",
        ),
        of(
            |machine| machine.tables.clients[ClientSlot::of(1)].uses = 0,
            withdraws(2),
            "a client that nothing uses is left",
        ),
        of(
            |machine| machine.tables.extra_mut(LockSlot::of(0)).waiting = 0,
            withdraws(2),
            "a request leaves a queue that has none",
        ),
        of(
            |machine| machine.tables.waiters[WaiterSlot::of(1)].prev = SlotLink::NONE,
            withdraws(3),
            "a queue's links do not agree: before",
        ),
        of(
            |machine| {
                machine.tables.waiters[WaiterSlot::of(0)].next = SlotLink::to(WaiterSlot::of(4))
            },
            withdraws(3),
            "a queue's links do not agree: before",
        ),
        of(
            |machine| machine.tables.waiters[WaiterSlot::of(4)].arrival = u64::MAX,
            wants("x"),
            "a queue is not in order of arrival (A10)",
        ),
        of(
            |machine| machine.tables.spoil_permit_waits(),
            withdraws(22),
            "a request for permits is not noted as one",
        ),
        of(
            |machine| machine.tables.extra_mut(LockSlot::of(5)).permits = Some(0),
            releases("s", 21),
            "are granted, and only",
        ),
        of(
            |machine| {
                machine
                    .tables
                    .spoil_readers(LockSlot::of(2), |readers| readers.count = 0)
            },
            releases("z", 4),
            "a reader leaves a lock that has none",
        ),
        of(
            |machine| {
                machine
                    .tables
                    .spoil_readers(LockSlot::of(2), |readers| readers.last = readers.first);
            },
            releases("z", 4),
            "the readers' links do not agree: behind",
        ),
        of(
            |machine| machine.tables.sets.clear(),
            withdraws(9),
            "a record of a set belongs to none (M2)",
        ),
        of(
            |machine| machine.tables.sets_of.clear(),
            withdraws(9),
            "a set waits, and its client does not",
        ),
        of(
            |machine| machine.tables.closed_locks.clear(),
            Command::Open {
                lock: lock("w"),
                reason: "".into(),
            },
            "a closed lock has no timer (D2)",
        ),
        of(
            |machine| {
                let free = LeaseSlot::of(machine.tables.leases.slots());
                machine
                    .tables
                    .lease_timers
                    .insert(free, Timestamp::from_millis(1_000_000));
            },
            wants("new"),
            "is put in twice",
        ),
        of(
            |machine| machine.tables.leases[LeaseSlot::of(2)].ttl = Ttl::MIN,
            releases("z", 4),
            "a short lease that was never counted ends",
        ),
        of(
            |machine| {
                machine
                    .to_wake
                    .push_back((LockSlot::of(0), Outcome::Queued))
            },
            Command::Expire,
            "a lock that a set left was not handed on (M2)",
        ),
    ])
}

#[test]
fn the_first_entry_that_meets_a_corruption_is_not_answered() {
    let mut missed = Vec::new();
    for Corruption {
        planted,
        entry,
        fails,
    } in corruptions()
    {
        // The control: without it the entry is answered.
        let mut untouched = machine();
        apply(&mut untouched, entry.clone());
        assert_eq!(invariants::check(&untouched), Ok(()), "{entry:?}");
        let mut spoilt = machine();
        planted(&mut spoilt);
        let answered = catch_unwind(AssertUnwindSafe(|| apply(&mut spoilt, entry.clone())));
        let why = match answered {
            Ok(outcome) => std::format!("answered {outcome:?}"),
            Err(why) => match why.downcast::<String>() {
                Ok(text) => *text,
                Err(why) => why.downcast::<&str>().unwrap().to_string(),
            },
        };
        if !why.contains(fails) {
            missed.push(std::format!("{entry:?}: {why}, not: {fails}"));
        }
    }
    assert!(missed.is_empty(), "{missed:#?}");
}
