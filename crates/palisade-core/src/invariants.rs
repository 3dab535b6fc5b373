//! Predicates that are true of a machine at every moment.
//!
//! Tests, the simulator and anyone who doubts call [`check`] after every step.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use crate::command::LockMode;
use crate::limits;
use crate::machine::Machine;
use crate::machine::wheel::is_due;
use crate::permits::Slots;

/// A named predicate over a machine's state.
pub struct Invariant {
    /// Its name.
    pub name: &'static str,
    /// Whether it holds.
    pub holds: fn(&Machine) -> bool,
}

/// All of them.
pub const ALL: &[Invariant] = &[
    Invariant {
        name: "a lock has one record, so at most one grant (A1)",
        holds: one_record_per_lock,
    },
    Invariant {
        name: "tokens are distinct and below the counter (A2)",
        holds: tokens_below_counter,
    },
    Invariant {
        name: "every lock is held, kept for an orphan (A10), or closed for a time (D1)",
        holds: every_lock_is_held_or_kept,
    },
    Invariant {
        name: "every lease has a grant, in token order",
        holds: leases_have_grants,
    },
    Invariant {
        name: "a lease's id is not above its grants' tokens",
        holds: lease_ids_are_first_tokens,
    },
    Invariant {
        name: "what is due stands in line, in the order of its deadlines",
        holds: due_in_line,
    },
    Invariant {
        name: "queues are in order of arrival and counted (A10)",
        holds: queues_are_fifo,
    },
    Invariant {
        name: "every record is found by its key",
        holds: indexes_agree,
    },
    Invariant {
        name: "an orphan's place is kept for its window at most, and never beyond its wait (A10)",
        holds: windows_are_bounded,
    },
    Invariant {
        name: "readers are in the order of their numbers, none below its phase's token, and found by their leases (S1)",
        holds: readers_are_in_order,
    },
    Invariant {
        name: "a reader does not wait for readers alone (S6), nor a request for permits that are free (P6)",
        holds: readers_do_not_wait_for_readers,
    },
    Invariant {
        name: "a semaphore's slots have one holder each, and no other lock has slots (P2)",
        holds: slots_have_one_holder,
    },
    Invariant {
        name: "a set waits as one, and not where it could be granted (M2)",
        holds: sets_wait_as_one,
    },
    Invariant {
        name: "clients are counted",
        holds: clients_are_counted,
    },
];

/// Checks all invariants.
///
/// # Errors
/// The name of the first one that does not hold.
pub fn check(machine: &Machine) -> Result<(), &'static str> {
    match ALL.iter().find(|invariant| !(invariant.holds)(machine)) {
        Some(broken) => Err(broken.name),
        None => Ok(()),
    }
}

fn one_record_per_lock(machine: &Machine) -> bool {
    let names: BTreeSet<&str> = machine
        .tables
        .locks
        .iter()
        .map(|(_, lock)| &*lock.name)
        .collect();
    names.len() == machine.tables.locks.len()
}

fn tokens_below_counter(machine: &Machine) -> bool {
    let mut leases = BTreeMap::new();
    // The locks of a set are under one lease, and have one token.
    let distinct = machine.tables.grants().all(|(_, grant)| {
        let lease = leases.entry(grant.token()).or_insert(grant.lease());
        *lease == grant.lease()
    });
    let kept = machine.tables.kept_locks().map(|(_, last)| last);
    let highest = leases.keys().copied().chain(kept).max();
    let below = |next| highest.is_none_or(|highest| highest < next);
    distinct && machine.next_token.is_none_or(below)
}

fn every_lock_is_held_or_kept(machine: &Machine) -> bool {
    let tables = &machine.tables;
    let mut grants = tables.grants();
    let orphan_is_first = |lock| {
        let first = tables.queue_of(lock).next();
        first.is_some_and(|first| {
            tables.waiters[first].orphan.is_some() || tables.waiters[first].in_set
        })
    };
    grants.all(|(_, grant)| tables.leases.get(grant.lease()).is_some())
        && tables
            .kept_locks()
            .all(|(lock, _)| tables.closed(lock).is_some() || orphan_is_first(lock))
}

fn readers_are_in_order(machine: &Machine) -> bool {
    let tables = &machine.tables;
    let mut listed = 0;
    let in_order = tables.locks.iter().all(|(lock, _)| {
        let readers: Vec<_> = tables.readers_of(lock).collect();
        listed += readers.len();
        let found = |reader| tables.find_share(lock, tables.grant(reader).lease()) == Some(reader);
        readers.len() == tables.readers(lock) as usize
            && readers.is_empty() != tables.is_shared(lock)
            && readers.is_sorted_by_key(|reader| tables.grant(*reader).token())
            && readers.iter().all(|reader| {
                found(*reader) && tables.grant(*reader).token() >= tables.grant(lock).token()
            })
    });
    in_order && listed == tables.shares().count()
}

fn readers_do_not_wait_for_readers(machine: &Machine) -> bool {
    let tables = &machine.tables;
    let mut shared = tables
        .locks
        .iter()
        .filter(|(lock, _)| tables.is_shared(*lock));
    shared.all(|(lock, _)| {
        tables.queue_of(lock).next().is_none_or(|first| {
            let first = &tables.waiters[first];
            let blocked = match first.mode {
                LockMode::Exclusive => true,
                LockMode::Shared => false,
                LockMode::Permits(permits) => tables.free_slots(lock).count() < permits.wanted(),
            };
            blocked || first.orphan.is_some() || first.ends() <= machine.now
        })
    })
}

fn slots_have_one_holder(machine: &Machine) -> bool {
    let tables = &machine.tables;
    tables.locks.iter().all(|(lock, _)| {
        let is_semaphore = tables.permits(lock).is_some();
        let slots: Vec<_> = tables
            .readers_of(lock)
            .map(|share| tables.slots_of(share))
            .collect();
        let all = slots
            .iter()
            .fold(Slots::NONE, |all, slots| all.with(*slots));
        all.count() == slots.iter().map(|slots| slots.count()).sum::<u32>()
            && slots.iter().all(|slots| slots.is_empty() != is_semaphore)
            && !(is_semaphore && tables.is_exclusive(lock))
    })
}

fn sets_wait_as_one(machine: &Machine) -> bool {
    let tables = &machine.tables;
    let in_sets = tables.waiters.iter().filter(|(_, waiter)| waiter.in_set);
    let parts: usize = tables.sets().map(<[_]>::len).sum();
    in_sets.count() == parts
        && tables.sets().all(|set| {
            let parts: Vec<_> = set
                .iter()
                .filter_map(|part| tables.waiters.get(*part))
                .collect();
            let Some(first) = parts.first() else {
                return false;
            };
            let one = |part: &&_| {
                let of = |waiter: &crate::machine::record::Waiter| {
                    (
                        waiter.request,
                        waiter.arrival,
                        waiter.client,
                        waiter.deadline,
                        waiter.orphan,
                    )
                };
                of(part) == of(first)
            };
            let waits = first.orphan.is_some() || first.ends() <= machine.now;
            parts.len() == set.len()
                && parts.len() > 1
                && parts.iter().all(one)
                && (waits || !tables.is_ready(set))
        })
}

fn windows_are_bounded(machine: &Machine) -> bool {
    let latest = machine.now.after(limits::ORPHAN_WINDOW);
    let mut waiters = machine.tables.waiters.iter();
    waiters.all(|(_, waiter)| waiter.ends() <= waiter.deadline && waiter.orphan <= Some(latest))
}

fn leases_have_grants(machine: &Machine) -> bool {
    let tables = &machine.tables;
    let tied = tables
        .leases
        .iter()
        .map(|(slot, _)| tables.grants_of(slot).count())
        .sum::<usize>();
    tied == tables.grants().count()
        && tables.leases.iter().all(|(slot, _)| {
            let tokens: Vec<_> = tables
                .grants_of(slot)
                .map(|grant| tables.grant(grant).token())
                .collect();
            !tokens.is_empty() && tokens.is_sorted()
        })
}

fn lease_ids_are_first_tokens(machine: &Machine) -> bool {
    let tables = &machine.tables;
    tables
        .grants()
        .all(|(slot, grant)| tables.lease_of(slot).id.0 <= grant.token())
}

fn due_in_line(machine: &Machine) -> bool {
    let (tables, now) = (&machine.tables, machine.now);
    let leases: BTreeSet<_> = tables
        .leases
        .iter()
        .filter(|(_, lease)| is_due(lease.expires, now))
        .map(|(slot, lease)| (lease.expires, lease.id.0.get(), slot))
        .collect();
    let waits: BTreeSet<_> = tables
        .waiters
        .iter()
        .filter(|(slot, waiter)| tables.is_first_part(*slot, waiter))
        .filter(|(_, waiter)| is_due(waiter.ends(), now))
        .map(|(slot, waiter)| (waiter.ends(), waiter.arrival, slot))
        .collect();
    let (lease_line, wait_line) = (tables.lease_timers.in_line(), tables.wait_timers.in_line());
    let lease_line = lease_line.filter(|due| leases.contains(due));
    let wait_line = wait_line.filter(|due| waits.contains(due));
    lease_line.eq(leases.iter().copied()) && wait_line.eq(waits.iter().copied())
}

fn queues_are_fifo(machine: &Machine) -> bool {
    let tables = &machine.tables;
    let queued: usize = tables
        .locks
        .iter()
        .map(|(slot, _)| tables.queue_of(slot).count())
        .sum();
    queued == tables.waiters.len()
        && tables.locks.iter().all(|(slot, _)| {
            let arrivals: Vec<_> = tables
                .queue_of(slot)
                .map(|at| tables.waiters[at].arrival)
                .collect();
            arrivals.is_sorted() && arrivals.len() == tables.waiting(slot) as usize
        })
}

fn indexes_agree(machine: &Machine) -> bool {
    let tables = &machine.tables;
    tables
        .locks
        .iter()
        .all(|(slot, lock)| tables.find_lock(&lock.name) == Some(slot))
        && tables
            .leases
            .iter()
            .all(|(slot, lease)| tables.find_lease(&lease.key) == Some(slot))
        && tables.waiters.iter().all(|(slot, waiter)| {
            let found = tables.find_waiter(tables.principal_of(waiter.client), &waiter.request);
            match waiter.in_set {
                true => found.is_some() && found == tables.parts_of(waiter).first().copied(),
                false => found == Some(slot),
            }
        })
}

fn clients_are_counted(machine: &Machine) -> bool {
    let tables = &machine.tables;
    let (mut leases, mut waiting) = (BTreeMap::new(), BTreeMap::new());
    for (_, lease) in tables.leases.iter() {
        *leases.entry(lease.client.slot()).or_insert(0) += 1;
    }
    for (_, waiter) in tables.waiters.iter() {
        *waiting.entry(waiter.client.slot()).or_insert(0) += 1;
    }
    tables.clients.iter().all(|(slot, client)| {
        let count = |of: &BTreeMap<_, u32>| of.get(&slot).copied().unwrap_or(0);
        client.uses > 0
            && client.uses == count(&leases) + count(&waiting)
            && client.waiting == count(&waiting)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::command::{Acquire, Command, Entry, Under};
    use crate::id::{LeaseId, LeaseKey, RequestId};
    use crate::name::{ClientId, LockName};
    use crate::permits::Permits;
    use crate::time::{Span, Timestamp, Ttl, WallTime};
    use crate::token::Token;

    /// Client `a` holds `x` and `y` under one lease, and two others wait for `x`; `d` and `e` read `z`, and `f` waits
    /// to write it.
    fn sound() -> Machine {
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
                    "d" | "e" => LockMode::Shared,
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
            let entry = Entry {
                at: Timestamp::ZERO,
                wall: WallTime::default(),
                by: crate::id::Principal::ANONYMOUS,
                command,
            };
            machine.apply(entry, &mut Vec::new());
        }
        assert_eq!(
            (machine.locks(), machine.leases(), machine.waiters()),
            (3, 3, 3)
        );
        machine
    }

    /// The control arm of every test that calls [`check`]. None of these states can be reached by
    /// entries or through a snapshot, so they are made by hand.
    #[test]
    fn each_predicate_can_fail() {
        let spoils: [fn(&mut Machine); 14] = [
            |machine| machine.tables.locks[1].name = machine.tables.locks[0].name.clone(),
            |machine| machine.next_token = Some(machine.tables.grant(1).token()),
            |machine| machine.tables.spoil_grant(0, Token::FIRST, 77),
            |machine| machine.tables.spoil_grant(0, Token::MAX, 0),
            |machine| machine.tables.leases[0].id = LeaseId(Token::MAX),
            |machine| machine.now = Timestamp::from_millis(1_000),
            |machine| machine.tables.waiters[0].arrival = 9,
            |machine| machine.tables.leases[0].key = LeaseKey::from_bytes([9; 16]),
            |machine| machine.tables.waiters[0].orphan = Some(Timestamp::from_millis(3_000)),
            |machine| machine.tables.spoil_phase(2, Token::MAX),
            |machine| machine.tables.waiters[2].mode = LockMode::Shared,
            |machine| machine.tables.spoil_permits(2),
            |machine| machine.tables.waiters[0].in_set = true,
            |machine| machine.tables.clients[0].uses += 1,
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
        let spoils: [(&str, Spoil); 4] = [
            ("below the counter", |machine| {
                machine.next_token = machine
                    .tables
                    .grants()
                    .map(|(_, grant)| grant.token())
                    .max();
            }),
            ("kept for its window", |machine| {
                let waiter = &mut machine.tables.waiters[0];
                waiter.deadline = Timestamp::from_millis(60_000);
                waiter.orphan = Some(
                    machine
                        .now
                        .after(limits::ORPHAN_WINDOW)
                        .after(Span::from_nanos(1)),
                );
            }),
            ("permits that are free", |machine| {
                // One is free and one is wanted: the readers have no slots.
                machine.tables.spoil_permits(2);
                machine.tables.waiters[2].mode = LockMode::Permits(Permits::new(1, 1).unwrap());
            }),
            ("clients are counted", |machine| {
                let client = machine.tables.clients[0].clone();
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
        machine.tables.clients[0].uses += 1;
        assert_eq!(check(&machine), Err("clients are counted"));
    }
}
