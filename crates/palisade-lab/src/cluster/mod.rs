//! Clusters in virtual time: the production nodes, simulated machines, disks, networks and clients.
//!
//! ```text
//!   clients ──► network ──► node: inbox ──► Orderer ──► Leadership ──► Engine ──► Store ──► Wal ──► simulated disk
//!                  ▲                            (production)             │
//!                  └────────── nodes among each other ◄──────────────────┘
//! ```
//!
//! A run depends on its seed alone. It strikes for a while, then heals everything, and asks for service again and for
//! equal states.

mod check;
mod client;
pub mod command;
mod mutants;
mod nemesis;
mod network;
mod node;
mod runtime;
mod scenario;

use std::collections::{BTreeMap, BTreeSet};
use std::future::Future;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use openraft_rt::AsyncRuntime as _;
use openraft_rt_sim::SimRuntime;
use palisade_replica::peers::PeerHistory;
use palisade_replica::{Applier, Engine, NodeId, Role, State, Store};
use palisade_wal::Compactor;
use palisade_wal::testing::SimStorage;
use tokio::sync::mpsc;

pub use check::{Rule, Violation};
pub use mutants::{Mutant, TABLE};

use crate::sim::rng::Rng;
use check::Check;
use client::Client;
use network::{Network, Place};
use node::Ask;
use runtime::{LabRuntime, Process, now, sleep};

const MS: u64 = 1_000_000;

/// How long it strikes, and how long the cluster may take afterwards to serve everybody again and to agree.
const CHAOS: u64 = 15_000 * MS;
const SERVED: u64 = 15_000 * MS;

/// Clients that wait have given up by then, and leases have ended.
const GIVEN_UP: u64 = 12_000 * MS;

fn hold<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A node's machine.
struct Host {
    disk: SimStorage,
    process: Option<Arc<Process>>,
    inbox: Option<mpsc::UnboundedSender<Ask>>,
    engine: Option<Engine<LabRuntime>>,
    store: Option<Store>,
    compactor: Option<Compactor>,
    applier: Option<Arc<Applier>>,
    /// Its log finds no room, and waits for some.
    full: bool,
    boots: u32,
    /// How often its log was opened.
    starts: u64,
    /// What this process remembers of the others.
    history: PeerHistory,
    /// What was written down of that.
    remembered: String,
    /// The nodes that it has a connection to, each with the boot of that one.
    connected: BTreeMap<Place, u32>,
    /// Why another node did not let it in.
    refused: Option<String>,
    /// It came back with less than it had acknowledged, so the others must refuse it.
    lost: bool,
    /// The first index whose committed entry was not compared with the other nodes' yet.
    compared: u64,
}

impl Default for Host {
    fn default() -> Host {
        Host {
            disk: SimStorage::new(0),
            process: None,
            inbox: None,
            engine: None,
            store: None,
            compactor: None,
            applier: None,
            full: false,
            boots: 0,
            starts: 0,
            history: PeerHistory::default(),
            remembered: String::new(),
            connected: BTreeMap::new(),
            refused: None,
            lost: false,
            compared: 0,
        }
    }
}

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

/// What became of a run.
#[derive(Clone, Debug)]
pub struct Run {
    /// The first rule that was broken.
    pub violation: Option<Violation>,
    /// How much happened.
    pub counts: Counts,
    /// A hash of the committed log and of the counts: equal seeds end equal.
    pub hash: u64,
    /// What happened, line by line, if it was asked for.
    pub trace: Vec<String>,
}

/// Everything that takes part.
struct World {
    seed: u64,
    mutant: Option<Mutant>,
    network: Arc<Network>,
    /// The nodes that form the cluster; the others may be added.
    first_members: Place,
    clients: u8,
    /// The last so many clients only read.
    readers: u8,
    /// Leases are so long that hardly one expires: a leader that is cut off then has nothing to log, and could answer
    /// questions for long.
    long_leases: bool,
    locks: u8,
    /// How wrong each node's clock runs.
    rates_ppm: Vec<i64>,
    slow_disk: Mutex<Vec<u64>>,
    check: Mutex<Check>,
    counts: Mutex<Counts>,
    /// Clients that were granted or refused a lock since everything was healed.
    served: Mutex<BTreeSet<u8>>,
    over: AtomicBool,
    /// How many clients have stopped since.
    clients_left: AtomicU8,
    /// Leaders give their machines back, so that these can be compared with the others.
    ended: AtomicBool,
    /// What happened, if anybody wants to read it.
    trace: Option<Mutex<Vec<String>>>,
}

impl World {
    /// Notes what happens.
    fn say(&self, what: impl FnOnce() -> String) {
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

    fn fork(&self, purpose: u64) -> Rng {
        Rng::fork(self.seed, purpose)
    }

    fn count(&self, count: impl FnOnce(&mut Counts)) {
        count(&mut hold(&self.counts));
    }

    fn broken(&self, what: &str, why: String) {
        hold(&self.check).broken(Rule::Sound, format!("{what}: {why}"));
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::Relaxed)
    }

    fn served(&self, client: u8) {
        hold(&self.served).insert(client);
    }

    /// A task that belongs to no process.
    fn background(&self, task: impl Future<Output = ()> + Send + 'static) {
        drop(SimRuntime::spawn(task));
    }

    /// Compares the committed entries of all logs.
    fn compare(&self) {
        (0..self.network.nodes()).for_each(|place| self.compare_log(place));
    }

    fn compare_log(&self, place: Place) {
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
    async fn settle(&self) {
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
    fn lost(&self) -> usize {
        let lost = |place: &Place| self.network.host(*place).lost;
        (0..self.network.nodes()).filter(lost).count()
    }

    /// Nobody sends clients to a node that does not lead, also not a node that was removed.
    fn compare_leaders(&self) {
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
    fn members(&self) -> Vec<(Place, Arc<Applier>)> {
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

    fn compare_machines(&self, states: &[(Place, Arc<Applier>)]) {
        let mut first: Option<(Place, Vec<u8>)> = None;
        for (place, applier) in states {
            let machine = match machine(applier) {
                Ok(machine) => machine,
                Err(why) => return self.broken("the state of a node", why),
            };
            match &first {
                Some((other, theirs)) if *theirs != machine => {
                    let what = format!("the machines of nodes {other} and {place} differ");
                    return hold(&self.check).broken(Rule::SameState, what);
                }
                Some(_) => {}
                None => first = Some((*place, machine)),
            }
        }
    }
}

/// The bytes of a node's machine.
fn machine(applier: &Applier) -> Result<Vec<u8>, String> {
    let bytes = applier.snapshot().map_err(|error| error.to_string())?;
    let state = State::load(0, &bytes, false).map_err(|error| error.to_string())?;
    let mut machine = Vec::new();
    let written: Result<(), std::convert::Infallible> = state.machine.snapshot(|part| {
        machine.extend_from_slice(part);
        Ok(())
    });
    match written {
        Ok(()) => Ok(machine),
    }
}

/// Runs a seed.
#[must_use]
pub fn run(seed: u64, mutant: Option<Mutant>, trace: bool) -> Run {
    SimRuntime::with_seed(seed).block_on(play(seed, mutant, trace))
}

async fn play(seed: u64, mutant: Option<Mutant>, trace: bool) -> Run {
    let mut rng = Rng::fork(seed, 1);
    let nodes = if rng.chance(600) { 3 } else { 5 };
    let world = Arc::new(World {
        seed,
        mutant,
        network: Arc::new(Network::new(nodes, mutant, Rng::fork(seed, 2))),
        first_members: 3,
        clients: rng.between(4, 7) as u8,
        readers: 1 + rng.below(2) as u8,
        long_leases: seed % 3 == 1,
        locks: rng.between(1, 3) as u8,
        rates_ppm: (0..nodes)
            .map(|_| rng.between(0, 8_000) as i64 - 4_000)
            .collect(),
        slow_disk: Mutex::new(vec![0; usize::from(nodes)]),
        check: Mutex::default(),
        counts: Mutex::default(),
        served: Mutex::default(),
        over: AtomicBool::new(false),
        clients_left: AtomicU8::new(0),
        ended: AtomicBool::new(false),
        trace: trace.then(Mutex::default),
    });
    for place in 0..nodes {
        world.network.host(place).disk = SimStorage::new(seed ^ u64::from(place));
        let lying = mutant == Some(Mutant::LyingDisk);
        world.network.host(place).disk.set_lying(lying);
        if let Err(error) = node::start(&world, place) {
            world.broken("start", error);
        }
    }
    for number in 0..world.clients {
        let client = Client {
            world: Arc::clone(&world),
            number,
            rng: world.fork(200 + u64::from(number)),
            node: 0,
        };
        world.background(client.run());
    }
    sleep(1_000 * MS).await;
    world.background(nemesis::strike(Arc::clone(&world), world.fork(3), CHAOS));
    world.background(nemesis::fill_disks(
        Arc::clone(&world),
        world.fork(4),
        CHAOS,
    ));
    while now() < CHAOS + 3_000 * MS && hold(&world.check).violation.is_none() {
        sleep(100 * MS).await;
        world.compare();
    }
    world.heal().await;
    world.settle().await;
    world.end()
}

impl World {
    /// Everything works from now on, and everybody is to be served.
    async fn heal(self: &Arc<Self>) {
        for place in 0..self.network.nodes() {
            self.network.host(place).disk.set_capacity(None);
            if let Some(process) = self.network.host(place).process.clone() {
                process.go_on();
            }
        }
        self.network.heal();
        self.network.degrade(0, 0, 0);
        hold(&self.slow_disk).fill(0);
        match self.seed % 3 {
            0 => {
                sleep(2_000 * MS).await;
                nemesis::deafen_the_leader(self).await;
            }
            1 => {
                sleep(2_000 * MS).await;
                nemesis::leave_readers_to_the_leader(self).await;
            }
            _ => {
                sleep(2_000 * MS).await;
                scenario::play(self).await;
                self.network.heal();
            }
        }
        hold(&self.served).clear();
        let until = now() + SERVED;
        while hold(&self.served).len() < usize::from(self.clients - self.readers)
            && hold(&self.check).violation.is_none()
        {
            if now() > until {
                let what = "clients are not served although nothing fails any more";
                hold(&self.check).broken(Rule::Serves, what.into());
            }
            sleep(50 * MS).await;
            self.compare();
        }
        self.over.store(true, Ordering::Relaxed);
        let until = now() + GIVEN_UP;
        while now() < until && !self.is_idle() {
            sleep(50 * MS).await;
            self.compare();
        }
        self.ended.store(true, Ordering::Relaxed);
        sleep(1_000 * MS).await;
    }

    /// All clients have stopped, and nothing that they held or waited for is left.
    fn is_idle(&self) -> bool {
        self.clients_left.load(Ordering::Relaxed) == self.clients && hold(&self.check).is_idle()
    }

    fn is_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    fn end(&self) -> Run {
        self.compare();
        let mut check = hold(&self.check);
        check.in_the_end();
        let (grants, entries) = check.sizes();
        let mut counts = *hold(&self.counts);
        (counts.grants, counts.entries) = (grants, entries);
        let hash = check.digest();
        Run {
            violation: check.violation.take(),
            counts,
            hash,
            trace: self
                .trace
                .as_ref()
                .map_or_else(Vec::new, |trace| std::mem::take(&mut hold(trace))),
        }
    }
}
