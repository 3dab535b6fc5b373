//! Predicates that are true of a machine at every moment.
//!
//! Tests and the simulator call [`check`] after every step.

use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use crate::command::{LockMode, Under};
use crate::limits;
use crate::machine::Machine;
use crate::machine::grant::GrantSlot;
use crate::machine::record::{Waiter, WaiterRole};
use crate::machine::slab::{ShareSlot, WaiterSlot};
use crate::machine::wheel::is_due;
use crate::options::GrantOptions;
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
        name: "tokens are distinct but within a set, and below the counter (A2, M1)",
        holds: tokens_below_counter,
    },
    Invariant {
        name: "every lock is held, kept for an orphan (A10) or a set (M2), or closed for a time (D1)",
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
        name: "a lease that was extended is live, and ends within its limit (A7)",
        holds: extensions_are_of_live_leases,
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
        name: "a grant in mode update is one of the readers, and its upgrade is first in the queue (S8)",
        holds: upgrades_are_first,
    },
    Invariant {
        name: "a semaphore's slots have one holder each, and no other lock has slots (P2)",
        holds: slots_have_one_holder,
    },
    Invariant {
        name: "the parts of a set that waits agree, and it does not wait when it is first and all is free (M2)",
        holds: sets_wait_together,
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
    let tables = &machine.tables;
    let kept = tables.kept_locks().map(|(_, last)| last);
    let grants = tables.grants();
    let mut grants: Vec<_> = grants
        .map(|(slot, grant)| (grant.token(), grant.lease(), slot))
        .collect();
    grants.sort_unstable();
    let of_one_set = |slot, other, lease| {
        let exclusive = |slot: GrantSlot| !slot.is_share();
        lease && exclusive(slot) && exclusive(other)
    };
    let distinct = grants.windows(2).all(|pair| {
        let [(token, lease, slot), (next, under, other)] = [pair[0], pair[1]];
        token != next || of_one_set(slot, other, lease == under)
    });
    let highest = grants.last().map(|(token, ..)| *token).max(kept.max());
    distinct && machine.next_token.is_none_or(|next| highest < Some(next))
}

fn every_lock_is_held_or_kept(machine: &Machine) -> bool {
    let tables = &machine.tables;
    let mut grants = tables.grants();
    let orphan_is_first = |lock| {
        let first = tables.queue_of(lock).next();
        let first = first.map(|first| &tables.waiters[first]);
        first.is_some_and(|first| first.orphan.is_some() || first.role != WaiterRole::Alone)
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
        let grant = |reader: ShareSlot| tables.grant(reader.grant());
        let found = |reader| tables.find_share(lock, grant(reader).lease()) == Some(reader);
        readers.len() == tables.readers(lock) as usize
            && readers.is_empty() != tables.is_shared(lock)
            && readers.is_sorted_by_key(|reader| grant(*reader).token())
            && readers.iter().all(|reader| {
                found(*reader) && grant(*reader).token() >= tables.writer(lock).token()
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
                LockMode::Shared => machine.is_restored(lock),
                LockMode::Update => machine.is_restored(lock) || tables.update_on(lock).is_some(),
                LockMode::Upgrade => tables.upgrade_has_to_wait(lock),
                LockMode::Permits(permits) => tables.free_permits(lock) < permits.wanted(),
            };
            blocked || first.orphan.is_some() || first.ends() <= machine.now
        })
    })
}

fn upgrades_are_first(machine: &Machine) -> bool {
    let tables = &machine.tables;
    tables.locks.iter().all(|(lock, _)| {
        let update = tables.update_on(lock);
        let key = update.map(|update| tables.lease_of(update.grant()).key);
        let mut readers = tables.readers_of(lock);
        update.is_none_or(|update| readers.any(|reader| reader == update))
            && tables.queue_of(lock).enumerate().all(|(place, at)| {
                let waiter = &tables.waiters[at];
                let own =
                    matches!(waiter.under, Under::Existing { key: of, .. } if Some(of) == key);
                waiter.mode != LockMode::Upgrade || (place == 0 && own)
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

fn extensions_are_of_live_leases(machine: &Machine) -> bool {
    let tables = &machine.tables;
    let extended = tables.leases.iter().filter_map(|(slot, lease)| {
        let extension = tables.extensions.get(slot)?;
        Some(extension.limit >= lease.expires)
    });
    let within: Vec<bool> = extended.collect();
    within.len() == tables.extensions.count() && within.into_iter().all(|within| within)
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
        .filter(|(_, waiter)| waiter.role != WaiterRole::Other && is_due(waiter.ends(), now))
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
            let queue = tables.queue_of(slot).map(|at| &tables.waiters[at]);
            let all: Vec<_> = queue.collect();
            // An upgrade goes to the head.
            let rest = match all.split_first() {
                Some((first, rest)) if first.mode == LockMode::Upgrade => rest,
                _ => &all,
            };
            rest.is_sorted_by_key(|waiter| waiter.arrival)
                && all.len() == tables.waiting(slot) as usize
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
            let found = match (waiter.role, tables.sets.get(&waiter.arrival)) {
                (WaiterRole::Other, Some(parts)) => parts[0],
                _ => slot,
            };
            tables.find_waiter(tables.principal_of(waiter.client), &waiter.request) == Some(found)
        })
}

fn sets_wait_together(machine: &Machine) -> bool {
    let tables = &machine.tables;
    let waiters = tables.waiters.iter();
    let parts = waiters
        .filter(|(_, waiter)| waiter.role != WaiterRole::Alone)
        .count();
    parts == tables.sets.values().map(|parts| parts.len()).sum::<usize>()
        && tables.sets.iter().all(|(arrival, parts)| {
            let first = &tables.waiters[parts[0]];
            let agrees = |part: &WaiterSlot| {
                let waiter = &tables.waiters[*part];
                let asked = |waiter: &Waiter| {
                    let Waiter { client, under, .. } = *waiter;
                    let when = (waiter.since, waiter.deadline, waiter.orphan);
                    (waiter.request, client, under, when)
                };
                waiter.arrival == *arrival
                    && asked(waiter) == asked(first)
                    && (waiter.mode, waiter.options) == (LockMode::Exclusive, GrantOptions::NONE)
                    && (waiter.role == WaiterRole::First) == (*part == parts[0])
                    && (waiter.metadata.is_none() || *part == parts[0])
            };
            let name = |part: &WaiterSlot| &tables.locks[tables.waiters[*part].lock].name;
            (2..=limits::SET_LOCKS).contains(&parts.len())
                && parts.iter().all(agrees)
                && parts.windows(2).all(|pair| name(&pair[0]) < name(&pair[1]))
                && (first.orphan.is_some()
                    || first.ends() <= machine.now
                    || !tables.is_ready(parts, machine.now))
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
pub(crate) mod tests;
