//! All participants of a run, and the comparison of the nodes.

use std::collections::BTreeSet;
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex};

use openraft_rt::AsyncRuntime as _;
use openraft_rt_sim::SimRuntime;
use palisade_core::invariants;
use palisade_replica::{Applier, NodeId, Role, State};

use super::check::Check;
use super::mutants::Mutant;
use super::network::{Network, Place, Terms};
use super::rule::Rule;
use super::runtime::{MS, hold, now, sleep};
use crate::sim::rng::Rng;

pub(super) const SERVED: u64 = 15_000 * MS;

/// How much happened in a run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Grants that clients were told of.
    pub grants: u64,
    /// Entries that were committed.
    pub entries: u64,
    /// Leaderships that began.
    pub leaders: u64,
    /// Processes that were killed, or ended because their disk failed.
    pub kills: u64,
    /// Processes that were paused.
    pub pauses: u64,
    /// Nodes that were cut off.
    pub cuts: u64,
    /// Changes of the members.
    pub changes: u64,
    /// Snapshots of a log.
    pub snapshots: u64,
    /// Disks that were full.
    pub full_disks: u64,
}

impl std::ops::AddAssign for Counts {
    fn add_assign(&mut self, other: Counts) {
        self.grants += other.grants;
        self.entries += other.entries;
        self.leaders += other.leaders;
        self.kills += other.kills;
        self.pauses += other.pauses;
        self.cuts += other.cuts;
        self.changes += other.changes;
        self.snapshots += other.snapshots;
        self.full_disks += other.full_disks;
    }
}

/// Everything that takes part.
pub(super) struct World {
    pub(super) seed: u64,
    pub(super) mutant: Option<Mutant>,
    pub(super) terms: Terms,
    pub(super) network: Arc<Network>,
    /// The nodes that form the cluster; the others may be added.
    pub(super) first_members: Place,
    pub(super) clients: u8,
    /// The last so many clients only read.
    pub(super) readers: u8,
    /// Leases are so long that hardly one expires: a leader that is cut off then has nothing to log, and could answer
    /// questions for long.
    pub(super) long_leases: bool,
    pub(super) locks: u8,
    /// How wrong each node's clock runs.
    pub(super) rates_ppm: Vec<i64>,
    pub(super) slow_disk: Mutex<Vec<u64>>,
    pub(super) check: Mutex<Check>,
    pub(super) counts: Mutex<Counts>,
    /// Clients that were granted or refused a lock since everything was healed.
    pub(super) served: Mutex<BTreeSet<u8>>,
    pub(super) over: AtomicBool,
    /// How many clients have stopped since.
    pub(super) clients_left: AtomicU8,
    /// Leaders give their machines back, so that these can be compared with the others.
    pub(super) ended: AtomicBool,
    /// The events, if a trace was asked for.
    pub(super) trace: Option<Mutex<Vec<String>>>,
}

impl World {
    /// Records an event.
    pub(super) fn say(&self, what: impl FnOnce() -> String) {
        if let Some(trace) = &self.trace {
            let at = now() / 1_000;
            hold(trace).push(format!(
                "{:>6}.{:03} ms  {}",
                at / 1_000,
                at % 1_000,
                what()
            ));
        }
    }

    /// How long a leader that hears no quorum serves (rule R5), and is silent then (rule R6).
    pub(super) fn patience(&self) -> u64 {
        self.terms.timers.timers().patience().as_millis() as u64 * MS
    }

    pub(super) fn silence(&self) -> u64 {
        self.terms.timers.timers().silence().as_millis() as u64 * MS
    }

    pub(super) fn fork(&self, purpose: u64) -> Rng {
        Rng::fork(self.seed, purpose)
    }

    pub(super) fn count(&self, count: impl FnOnce(&mut Counts)) {
        count(&mut hold(&self.counts));
    }

    pub(super) fn broken(&self, what: &str, why: String) {
        hold(&self.check).broken(Rule::Sound, format!("{what}: {why}"));
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    pub(super) fn served(&self, client: u8) {
        hold(&self.served).insert(client);
    }

    /// A task that belongs to no process.
    pub(super) fn background(&self, task: impl Future<Output = ()> + Send + 'static) {
        drop(SimRuntime::spawn(task));
    }

    /// Compares the committed entries of all logs.
    pub(super) fn compare(&self) {
        (0..self.network.nodes()).for_each(|place| self.compare_log(place));
    }

    pub(super) fn compare_log(&self, place: Place) {
        let mut host = self.network.host(place);
        if !host.lost
            && let Some(why) = host.refused.take()
        {
            self.broken("a node that lost nothing is refused", why);
        }
        let Some(store) = host.store.clone() else {
            return;
        };
        let from = host.compared;
        let mut check = hold(&self.check);
        host.compared = store.look(|log| {
            let Some(committed) = log.committed() else {
                return from;
            };
            let entries = log.range(from..=committed.index);
            entries.for_each(|entry| check.committed(place, entry));
            check.position(place, committed);
            committed.index + 1
        });
        check.did().into_iter().for_each(|did| self.say(|| did));
    }

    /// Waits until all members have applied the same entries, then compares their machines.
    pub(super) async fn settle(&self) {
        let until = now() + SERVED;
        while hold(&self.check).violation.is_none() {
            self.compare();
            let states = self.members();
            let last = states.first().map(|(_, applier)| applier.applied().0);
            let same = states
                .iter()
                .all(|(_, applier)| Some(applier.applied().0) == last);
            if same && states.len() + self.lost() > 2 {
                self.compare_leaders();
                return self.compare_machines(&states);
            }
            if now() > until {
                let applied: Vec<_> = states
                    .iter()
                    .map(|(place, applier)| (*place, applier.applied().0.map(|id| id.index)))
                    .collect();
                let what = format!("the members do not come to the same state: {applied:?}");
                return hold(&self.check).broken(Rule::Serves, what);
            }
            sleep(100 * MS).await;
        }
    }

    /// How many nodes came back with less than they had acknowledged.
    pub(super) fn lost(&self) -> usize {
        let lost = |place: &Place| self.network.host(*place).lost;
        (0..self.network.nodes()).filter(lost).count()
    }

    /// Nobody sends clients to a node that does not lead, also not a node that was removed.
    pub(super) fn compare_leaders(&self) {
        let named = |place| {
            let host = self.network.host(place);
            host.engine.as_ref()?.progress().leader
        };
        let named: BTreeSet<NodeId> = (0..self.network.nodes()).filter_map(named).collect();
        if named.len() > 1 {
            let what = format!("clients are sent to several leaders: {named:?}");
            hold(&self.check).broken(Rule::Serves, what);
        }
    }

    /// The members of the cluster, as its leader knows them, that run.
    pub(super) fn members(&self) -> Vec<(Place, Arc<Applier>)> {
        let places = || 0..self.network.nodes();
        let leader = places().find_map(|place| {
            let progress = self.network.host(place).engine.as_ref()?.progress();
            (progress.role == Role::Leader).then_some(progress)
        });
        let Some(leader) = leader else {
            return Vec::new();
        };
        let nodes = leader.members.nodes.keys().map(|node| node.0 as Place);
        nodes
            .filter_map(|place| Some((place, self.network.host(place).applier.clone()?)))
            .collect()
    }

    pub(super) fn compare_machines(&self, states: &[(Place, Arc<Applier>)]) {
        let mut first: Option<(Place, Vec<u8>)> = None;
        for (place, applier) in states {
            let machine = match machine(applier) {
                Ok(machine) => machine,
                Err(why) => return self.broken("the state of a node", why),
            };
            match &first {
                Some((other, theirs)) if *theirs != machine => {
                    let its = |of: Place| {
                        let found = states.iter().find(|(place, _)| *place == of);
                        found.map_or(Vec::new(), |(_, applier)| records(applier))
                    };
                    let (one, two) = (its(*other), its(*place));
                    let differ: Vec<_> = one
                        .iter()
                        .filter(|record| !two.contains(record))
                        .chain(two.iter().filter(|record| !one.contains(record)))
                        .take(4)
                        .collect();
                    let what = format!(
                        "the machines of nodes {other} and {place} differ, in {differ:?} or in the order of their records"
                    );
                    return hold(&self.check).broken(Rule::SameState, what);
                }
                Some(_) => {}
                None => first = Some((*place, machine)),
            }
        }
    }

    pub(super) fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }
}

/// The records of a node's machine, for a message.
fn records(applier: &Applier) -> Vec<String> {
    let bytes = applier.snapshot().unwrap_or_default();
    let Ok(state) = State::load(0, &bytes, false) else {
        return Vec::new();
    };
    let records = state.machine.machine().records();
    records.map(|record| format!("{record:?}")).collect()
}

/// The bytes of a node's machine.
fn machine(applier: &Applier) -> Result<Vec<u8>, String> {
    let bytes = applier.snapshot().map_err(|error| error.to_string())?;
    let state = State::load(0, &bytes, false).map_err(|error| error.to_string())?;
    invariants::check(state.machine.machine()).map_err(|broken| format!("not so: {broken}"))?;
    let mut machine = Vec::new();
    let written: Result<(), std::convert::Infallible> = state.machine.snapshot(|part| {
        machine.extend_from_slice(part);
        Ok(())
    });
    match written {
        Ok(()) => Ok(machine),
    }
}
