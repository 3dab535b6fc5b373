//! Restarts and stalls: an authority that was away gives its clients their time back (rule A7).

use palisade_core::machine::Record;
use palisade_core::{Away, Command, Machine, Outcome, Span, limits};

use crate::world::{TTL_MS, World, ask, grant, ms, ns, request, token, ttl};

#[test]
fn grace_gives_every_live_lease_its_full_time_again() {
    for away in [
        Away::Restarted,
        Away::Led,
        Away::Paused(ms(60_000)),
        Away::Down(ms(60_000)),
    ] {
        let mut world = World::new();
        let a = world.granted(ask("x", "a"));
        world.granted(ask("y", "b").ttl(500));
        if let Away::Paused(span) | Away::Down(span) = away {
            // Both are long due: nobody was there to end them, so nobody else was granted.
            world.pass(span);
        } else {
            world.pass(ms(499));
        }
        assert_eq!(world.apply(Command::Grace(away)), Outcome::Done);
        assert_eq!(world.holder("x").unwrap().remaining, ms(TTL_MS));
        assert_eq!(world.holder("y").unwrap().remaining, ms(500));
        assert!(matches!(world.acquire(ask("y", "c")), Outcome::Held(_)));
        assert!(matches!(world.renew(&grant("x", &a)), Outcome::Renewed(_)));
        world.pass(ms(500));
        assert_eq!(
            world.granted(ask("y", "c")).token,
            token(3),
            "full, and not longer"
        );
    }
}

/// After a release, nobody has heard that the rest of the lease is over.
#[test]
fn grace_gives_its_time_back_also_to_a_lease_of_which_one_lock_was_released() {
    let mut world = World::new();
    let released = world.granted(ask("x", "a"));
    world.granted(ask("y", "a").under(released.key));
    world.release(&grant("x", &released));
    world.pass(ms(60_000));
    world.apply(Command::Grace(Away::Paused(ms(60_000))));
    assert_eq!(world.holder("y").unwrap().remaining, ms(TTL_MS));
}

/// The result does not depend on the reasons for the absences or on their number.
#[test]
fn a_lease_is_extended_to_twice_its_time_and_absence_does_not_count() {
    for kind in 0..4 {
        let mut world = World::new();
        world.granted(ask("x", "a"));
        let (mut served, mut extended) = (0, 0);
        while world.held_by("x").is_some() {
            // It serves for a tenth of the lease, and is away for three times the lease.
            for _ in 0..TTL_MS / 10 {
                served += 1;
                world.pass(ms(1));
                world.expire();
            }
            assert!(served <= 2 * TTL_MS, "{kind}: {served} ms");
            if world.held_by("x").is_none() {
                break;
            }
            let before = world.holder("x").unwrap().remaining;
            let absent = ms(3 * TTL_MS);
            let away = [
                Away::Down(absent),
                Away::Paused(absent),
                Away::Restarted,
                Away::Led,
            ];
            if kind < 2 {
                world.pass(absent);
            }
            world.apply(Command::Grace(away[kind]));
            let after = world.holder("x").unwrap().remaining;
            assert!(after >= before, "never less than without the absence");
            let full = ms(TTL_MS).min(ms(2 * TTL_MS - served));
            assert_eq!(after, full, "{kind}: after {served} ms");
            extended += 1;
            // A restored machine goes on alike.
            world.machine = Machine::restore(99, world.machine.records()).unwrap();
        }
        assert_eq!((served, extended), (2 * TTL_MS, 19));
    }
}

#[test]
fn a_renewal_begins_the_bound_anew() {
    let mut world = World::new();
    let a = world.granted(ask("x", "a"));
    for _ in 0..20 {
        world.pass(ms(TTL_MS - 1));
        world.apply(Command::Grace(Away::Down(Span::ZERO)));
        assert_eq!(world.holder("x").unwrap().remaining, ms(TTL_MS));
        assert!(matches!(world.renew(&grant("x", &a)), Outcome::Renewed(_)));
    }
    assert_eq!(world.machine.extended(), 20);
}

#[test]
fn grace_never_shortens() {
    let mut world = World::new();
    let a = world.granted(ask("x", "a").ttl(60_000));
    let shorter = Command::Renew {
        grant: grant("x", &a),
        ttl: Some(ttl(1_000)),
    };
    world.apply(shorter);
    world.apply(Command::Grace(Away::Paused(limits::STALL)));
    assert_eq!(world.holder("x").unwrap().remaining, ms(60_000));
}

#[test]
fn grace_revives_nothing_whose_end_was_logged() {
    let mut world = World::new();
    let a = world.granted(ask("x", "a"));
    world.pass(ms(TTL_MS));
    world.expire();
    world.apply(Command::Grace(Away::Restarted));
    assert_eq!(world.held_by("x"), None);
    assert!(matches!(
        world.renew(&grant("x", &a)),
        Outcome::Ended { .. }
    ));
}

#[test]
fn a_restart_drops_the_waiters_and_they_may_ask_again() {
    let mut world = World::new();
    let a = world.granted(ask("x", "a"));
    world.queued(ask("x", "b").wait(60_000).request(1));
    world.apply(Command::Grace(Away::Restarted));
    assert_eq!((world.machine.waiters(), world.settled()), (0, Vec::new()));
    world.queued(ask("x", "b").wait(60_000).request(1));
    world.release(&grant("x", &a));
    assert_eq!(world.handed_over().0, request(1));
}

#[test]
fn a_stall_keeps_the_waiters() {
    let mut world = World::new();
    world.granted(ask("x", "a"));
    world.queued(ask("x", "b").wait(60_000).request(1));
    world.pass(ms(20_000));
    world.apply(Command::Grace(Away::Paused(ms(20_000))));
    assert_eq!((world.machine.waiters(), world.settled()), (1, Vec::new()));
}

/// The same instant again, after the snapshot of a machine that was just given grace.
#[test]
fn a_machine_restored_after_grace_ends_the_same_waits_at_the_same_instant() {
    let mut world = World::new();
    world.granted(ask("x", "a"));
    world.queued(ask("x", "b").wait(1_000).request(1));
    world.pass(ms(20_000));
    world.apply(Command::Grace(Away::Paused(ms(20_000))));
    let records: Vec<Record> = world.machine.records().collect();
    let mut restored = World::new();
    restored.machine = Machine::restore(1, records).unwrap();
    restored.now = world.now;
    for world in [&mut world, &mut restored] {
        world.expire();
    }
    assert_eq!(world.effects, restored.effects);
    assert_eq!(world.machine.waiters(), restored.machine.waiters());
}

#[test]
fn the_next_token_is_the_same_after_a_restart() {
    let mut world = World::new();
    for lock in ["x", "y", "z"] {
        let granted = world.granted(ask(lock, "a"));
        world.release(&grant(lock, &granted));
    }
    let restored = Machine::restore(99, world.machine.records()).unwrap();
    assert_eq!(restored.next_token(), Some(token(4)));
    assert_eq!(restored.now(), world.machine.now());
}

#[test]
fn next_due_never_sleeps_through_a_deadline() {
    let mut world = World::new();
    world.granted(ask("x", "a").ttl(3_600_000));
    world.pass(ns(1));
    world.granted(ask("y", "a").ttl(100));
    world.queued(ask("x", "b").wait(50).request(1));
    let mut ends = Vec::new();
    while let Some(due) = world.machine.next_due() {
        assert!(
            due > world.now,
            "never in the past: the authority would spin"
        );
        world.now = due;
        world.expire();
        ends.extend(
            world
                .effects
                .iter()
                .map(|_| world.now.as_nanos().div_ceil(1_000_000)),
        );
    }
    assert_eq!(
        ends,
        [51, 101, 3_600_000],
        "each within the millisecond that follows it"
    );
    assert_eq!(
        world
            .holder("x")
            .map_or(Span::ZERO, |holder| holder.remaining),
        Span::ZERO
    );
}

#[test]
fn a_pause_gives_their_time_back_to_leases_that_do_not_bear_it_and_to_no_others() {
    let mut world = World::new();
    world.granted(ask("long", "b").ttl(60_000));
    assert_eq!(world.machine.bears(), limits::STALL);
    world.granted(ask("short", "a").ttl(400));
    assert_eq!(world.machine.bears(), ms(100));
    world.pass(ms(300));
    world.apply(Command::Grace(Away::Paused(ms(100))));
    assert_eq!(
        world.holder("short").unwrap().remaining,
        ms(100),
        "a quarter of its time is what it bears"
    );
    world.apply(Command::Grace(Away::Paused(ms(101))));
    assert_eq!(world.holder("short").unwrap().remaining, ms(400));
    assert_eq!(world.holder("long").unwrap().remaining, ms(59_700));
}

#[test]
fn a_leap_leaves_a_gap_in_the_revisions_as_in_the_tokens() {
    let mut world = World::new();
    world.granted(ask("x", "a"));
    assert_eq!(world.machine.revision(), 1);
    world.apply(Command::Leap { by: 1_000 });
    assert_eq!(world.machine.revision(), 1_001);
    let restored = Machine::restore(1, world.machine.records()).unwrap();
    assert_eq!(restored.revision(), 1_001);
}
