//! A long time in which nothing fails: the leader stays, if the timers suit the network.

use std::sync::Arc;

use openraft_rt::AsyncRuntime as _;
use openraft_rt_sim::SimRuntime;
use palisade_replica::{Role, Takeover};

use super::begin;
use super::network::Terms;
use super::runtime::{MS, hold, sleep};
use super::world::World;

/// The nodes have formed a cluster by then.
const FORMED: u64 = 10_000 * MS;

/// The events after the cluster was formed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Steady {
    /// How many leaders began to serve.
    pub elected: u64,
    /// For how many seconds no node led that had begun to serve, as seen once a second.
    pub without: u64,
}

/// Lets a cluster run for `seconds`; each sync takes `disk_ms` longer than usual.
#[must_use]
pub fn steady(terms: Terms, seed: u64, seconds: u64, disk_ms: u64) -> Steady {
    SimRuntime::with_seed(seed).block_on(play(terms, seed, seconds, disk_ms))
}

async fn play(terms: Terms, seed: u64, seconds: u64, disk_ms: u64) -> Steady {
    let world = begin(terms, seed, None, false);
    sleep(FORMED).await;
    hold(&world.slow_disk).fill(disk_ms * MS);
    for number in 0..world.clients {
        let client = super::Client {
            world: Arc::clone(&world),
            number,
            rng: world.fork(200 + u64::from(number)),
            node: 0,
        };
        world.background(client.run());
    }
    let before = hold(&world.counts).leaders;
    let mut without = 0;
    for _ in 0..seconds {
        sleep(1_000 * MS).await;
        without += u64::from(!is_served(&world));
    }
    Steady {
        elected: hold(&world.counts).leaders - before,
        without,
    }
}

/// Whether a node leads, and has committed in this leadership: one that a slow network elects and then cuts off does not.
fn is_served(world: &World) -> bool {
    (0..world.network.nodes()).any(|place| {
        let engine = world.network.host(place).engine.clone();
        engine.is_some_and(|engine| {
            let progress = engine.progress();
            let serves = |takeover: Takeover| takeover.term == progress.vote.term;
            progress.role == Role::Leader && engine.takeover().is_some_and(serves)
        })
    })
}
