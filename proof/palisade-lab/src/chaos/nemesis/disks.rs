//! Full disks and failing syncs.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::signals::{Server, leases, random};
use crate::chaos::server::Victim;
use crate::chaos::stop::Stop;
use crate::chaos::world::World;

const SERVERS: [Server; 2] = [Server::Authority, Server::Resource];

/// Fills one disk after the other and frees it a while later. Every other time the server is killed meanwhile and has
/// to start without room; a server that stopped, or did not start, is started again once there is room.
pub(super) fn fill(world: &World, stop: &Stop) -> Result<(), String> {
    let mut random = random(world, 0);
    while !stop.comes_within(leases(world, &mut random, 0.5..3.0)) {
        let at = random.usize(0..SERVERS.len());
        let disk = world.fixture.disks.get(at).ok_or("no small disk")?;
        let (victim, target) = SERVERS[at].of(world);
        let from_ms = world.event_log.now_ms();
        // Without room for the filler it is full already.
        let _ = disk.fill(None);
        let killed = random.bool();
        stop.comes_within(leases(world, &mut random, 0.5..4.0));
        let started = killed && {
            victim.kill();
            let started = victim.start_again().is_ok();
            stop.comes_within(leases(world, &mut random, 0.5..2.0));
            started
        };
        let lived = victim.lives();
        disk.free();
        if !lived {
            victim.start_again()?;
        }
        let what = match (killed, started, lived) {
            (false, _, true) => "its disk was full",
            (false, _, false) => "its disk was full, and it stopped",
            (true, true, true) => "its disk was full, it was killed, and started without room",
            (true, true, false) => {
                "its disk was full, it was killed, started without room, and stopped"
            }
            (true, false, _) => {
                "its disk was full, it was killed, and did not start until there was room"
            }
        };
        world.event_log.note(from_ms, target, what.to_owned());
    }
    Ok(())
}

/// The first to the 200th fdatasync after a start fails; the server must stop, and is started again without the fault.
pub(super) fn fail_syncs(world: &World, stop: &Stop) -> Result<(), String> {
    let last = (world.plan.adds / ADDS_FOR_EACH).clamp(1, LAST);
    let all = (1..=last).flat_map(|k| SERVERS.map(|server| (k, server)));
    for (at, (k, server)) in (0..).zip(all.cycle()) {
        world.covered.fetch_or(at == 2 * last, Ordering::SeqCst);
        if stop.comes_within(Duration::ZERO) {
            break;
        }
        let (victim, target) = server.of(world);
        let from_ms = world.event_log.now_ms();
        let marker = world.folder().join("a-sync-has-failed");
        let _ = std::fs::remove_file(&marker);
        victim.set(COUNT, Some(k.to_string()));
        victim.set(MARKER, Some(marker.display().to_string()));
        // A sync that fails during the start must be reported, which counts as well.
        let what = match victim.start_again() {
            Err(_) => format!("fdatasync {k} failed, and it did not start"),
            Ok(()) => match dies(world, victim, &marker, stop) {
                (_, true) => format!("fdatasync {k} failed, and it stopped"),
                (true, false) => format!("fdatasync {k} failed, on a segment not in use yet"),
                (false, false) => format!("fdatasync {k} was not reached in time"),
            },
        };
        victim.set(COUNT, None);
        victim.start_again()?;
        world.event_log.note(from_ms, target, what);
    }
    Ok(())
}

/// Waits for the failed sync and then for the server's end; returns whether each happened.
fn dies(world: &World, victim: &dyn Victim, marker: &Path, stop: &Stop) -> (bool, bool) {
    let waits = |patience_ms: f64, holds: &dyn Fn() -> bool| {
        let until = world.event_log.now_ms() + patience_ms;
        while !holds() && world.event_log.now_ms() < until {
            if stop.comes_within(Duration::from_millis(2)) {
                break;
            }
        }
        holds()
    };
    let failed = waits(SYNC_MS, &|| marker.exists() || !victim.lives());
    (failed, failed && waits(END_MS, &|| !victim.lives()))
}

/// The last call that fails.
const LAST: u64 = 200;
/// Adds for each failed sync, so that 10,000 adds cover all of them.
const ADDS_FOR_EACH: u64 = 50;
const COUNT: &str = "PALISADE_LAB_FAIL_SYNC";
const MARKER: &str = "PALISADE_LAB_SYNC_FAILED";
/// The time limits of a failed sync, and of the server's end after it.
const SYNC_MS: f64 = 3_000.0;
const END_MS: f64 = 500.0;
