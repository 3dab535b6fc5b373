//! Leaders that are killed one after the other, and how long each take-over takes, phase by phase.

use openraft_rt::AsyncRuntime as _;
use openraft_rt_sim::SimRuntime;
use palisade_replica::Takeover;

use super::begin;
use super::nemesis::leader;
use super::network::Terms;
use super::runtime::{MS, hold, now, sleep};
use super::world::World;

/// The nodes have formed a cluster by then, and a node that was killed has everything again.
const SETTLED: u64 = 10_000 * MS;

/// When a node that was killed starts again.
const AWAY: u64 = 3_000 * MS;

/// One take-over.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failover {
    /// From the kill until another node served, in milliseconds.
    pub took_ms: u64,
    /// Its phases, as the new leader shows them. The first one begins with the last message of the leader that was killed.
    pub phases: Takeover,
}

/// Kills a leader so many times; each sync takes `disk_ms` longer than usual.
///
/// # Errors
/// Nobody served for a minute.
pub fn failovers(
    terms: Terms,
    seed: u64,
    times: u32,
    disk_ms: u64,
) -> Result<Vec<Failover>, String> {
    SimRuntime::with_seed(seed).block_on(play(terms, seed, times, disk_ms))
}

async fn play(terms: Terms, seed: u64, times: u32, disk_ms: u64) -> Result<Vec<Failover>, String> {
    let world = begin(terms, seed, None, false);
    sleep(SETTLED).await;
    hold(&world.slow_disk).fill(disk_ms * MS);
    let mut all = Vec::new();
    for kill in 0..times {
        let leads = leader(&world).ok_or_else(|| format!("nobody leads before kill {kill}"))?;
        let engine = world.network.host(leads).engine.clone();
        let term = engine.map_or(0, |engine| engine.progress().vote.term);
        let begun = now();
        world.kill(leads, false, 0, AWAY);
        let phases = loop {
            sleep(MS).await;
            if let Some(phases) = took_over(&world, term) {
                break phases;
            }
            if now() - begun > 60_000 * MS {
                return Err(format!("nobody serves after kill {kill}"));
            }
        };
        let took_ms = (now() - begun) / MS;
        all.push(Failover { took_ms, phases });
        // Kills come at any moment between two heartbeats.
        sleep(SETTLED + 7 * MS * u64::from(kill)).await;
    }
    Ok(all)
}

/// The take-over of a node that leads in a later term than this, once it serves.
fn took_over(world: &World, after: u64) -> Option<Takeover> {
    (0..world.network.nodes()).find_map(|place| {
        let engine = world.network.host(place).engine.clone()?;
        engine.takeover().filter(|takeover| takeover.term > after)
    })
}
