//! The content of the authority's machine after a restart, as a fact.

use std::collections::BTreeMap;

use palisade_core::machine::Record;
use palisade_core::{Machine, Span, Timestamp};

use super::caller::{index, wanted};
use super::id_map::IdMap;
use super::queues::Waiting;
use crate::sim::fact::{Fact, Orphan};

pub(super) fn recovered(
    machine: &Machine,
    (at, down): (Timestamp, Span),
    restored: bool,
    waiting: &[Waiting],
    ids: &mut IdMap,
) -> Fact {
    Fact::Recovered {
        at: at.as_nanos(),
        down: down.as_nanos(),
        restored,
        next: machine.next_token().map_or(u64::MAX, |token| token.get()),
        live: live(machine, ids),
        closed: closed(machine),
        permits: permits(machine),
        orphans: waiting
            .iter()
            .map(|Waiting { record, locks }| Orphan {
                request: ids.number(record.request),
                client: index(&record.client),
                locks: locks.iter().map(|lock| index(lock)).collect(),
                until: record.deadline.as_nanos(),
                mode: record.mode,
                wanted: wanted(record.mode),
            })
            .collect(),
    }
}

fn live(machine: &Machine, ids: &IdMap) -> Vec<(u8, u64, u8)> {
    let mut clients = BTreeMap::new();
    let live = machine.records().filter_map(|record| {
        let grant = match record {
            Record::Lease(lease) => {
                clients.insert(*lease.key.as_bytes(), index(&lease.client));
                return None;
            }
            Record::Grant(grant) => grant,
            Record::Share(share) => share.grant,
            _ => return None,
        };
        let client = *clients.get(grant.key.as_bytes())?;
        let token = ids.outward(grant.token).get();
        Some((index(&grant.lock), token, client))
    });
    let mut live: Vec<(u8, u64, u8)> = live.collect();
    live.sort_unstable();
    live
}

fn permits(machine: &Machine) -> Vec<(u8, u8)> {
    let permits = machine.records().filter_map(|record| match record {
        Record::Share(share) => Some((index(&share.grant.lock), share.permits?.0 as u8)),
        Record::Kept(kept) => Some((index(&kept.lock), kept.permits? as u8)),
        _ => None,
    });
    let mut permits: Vec<(u8, u8)> = permits.collect();
    permits.sort_unstable();
    permits.dedup();
    permits
}

fn closed(machine: &Machine) -> Vec<(u8, u64)> {
    let closed = machine.records().filter_map(|record| match record {
        Record::Kept(kept) => Some((index(&kept.lock), kept.closed?.as_nanos())),
        _ => None,
    });
    let mut closed: Vec<(u8, u64)> = closed.collect();
    closed.sort_unstable();
    closed
}
