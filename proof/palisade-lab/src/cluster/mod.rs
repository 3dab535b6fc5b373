//! Clusters in virtual time: the production nodes, simulated machines, disks, networks and clients.
//!
//! ```text
//!   clients ──► network ──► node: inbox ──► Round ──► Leadership ──► Engine ──► Store ──► Wal ──► simulated disk
//!                  ▲                            (production)             │
//!                  └────────── nodes among each other ◄──────────────────┘
//! ```
//!
//! A run depends on its seed alone. It strikes for a while, then heals everything, and asks for service again and for
//! equal states.

mod check;
mod client;
pub mod command;
mod failover;
mod mutants;
mod nemesis;
mod network;
mod node;
mod quiet;
mod rule;
mod runtime;
mod scenario;
mod steady;
mod world;

use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::sync::{Arc, Mutex};

use openraft_rt::AsyncRuntime as _;
use openraft_rt_sim::SimRuntime;
use palisade_wal::testing::SimStorage;

pub use check::Violation;
pub use failover::{Failover, failovers};
pub use mutants::{Mutant, TABLE};
pub use network::Terms;
pub use quiet::{Quiet, quiet};
pub use rule::Rule;
pub use steady::{Steady, steady};
pub use world::Counts;

use crate::sim::rng::Rng;
use client::Client;
use network::Network;
use runtime::{MS, hold, now, sleep};
use world::{SERVED, World};

/// How long it strikes, and how long the cluster may take afterwards to serve everybody again and to agree.
const CHAOS: u64 = 15_000 * MS;

/// Clients that wait have given up by then, and leases have ended.
const GIVEN_UP: u64 = 12_000 * MS;

/// The result of a run.
#[derive(Clone, Debug)]
pub struct Run {
    /// The first rule that was broken.
    pub violation: Option<Violation>,
    /// How much happened.
    pub counts: Counts,
    /// A hash of the committed log and of the counts: equal seeds end equal.
    pub hash: u64,
    /// The events, line by line, if a trace was asked for.
    pub trace: Vec<String>,
}

/// Runs a seed.
#[must_use]
pub fn run(seed: u64, mutant: Option<Mutant>, trace: bool) -> Run {
    run_on(Terms::default(), seed, mutant, trace)
}

/// Runs a seed with these timers.
#[must_use]
pub fn run_on(terms: Terms, seed: u64, mutant: Option<Mutant>, trace: bool) -> Run {
    SimRuntime::with_seed(seed).block_on(play(terms, seed, mutant, trace))
}

/// The nodes of a seed, started.
fn begin(terms: Terms, seed: u64, mutant: Option<Mutant>, trace: bool) -> Arc<World> {
    let mut rng = Rng::fork(seed, 1);
    let nodes = if rng.chance(600) { 3 } else { 5 };
    let world = Arc::new(World {
        seed,
        mutant,
        terms,
        network: Arc::new(Network::new(nodes, mutant, terms, Rng::fork(seed, 2))),
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
    world
}

async fn play(terms: Terms, seed: u64, mutant: Option<Mutant>, trace: bool) -> Run {
    let world = begin(terms, seed, mutant, trace);
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
