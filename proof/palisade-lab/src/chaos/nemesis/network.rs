//! Delays, held-back bytes, and partitions.

use palisade_testbed::Direction;

use super::signals::{leases, random};
use crate::chaos::event::Target;
use crate::chaos::fixture::{Cut, NAMESPACES};
use crate::chaos::stop::Stop;
use crate::chaos::world::World;

/// One thread for each worker's two connections: delays either direction, or holds everything back for a while.
pub(super) fn delay(world: &World, stop: &Stop) {
    std::thread::scope(|scope| {
        for (worker, relays) in world.fixture.relays.iter().enumerate() {
            scope.spawn(move || {
                let mut random = random(world, worker);
                while !stop.comes_within(leases(world, &mut random, 0.2..2.0)) {
                    let [authority, resource] = relays;
                    let relay = if random.bool() { authority } else { resource };
                    let direction = if random.bool() {
                        Direction::Forth
                    } else {
                        Direction::Back
                    };
                    let time = leases(world, &mut random, 0.2..2.0);
                    let from_ms = world.event_log.now_ms();
                    let what = if random.bool() {
                        relay.hold(direction);
                        stop.comes_within(time);
                        relay.let_go(direction);
                        "held back"
                    } else {
                        relay.delay(direction, time.mul_f64(0.3));
                        stop.comes_within(time);
                        relay.delay(direction, std::time::Duration::ZERO);
                        "delayed"
                    };
                    let what = format!("{what} {direction:?}").to_lowercase();
                    world.event_log.note(from_ms, Target::Worker(worker), what);
                }
            });
        }
    });
}

/// Cuts off one network namespace after the other from the authority, the resource, or both.
pub(super) fn partition(world: &World, stop: &Stop) -> Result<(), String> {
    let namespaces = world
        .fixture
        .namespaces
        .as_ref()
        .ok_or("there are no network namespaces")?;
    let mut random = random(world, 0);
    while !stop.comes_within(leases(world, &mut random, 0.2..1.0)) {
        let namespace = random.usize(0..NAMESPACES);
        let cut = [Cut::Both, Cut::Authority, Cut::Resource][random.usize(0..3)];
        let from_ms = world.event_log.now_ms();
        namespaces.cut(namespace, cut)?;
        stop.comes_within(leases(world, &mut random, 0.3..2.5));
        namespaces.heal(namespace, cut)?;
        let what = format!("traffic from a third of the workers is lost: {cut:?}").to_lowercase();
        world.event_log.note(from_ms, Target::Network, what);
    }
    Ok(())
}
