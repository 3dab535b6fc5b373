//! The faults, drawn from the seed.

use std::collections::BTreeSet;
use std::sync::Arc;

use palisade_replica::{NodeId, Role};
use palisade_wal::testing::{CrashLoss, Fault};

use super::mutants::Mutant;
use super::network::{CLIENT, Place};
use super::node;
use super::rule::Rule;
use super::runtime::{MS, hold, now, sleep};
use super::world::World;
use crate::sim::rng::Rng;

/// Strikes until `end`.
pub(super) async fn strike(world: Arc<World>, mut rng: Rng, end: u64) {
    while now() < end {
        let rest = rng.between(50 * MS, 700 * MS);
        sleep(rest).await;
        let place = rng.below(u64::from(world.network.nodes())) as Place;
        // A third of the time it is the leader that is hit.
        let place = if rng.chance(333) {
            leader(&world).unwrap_or(place)
        } else {
            place
        };
        let (chance, span) = (rng.next(), rng.between(50 * MS, 2_000 * MS));
        let network = &world.network;
        let kind = rng.below(12);
        world.say(|| format!("strike {kind} at node {place} for {} ms", span / MS));
        match kind {
            0 | 1 => world.kill(place, false, chance, span),
            2 => world.kill(place, true, chance, span),
            3 | 4 => pause(&world, place, span),
            5 => isolate(&world, &mut rng, (place, span), (true, true)),
            6 => isolate(&world, &mut rng, (place, span), (true, false)),
            7 => isolate(&world, &mut rng, (place, span), (false, true)),
            8 => {
                let other = rng.below(u64::from(network.nodes())) as Place;
                network.cut(place, other);
                network.cut(other, place);
                later(&world, span, |world| world.network.heal());
            }
            9 => {
                network.degrade(rng.below(200), rng.below(100), rng.below(80 * MS));
                later(&world, span, |world| world.network.degrade(0, 0, 0));
            }
            10 => slow_disk(&world, place, rng.between(MS, 300 * MS), span),
            _ => match rng.below(3) {
                0 => {
                    let host = network.host(place);
                    let call = host.disk.calls() + rng.below(40);
                    host.disk.fault_at(call, Fault::Error);
                }
                1 => hand_over(&world, place),
                _ => change_members(&world, &mut rng),
            },
        }
    }
}

/// Fills the disk of one node after the other, until `end`.
pub(super) async fn fill_disks(world: Arc<World>, mut rng: Rng, end: u64) {
    loop {
        let rest = rng.between(1_000 * MS, 5_000 * MS);
        sleep(rest).await;
        if now() > end {
            return;
        }
        let place = rng.below(u64::from(world.network.nodes())) as Place;
        world.say(|| format!("the disk of node {place} is full"));
        fill_disk(&world, place);
        let span = rng.between(100 * MS, 2_000 * MS);
        sleep(span).await;
        world.network.host(place).disk.set_capacity(None);
    }
}

/// From now on a node's disk takes nothing more.
pub(super) fn fill_disk(world: &World, place: Place) {
    let disk = &world.network.host(place).disk;
    disk.set_capacity(Some(disk.used()));
    world.count(|counts| counts.full_disks += 1);
}

fn later(world: &Arc<World>, span: u64, then: impl FnOnce(&World) + Send + 'static) {
    let at = Arc::clone(world);
    world.background(async move {
        sleep(span).await;
        then(&at);
    });
}

/// A leader that can send and not hear must not keep the others from electing one (rule R6).
pub(super) async fn deafen_the_leader(world: &World) {
    let Some(deaf) = leader(world) else { return };
    world.say(|| format!("node {deaf} hears nobody"));
    for other in 0..world.network.nodes() {
        world.network.cut(other, deaf);
    }
    for client in 0..world.clients {
        world.network.cut(CLIENT + client, deaf);
    }
    hold(&world.served).clear();
    // The leader is silent twice in this time, and each time for longer than an election takes.
    sleep(world.patience() + 4 * world.silence()).await;
    if !(0..world.network.nodes()).any(|place| place != deaf && leads(world, place)) {
        let what = format!("nobody else is elected while node {deaf} can send and not hear");
        hold(&world.check).broken(Rule::Serves, what);
    }
    sleep(2_700 * MS).await;
    if hold(&world.served).is_empty() {
        let what = format!("nobody is served while node {deaf} can send and not hear");
        hold(&world.check).broken(Rule::Serves, what);
    }
    world.network.heal();
}

/// A leader that only readers reach has nothing to log. It must not answer from its last known state (rule R4).
pub(super) async fn leave_readers_to_the_leader(world: &World) {
    let Some(alone) = leader(world) else { return };
    world.say(|| format!("node {alone} hears readers only"));
    let writers = (0..world.clients - world.readers).map(|client| CLIENT + client);
    let others = (0..world.network.nodes()).filter(|other| *other != alone);
    for other in others.chain(writers) {
        world.network.cut(other, alone);
        world.network.cut(alone, other);
    }
    sleep(4_000 * MS).await;
    world.network.heal();
}

pub(super) fn leader(world: &World) -> Option<Place> {
    (0..world.network.nodes()).find(|place| leads(world, *place))
}

/// Whether a node takes itself for the leader.
pub(super) fn leads(world: &World, place: Place) -> bool {
    let engine = world.network.host(place).engine.clone();
    engine.is_some_and(|engine| engine.progress().role == Role::Leader)
}

fn pause(world: &Arc<World>, place: Place, span: u64) {
    let Some(process) = world.network.host(place).process.clone() else {
        return;
    };
    process.pause();
    world.count(|counts| counts.pauses += 1);
    later(world, span, move |_| process.go_on());
}

/// Cuts a node off from the other nodes, and from some of the clients.
fn isolate(
    world: &Arc<World>,
    rng: &mut Rng,
    (place, span): (Place, u64),
    (inward, outward): (bool, bool),
) {
    let network = &world.network;
    let others = (0..network.nodes()).filter(|other| *other != place);
    let clients = (0..world.clients).filter(|_| rng.chance(500));
    let clients: Vec<Place> = clients.map(|client| CLIENT + client).collect();
    for other in others.chain(clients) {
        if inward {
            network.cut(other, place);
        }
        if outward {
            network.cut(place, other);
        }
    }
    world.count(|counts| counts.cuts += 1);
    later(world, span, |world| world.network.heal());
}

fn slow_disk(world: &Arc<World>, place: Place, slow: u64, span: u64) {
    hold(&world.slow_disk)[usize::from(place)] = slow;
    later(world, span, move |world| {
        hold(&world.slow_disk)[usize::from(place)] = 0;
    });
}

pub(super) fn hand_over(world: &Arc<World>, to: Place) {
    let Some(engine) = leader(world).and_then(|leader| world.network.host(leader).engine.clone())
    else {
        return;
    };
    world.background(async move { engine.hand_over(NodeId(to.into())).await });
}

/// Lets the leader go to another set of voters, of three or of five nodes.
fn change_members(world: &Arc<World>, rng: &mut Rng) {
    let Some(engine) = leader(world).and_then(|leader| world.network.host(leader).engine.clone())
    else {
        return;
    };
    let mut voters: BTreeSet<u64> = (0..u64::from(world.network.nodes())).collect();
    while voters.len() > 3 && !rng.chance(300) {
        let gone = rng.below(u64::from(world.network.nodes()));
        voters.remove(&gone);
    }
    let changed = Arc::clone(world);
    world.background(async move {
        let known = engine.progress().members.nodes;
        for node in voters.iter().copied().map(NodeId) {
            if !known.contains_key(&node)
                && engine.add_learner(node, &node.to_string()).await.is_err()
            {
                return;
            }
        }
        let voters = voters.into_iter().map(NodeId).collect();
        if engine.set_voters(voters).await.is_ok() {
            changed.count(|counts| counts.changes += 1);
        }
    });
}

impl World {
    /// The process of a node ends at once, with or without the power; it is started again after `span`.
    pub(super) fn kill(self: &Arc<Self>, place: Place, power: bool, chance: u64, span: u64) {
        if self.stop(place, power, chance) {
            self.start_later(place, span);
        }
    }

    /// The process of a node ends at once, with or without the power; `false` if there is none.
    pub(super) fn stop(&self, place: Place, power: bool, chance: u64) -> bool {
        let mut host = self.network.host(place);
        let Some(process) = host.process.take() else {
            return false;
        };
        process.kill();
        (host.engine, host.inbox, host.store, host.applier) = (None, None, None, None);
        host.compactor = None;
        let lying = self.mutant == Some(Mutant::LyingDisk);
        host.disk = match chance % 4 {
            _ if !power => host.disk.restart(),
            0 => host.disk.crash(CrashLoss::KeepAll),
            1 => host.disk.crash(CrashLoss::Torn(chance)),
            _ => host.disk.crash(CrashLoss::DropAll),
        };
        host.disk.set_lying(lying);
        drop(host);
        self.count(|counts| counts.kills += 1);
        self.say(|| {
            format!(
                "node {place} is killed, power {power}, chance {}",
                chance % 4
            )
        });
        true
    }

    pub(super) fn start_later(self: &Arc<Self>, place: Place, span: u64) {
        let world = Arc::clone(self);
        self.background(async move {
            sleep(span).await;
            // A disk call may fail at that moment; a supervisor would start the process again.
            while let Err(error) = node::start(&world, place) {
                if !error.contains("simulated") {
                    return world.broken("start", error);
                }
                sleep(300 * MS).await;
            }
        });
    }

    /// The process of a node ended by itself, because its log failed.
    pub(super) fn died(self: &Arc<Self>, place: Place) {
        self.kill(place, false, 0, 300 * MS);
    }
}
