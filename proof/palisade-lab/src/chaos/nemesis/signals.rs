//! SIGSTOP and SIGKILL for holders, any client, and the servers.

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::chaos::event::Target;
use crate::chaos::server::Victim;
use crate::chaos::stop::Stop;
use crate::chaos::world::World;

/// A server of a world.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Server {
    Authority,
    Resource,
}

impl Server {
    pub(super) fn of(self, world: &World) -> (&dyn Victim, Target) {
        match self {
            Server::Authority => (&*world.authority, Target::Authority),
            Server::Resource => (&world.store, Target::Resource),
        }
    }
}

/// The random numbers of one thread of a nemesis.
pub(super) fn random(world: &World, thread: usize) -> fastrand::Rng {
    fastrand::Rng::with_seed(world.plan.seed.wrapping_mul(31).wrapping_add(thread as u64))
}

/// A duration of so many leases, drawn evenly.
pub(super) fn leases(world: &World, random: &mut fastrand::Rng, range: Range<f64>) -> Duration {
    let times = range.start + random.f64() * (range.end - range.start);
    world.plan.ttl.mul_f64(times)
}

/// Runs one thread for each team, with its workers.
pub(super) fn each_team(world: &World, run: impl Fn(Range<usize>, fastrand::Rng) + Sync) {
    std::thread::scope(|scope| {
        for team in 0..world.plan.teams {
            let run = &run;
            let workers = team * world.plan.workers..(team + 1) * world.plan.workers;
            scope.spawn(move || run(workers, random(world, team)));
        }
    });
}

/// Stops one worker after the other, always the one that thinks on the most lanes; nobody twice in a row, so that no
/// pause becomes longer than intended.
pub(super) fn pause_holders(
    world: &World,
    workers: Range<usize>,
    mut random: fastrand::Rng,
    stop: &Stop,
) {
    let mut last = None;
    while !stop.comes_within(Duration::ZERO) {
        if let Some(holder) = world.event_log.thinker(workers.clone(), last) {
            let pause = leases(world, &mut random, 0.8..2.0);
            world.pause_worker(holder, pause, stop);
            last = Some(holder);
        }
    }
}

/// Stops random clients of the team, with pauses in between.
pub(super) fn pause_clients(
    world: &World,
    workers: Range<usize>,
    mut random: fastrand::Rng,
    stop: &Stop,
) {
    while !stop.comes_within(leases(world, &mut random, 0.1..1.0)) {
        let pause = leases(world, &mut random, 0.1..2.0);
        world.pause_worker(random.usize(workers.clone()), pause, stop);
    }
}

/// Stops a server now and then.
pub(super) fn pause_server(world: &World, server: Server, stop: &Stop) {
    let mut random = random(world, 0);
    let (victim, target) = server.of(world);
    while !stop.comes_within(leases(world, &mut random, 0.5..3.0)) {
        let pause = leases(world, &mut random, 0.1..2.0);
        let from_ms = world.event_log.now_ms();
        victim.pause();
        stop.comes_within(pause);
        victim.resume();
        let what = format!("SIGSTOP for {:.0} ms", pause.as_secs_f64() * 1e3);
        world.event_log.note(from_ms, target, what);
    }
}

/// Kills a server now and then and starts it again.
pub(super) fn kill_server(world: &World, server: Server, stop: &Stop) -> Result<(), String> {
    let mut random = random(world, 0);
    let (victim, target) = server.of(world);
    let mut kills = 0;
    while !stop.comes_within(leases(world, &mut random, 0.5..4.0)) {
        let from_ms = world.event_log.now_ms();
        victim.kill();
        victim.start_again()?;
        let what = "SIGKILL and a restart".to_owned();
        world.event_log.note(from_ms, target, what);
        kills += 1;
        if kills == KILLS {
            world.covered.store(true, Ordering::SeqCst);
        }
    }
    Ok(())
}

/// How many kills of the authority a recorded history has at least.
const KILLS: u32 = 5;

/// Kills random clients now and then.
pub(super) fn kill_clients(world: &World, stop: &Stop) -> Result<(), String> {
    let mut random = random(world, 0);
    while !stop.comes_within(leases(world, &mut random, 0.1..0.6)) {
        world.kill_worker(random.usize(world.plan.all_workers()))?;
    }
    Ok(())
}
