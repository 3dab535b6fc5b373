//! Faults of a cluster, one after the other; after each of them everything is healed, and every node must serve.

use std::time::Duration;

use rustix::process::Signal;

use super::signals::random;
use crate::chaos::event::Target;
use crate::chaos::nodes::{Cluster, Way};
use crate::chaos::stop::Stop;
use crate::chaos::world::World;

/// A fault of a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    KillLeader,
    KillFollower,
    KillAll,
    PauseLeader,
    PauseFollower,
    StopLeader,
    StopFollower,
    Roll,
    Transfer,
    IsolateLeader,
    IsolateFollower,
    /// The leader sends and does not hear.
    DeafLeader,
    /// The leader hears and does not send.
    MuteLeader,
    CutPair,
    Delay,
}

const ALL: [Kind; 15] = [
    Kind::KillLeader,
    Kind::KillFollower,
    Kind::KillAll,
    Kind::PauseLeader,
    Kind::PauseFollower,
    Kind::StopLeader,
    Kind::StopFollower,
    Kind::Roll,
    Kind::Transfer,
    Kind::IsolateLeader,
    Kind::IsolateFollower,
    Kind::DeafLeader,
    Kind::MuteLeader,
    Kind::CutPair,
    Kind::Delay,
];

/// How many different faults there are.
pub(in crate::chaos) const KINDS: u64 = ALL.len() as u64;

/// Every kind once in random order, and again, until the stop.
pub(super) fn all(world: &World, stop: &Stop) -> Result<(), String> {
    let mut random = random(world, 0);
    let mut left: Vec<Kind> = Vec::new();
    drive(world, stop, || {
        if left.is_empty() {
            left = ALL.to_vec();
            random.shuffle(&mut left);
        }
        left.pop().unwrap_or(Kind::KillLeader)
    })
}

/// One kind, until the stop.
pub(super) fn only(world: &World, kind: Kind, stop: &Stop) -> Result<(), String> {
    drive(world, stop, || kind)
}

/// A cut of any kind, until the stop.
pub(super) fn cuts(world: &World, stop: &Stop) -> Result<(), String> {
    let mut random = random(world, 0);
    let cuts = &ALL[9..14];
    drive(world, stop, || cuts[random.usize(0..cuts.len())])
}

fn drive(world: &World, stop: &Stop, mut next: impl FnMut() -> Kind) -> Result<(), String> {
    let cluster = world.authority.cluster().ok_or("there is no cluster")?;
    let mut random = random(world, 1);
    for count in 1.. {
        let between = Duration::from_millis(random.u64(50..800));
        if stop.comes_within(between) {
            break;
        }
        let from_ms = world.event_log.now_ms();
        let kind = next();
        let what = make(cluster, kind, &mut random, stop)?;
        cluster.until_healed();
        world.event_log.note(from_ms, Target::Authority, what);
        if count >= world.plan.faults {
            world
                .covered
                .store(true, std::sync::atomic::Ordering::SeqCst);
        }
    }
    Ok(())
}

/// Makes a fault and heals it; gives its description.
fn make(
    cluster: &Cluster,
    kind: Kind,
    random: &mut fastrand::Rng,
    stop: &Stop,
) -> Result<String, String> {
    let count = cluster.nodes.len();
    let leader = cluster.leader().unwrap_or(0);
    let follower = (leader + random.usize(1..count)) % count;
    // Mostly longer than an election, sometimes shorter.
    let time = Duration::from_millis(random.u64(100..2_500));
    let some = Duration::from_millis(random.u64(0..1_500));
    let others = || (0..count).filter(|at| *at != leader);
    match kind {
        Kind::KillLeader | Kind::KillFollower => {
            let node = if kind == Kind::KillLeader {
                leader
            } else {
                follower
            };
            cluster.kill_node(node);
            stop.comes_within(some);
            cluster.start_node(node)?;
        }
        Kind::KillAll => {
            (0..count).for_each(|at| cluster.kill_node(at));
            (0..count).try_for_each(|at| cluster.start_node(at))?;
        }
        Kind::PauseLeader | Kind::PauseFollower => {
            let node = if kind == Kind::PauseLeader {
                leader
            } else {
                follower
            };
            cluster.send(node, Signal::STOP);
            stop.comes_within(time);
            cluster.send(node, Signal::CONT);
        }
        Kind::StopLeader | Kind::StopFollower => {
            let node = if kind == Kind::StopLeader {
                leader
            } else {
                follower
            };
            cluster.stop_node(node);
            stop.comes_within(some);
            cluster.start_node(node)?;
        }
        Kind::Roll => {
            // The leader last.
            for node in others().chain([leader]) {
                cluster.stop_node(node);
                cluster.start_node(node)?;
                cluster.until_healed();
            }
        }
        Kind::Transfer => cluster.transfer(leader),
        Kind::Delay => {
            let delay = Duration::from_millis(random.u64(5..60));
            others().for_each(|at| both(cluster, leader, at, Way { cut: false, delay }));
            stop.comes_within(time);
            cluster.links.heal();
        }
        _ => {
            cut(cluster, kind, leader, follower);
            stop.comes_within(time);
            cluster.links.heal();
        }
    }
    Ok(match kind {
        Kind::PauseLeader | Kind::PauseFollower => {
            format!("{} for {} ms", words(kind), time.as_millis())
        }
        _ => words(kind).to_owned(),
    })
}

fn cut(cluster: &Cluster, kind: Kind, leader: usize, follower: usize) {
    const CUT: Way = Way {
        cut: true,
        delay: Duration::ZERO,
    };
    cluster.silent();
    let others = |but: usize| (0..cluster.nodes.len()).filter(move |at| *at != but);
    match kind {
        Kind::IsolateLeader => others(leader).for_each(|at| both(cluster, leader, at, CUT)),
        Kind::IsolateFollower => others(follower).for_each(|at| both(cluster, follower, at, CUT)),
        Kind::DeafLeader => others(leader).for_each(|at| cluster.links.set(at, leader, CUT)),
        Kind::MuteLeader => others(leader).for_each(|at| cluster.links.set(leader, at, CUT)),
        _ => both(cluster, leader, follower, CUT),
    }
}

fn both(cluster: &Cluster, one: usize, other: usize, way: Way) {
    cluster.links.set(one, other, way);
    cluster.links.set(other, one, way);
}

fn words(kind: Kind) -> &'static str {
    match kind {
        Kind::KillLeader => "SIGKILL of the leader and a restart",
        Kind::KillFollower => "SIGKILL of a follower and a restart",
        Kind::KillAll => "SIGKILL of all nodes and a restart",
        Kind::PauseLeader => "SIGSTOP of the leader",
        Kind::PauseFollower => "SIGSTOP of a follower",
        Kind::StopLeader => "SIGTERM of the leader and a restart",
        Kind::StopFollower => "SIGTERM of a follower and a restart",
        Kind::Roll => "a rolling restart",
        Kind::Transfer => "a transfer of leadership",
        Kind::IsolateLeader => "the leader cut off",
        Kind::IsolateFollower => "a follower cut off",
        Kind::DeafLeader => "the leader hears nobody",
        Kind::MuteLeader => "nobody hears the leader",
        Kind::CutPair => "a cut between the leader and a follower",
        Kind::Delay => "delays between the leader and the others",
    }
}
