//! Disks that are full, and syncs that fail.

use std::path::Path;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::signals::{Server, leases, random};
use crate::chaos::server::Victim;
use crate::chaos::stop::Stop;
use crate::chaos::world::World;

const SERVERS: [Server; 2] = [Server::Authority, Server::Resource];

/// One disk after the other is filled, and freed a while later. Every other time the server is killed meanwhile, and
/// has to start without room; where it stopped, or did not start, it is started again when there is some.
pub(super) fn fill(world: &World, stop: &Stop) -> Result<(), String> {
    let mut random = random(world, 0);
    while !stop.comes_within(leases(world, &mut random, 0.5..3.0)) {
        let at = random.usize(0..SERVERS.len());
        let disk = world.stage.disks.get(at).ok_or("no small disk")?;
        let (victim, target) = SERVERS[at].of(world);
        let from_ms = world.ledger.now_ms();
        disk.fill();
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
        world.ledger.note(from_ms, target, what.to_owned());
    }
    Ok(())
}

/// The first to the 200th fdatasync after a start fails; the server must stop, and is started again without.
pub(super) fn fail_syncs(world: &World, stop: &Stop) -> Result<(), String> {
    let last = (world.plan.adds / ADDS_FOR_EACH).clamp(1, LAST);
    let all = (1..=last).flat_map(|k| SERVERS.map(|server| (k, server)));
    for (at, (k, server)) in (0..).zip(all.cycle()) {
        world.covered.fetch_or(at == 2 * last, Ordering::SeqCst);
        if stop.comes_within(Duration::ZERO) {
            break;
        }
        let (victim, target) = server.of(world);
        let from_ms = world.ledger.now_ms();
        let marker = world.folder().join("a-sync-has-failed");
        let _ = std::fs::remove_file(&marker);
        victim.set(COUNT, Some(k.to_string()));
        victim.set(MARKER, Some(marker.display().to_string()));
        // One that fails while it starts must say so, and is as good.
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
        world.ledger.note(from_ms, target, what);
    }
    Ok(())
}

/// Waits for the failed sync, and then for what it must lead to: whether either came.
fn dies(world: &World, victim: &dyn Victim, marker: &Path, stop: &Stop) -> (bool, bool) {
    let waits = |patience_ms: f64, holds: &dyn Fn() -> bool| {
        let until = world.ledger.now_ms() + patience_ms;
        while !holds() && world.ledger.now_ms() < until {
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
/// So that 10,000 adds take all of them.
const ADDS_FOR_EACH: u64 = 50;
const COUNT: &str = "PALISADE_LAB_FAIL_SYNC";
const MARKER: &str = "PALISADE_LAB_SYNC_FAILED";
/// How long a failed sync, and a server's end after it, may take.
const SYNC_MS: f64 = 3_000.0;
const END_MS: f64 = 500.0;
