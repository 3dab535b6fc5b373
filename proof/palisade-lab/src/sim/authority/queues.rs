//! The requests that wait in the authority's machine, and mutants that drive them out of their queues.

use palisade_core::machine::{Record, WaiterRecord};
use palisade_core::{LockMode, LockName, Machine};
use palisade_pipeline::Request;

use super::caller::wanted;
use super::follower::Follower;
use super::id_map::IdMap;
use crate::sim::mutants::Mutant;

/// A request that waits: its first record, and its locks. A set has a record in the queue of each.
pub(super) struct Waiting {
    pub(super) record: WaiterRecord,
    pub(super) locks: Vec<LockName>,
}

/// The requests that wait, in order of arrival.
pub(super) fn waiting(machine: &Machine) -> Vec<Waiting> {
    let mut waiting: Vec<Waiting> = Vec::new();
    for record in machine.records() {
        let Record::Waiter(record) = record else {
            continue;
        };
        let lock = record.lock.clone();
        let is_its = |other: &&mut Waiting| other.record.arrival == record.arrival;
        match waiting.iter_mut().find(is_its) {
            Some(set) => set.locks.push(lock),
            None => waiting.push(Waiting {
                record,
                locks: vec![lock],
            }),
        }
    }
    waiting
}

/// Whether requests wait, and no caller of them has come back.
pub(super) fn only_orphans(machine: &Machine) -> bool {
    let mut waiting = waiting(machine).into_iter();
    machine.waiters() > 0 && waiting.all(|waiting| waiting.record.orphan.is_some())
}

/// A mutant: the connections of those who wait end one after the other, the first in its queue first.
pub(super) fn in_turn(machine: &Machine, follower: &Follower, ids: &mut IdMap) -> Vec<u64> {
    let waiting = waiting(machine).into_iter();
    let sessions =
        waiting.filter_map(|waiting| follower.session_of(ids.number(waiting.record.request)));
    sessions.collect()
}

/// Mutants: a request that waits for the same lock loses its place when another one comes.
pub(super) fn overtaken(
    mutant: Mutant,
    machine: &Machine,
    follower: &Follower,
    request: &Request,
    ids: &mut IdMap,
) -> Vec<u64> {
    let Request::Acquire(wish) = request else {
        return Vec::new();
    };
    let loses = |waiting: &Waiting| match mutant {
        Mutant::ReaderOvertakes => {
            wish.mode == LockMode::Shared && waiting.record.mode == LockMode::Exclusive
        }
        Mutant::UpgradeOvertaken => {
            wish.mode == LockMode::Shared && waiting.record.mode == LockMode::Upgrade
        }
        Mutant::SmallOvertakes => wanted(wish.mode) < wanted(waiting.record.mode),
        Mutant::SetOvertaken => wish.also.is_empty() && waiting.locks.len() > 1,
        _ => false,
    };
    let meets = |waiting: &Waiting| wish.locks().any(|lock| waiting.locks.contains(lock));
    let waiting = waiting(machine).into_iter();
    let losers = waiting.filter(|waiting| meets(waiting) && loses(waiting));
    let sessions =
        losers.filter_map(|waiting| follower.session_of(ids.number(waiting.record.request)));
    sessions.collect()
}
