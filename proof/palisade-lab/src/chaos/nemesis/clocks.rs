//! Clocks of the authority, the resource and the workers that jump or run at a wrong rate, each on its own.

use super::signals::{leases, random};
use crate::chaos::event::Target;
use crate::chaos::stop::Stop;
use crate::chaos::world::World;

const HOUR: i64 = 3_600;

/// Wall clocks jump back and forth by up to an hour.
pub(super) fn jump(world: &World, stop: &Stop) -> Result<(), String> {
    let mut random = random(world, 0);
    while !stop.comes_within(leases(world, &mut random, 0.1..0.5)) {
        let at = random.usize(0..world.fixture.warps.len());
        let seconds = random.i64(-HOUR..=HOUR);
        let from_ms = world.event_log.now_ms();
        world.fixture.warps[at].wall(seconds)?;
        let what = format!("wall clock {at} off by {seconds} s");
        world.event_log.note(from_ms, Target::Clocks, what);
    }
    Ok(())
}

/// Monotonic clocks run at half, normal or double speed.
pub(super) fn run_wrong(world: &World, stop: &Stop) -> Result<(), String> {
    let mut random = random(world, 0);
    while !stop.comes_within(leases(world, &mut random, 0.1..2.0)) {
        let at = random.usize(0..world.fixture.warps.len());
        let rate = [500, 1_000, 2_000][random.usize(0..3)];
        let from_ms = world.event_log.now_ms();
        world.fixture.warps[at].rate(rate)?;
        let what = format!("clock {at} at {:.1} times its rate", rate as f64 / 1e3);
        world.event_log.note(from_ms, Target::Clocks, what);
    }
    Ok(())
}

/// Three of five primaries grant; then the other two return, and the clock of one of the three jumps ahead.
pub(super) fn jump_one(world: &World, stop: &Stop) -> Result<(), String> {
    let authority = &world.authority;
    let step = world.plan.ttl.as_secs().max(1).cast_signed() * 2;
    let mut ahead = 0;
    loop {
        let from_ms = world.event_log.now_ms();
        authority.pause();
        let over = stop.comes_within(world.plan.ttl.mul_f64(1.5));
        authority.resume();
        ahead += step;
        authority.jump(ahead)?;
        let what = format!("two primaries were down, then a clock jumped by {step} s");
        world.event_log.note(from_ms, Target::Authority, what);
        if over || stop.comes_within(world.plan.ttl.mul_f64(1.5)) {
            return Ok(());
        }
    }
}
