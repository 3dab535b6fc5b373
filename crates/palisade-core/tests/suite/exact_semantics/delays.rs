//! Locks that are closed for a time after a grant: lock-delay and at-least-for (D1, D2, D4).

use palisade_core::machine::Expiry;
use palisade_core::{
    Away, Change, Command, Delayed, Ending, GrantOption, GrantOptions, Invalid, Machine, Outcome,
    Token,
};

use crate::world::{Ask, TTL_MS, World, ask, grant, lock_name, ms, ns, request, token};

const DELAY_MS: u64 = 5_000;
const HOUR_MS: u64 = 60 * 60 * 1_000;

fn delayed(last: u64, remaining_ms: u64) -> Outcome {
    Outcome::Delayed(Delayed {
        token: token(last),
        remaining: ms(remaining_ms),
    })
}

fn with_delay(client: &str) -> Ask {
    ask("x", client).delays(DELAY_MS, 0)
}

fn revoke(world: &mut World, token: Token) -> Outcome {
    world.apply(Command::Revoke {
        lock: lock_name("x"),
        token,
        reason: "stuck".into(),
    })
}

/// A lock after its first grant, with a lock-delay, has just expired.
fn expired() -> World {
    let mut world = World::new();
    world.granted(with_delay("a"));
    world.pass(ms(TTL_MS));
    world.expire();
    world
}

/// The world as a server finds it that was started again.
fn restart(world: &mut World) {
    world.machine = Machine::restore(99, world.machine.records()).unwrap();
    world.apply(Command::Grace(Away::Restarted));
}

#[test]
fn after_an_expiry_nobody_is_granted_for_the_delay() {
    let mut world = expired();
    assert_eq!(world.held_by("x"), None);
    let ended = Change::Ended {
        how: Ending::Expired,
        reason: None,
        delayed: Some(ms(DELAY_MS)),
    };
    assert_eq!(world.events()[0].change, ended);
    for client in ["a", "b"] {
        assert_eq!(world.acquire(ask("x", client)), delayed(1, DELAY_MS));
    }
    world.pass(ms(DELAY_MS - 1));
    assert_eq!(world.acquire(ask("x", "b")), delayed(1, 1));
    world.pass(ms(1));
    assert_eq!(world.granted(ask("x", "b")).token, token(2));
}

#[test]
fn a_delay_counts_from_the_end_of_the_lease_to_the_nanosecond() {
    let mut world = World::new();
    world.granted(with_delay("a"));
    // Nobody has looked since, so the end was not logged.
    world.pass(ms(TTL_MS + DELAY_MS));
    world.pass(ns(0));
    assert_eq!(world.granted(ask("x", "b")).token, token(2));

    let mut world = World::new();
    world.granted(with_delay("a"));
    world.pass(ms(TTL_MS + DELAY_MS - 1));
    assert_eq!(world.acquire(ask("x", "b")), delayed(1, 1));
}

#[test]
fn a_revoked_lock_is_closed_and_a_released_one_is_not() {
    let mut world = World::new();
    let first = world.granted(with_delay("a"));
    revoke(&mut world, first.token);
    assert_eq!(world.acquire(ask("x", "b")), delayed(1, DELAY_MS));
    world.pass(ms(DELAY_MS));
    let second = world.granted(with_delay("b"));
    let released = Outcome::Released {
        token: second.token,
        delayed: None,
    };
    assert_eq!(world.release(&grant("x", &second)), released);
    assert_eq!(world.granted(ask("x", "c")).token, token(3));
}

#[test]
fn without_a_delay_the_next_one_is_granted_at_once() {
    let mut world = World::new();
    let first = world.granted(ask("x", "a"));
    revoke(&mut world, first.token);
    let second = world.granted(ask("x", "b"));
    world.pass(ms(TTL_MS));
    assert_eq!(second.token, token(2));
    assert_eq!(world.granted(ask("x", "c")).token, token(3));
}

#[test]
fn waiters_keep_their_places_and_the_first_is_granted_when_the_delay_ends() {
    let mut world = World::new();
    let first = world.granted(with_delay("a"));
    world.queued(ask("x", "b").wait(60_000).request(1));
    revoke(&mut world, first.token);
    assert_eq!(world.settled(), []);
    // Requests that come during the delay queue behind; when a wait ends, its denial names the delay.
    world.queued(ask("x", "c").wait(60_000).request(2));
    world.queued(ask("x", "d").wait(1_000).request(3));
    world.pass(ms(1_000));
    world.expire();
    assert_eq!(
        world.settled(),
        [(request(3), delayed(1, DELAY_MS - 1_000))]
    );
    assert_eq!(
        world.machine.next_due(),
        Some(world.now.after(ms(DELAY_MS - 1_000)))
    );
    world.pass(ms(DELAY_MS - 1_000));
    world.expire();
    let (first, granted) = world.handed_over();
    assert_eq!((first, granted.token), (request(1), token(2)));
    world.release(&grant("x", &granted));
    assert_eq!(world.handed_over().0, request(2));
}

#[test]
fn a_delay_goes_on_after_a_restart_and_after_a_change_of_leader() {
    let stall = Away::Paused(palisade_core::limits::STALL);
    for away in [Away::Restarted, Away::Down(ms(1)), Away::Led, stall] {
        let mut world = expired();
        world.pass(ms(DELAY_MS - 1));
        world.machine = Machine::restore(99, world.machine.records()).unwrap();
        world.apply(Command::Grace(away));
        assert_eq!(world.acquire(ask("x", "b")), delayed(1, 1), "{away:?}");
        world.pass(ms(1));
        assert_eq!(world.granted(ask("x", "b")).token, token(2));
    }
}

/// The lock-delay was over while at-least-for still closed the lock.
#[test]
fn a_delay_that_is_over_stays_over_where_the_lock_is_closed_for_another_reason() {
    let mut world = World::new();
    world.granted(ask("x", "a").delays(DELAY_MS, HOUR_MS));
    world.pass(ms(TTL_MS));
    world.expire();
    world.pass(ms(HOUR_MS - TTL_MS - 1));
    restart(&mut world);
    assert_eq!(world.acquire(ask("x", "b")), delayed(1, 1));
}

#[test]
fn a_delay_that_was_about_to_begin_is_not_lost_by_a_restart() {
    let mut world = World::new();
    world.machine.set_expiry(Expiry {
        alone: 1,
        beside: 1,
    });
    world.granted(ask("w", "a"));
    world.granted(with_delay("a"));
    // Both are over, and only the first one's end is in the log when the server ends.
    world.pass(ms(TTL_MS + 3));
    world.expire();
    world.pass(ms(2_000));
    restart(&mut world);
    // Its lease was over before the restart, so it counts from then.
    let told = world.acquire(ask("x", "b"));
    assert_eq!(told, delayed(2, DELAY_MS - 2_003));
}

/// Its end was due before the restart.
#[test]
fn a_delay_that_was_over_by_the_last_entry_stays_over() {
    let mut world = World::new();
    world.machine.set_expiry(Expiry {
        alone: 1,
        beside: 1,
    });
    world.granted(with_delay("a"));
    world.pass(ms(TTL_MS));
    world.expire();
    world.granted(ask("w", "a").ttl(DELAY_MS));
    world.pass(ms(DELAY_MS));
    // One entry ends one thing: the other lock's lease. The closed lock waits in line.
    world.expire();
    assert_eq!((world.held_by("w"), world.machine.locks()), (None, 1));
    restart(&mut world);
    assert_eq!(world.granted(ask("x", "b")).token, token(3));
}

#[test]
fn a_grant_reserves_the_lock_from_its_beginning_whatever_its_lease() {
    let mut world = World::new();
    let first = world.granted(ask("x", "a").delays(0, HOUR_MS));
    world.pass(ms(1_000));
    let released = Outcome::Released {
        token: first.token,
        delayed: Some(ms(HOUR_MS - 1_000)),
    };
    assert_eq!(world.release(&grant("x", &first)), released);
    assert_eq!(
        world.acquire(ask("x", "a")),
        delayed(1, HOUR_MS - 1_000),
        "its own client too: a job must not run twice"
    );
    restart(&mut world);
    assert_eq!(world.acquire(ask("x", "b")), delayed(1, HOUR_MS - 1_000));
    world.pass(ms(HOUR_MS - 1_000));
    let second = world.granted(ask("x", "b").delays(DELAY_MS, 1_000));
    // Held for longer than reserved: nothing is left of it.
    world.pass(ms(1_000));
    let released = Outcome::Released {
        token: second.token,
        delayed: None,
    };
    assert_eq!(world.release(&grant("x", &second)), released);
}

#[test]
fn the_later_of_delay_and_reservation_counts() {
    for (at_least, remaining) in [
        (HOUR_MS, HOUR_MS - TTL_MS),
        (1_000, DELAY_MS),
        (DELAY_MS, DELAY_MS),
    ] {
        let mut world = World::new();
        world.granted(ask("x", "a").delays(DELAY_MS, at_least));
        world.pass(ms(TTL_MS));
        assert_eq!(world.acquire(ask("x", "b")), delayed(1, remaining));
    }
}

#[test]
fn a_client_that_takes_its_lock_over_does_not_shorten_what_it_reserved() {
    let mut world = World::new();
    world.granted(ask("x", "a").delays(0, HOUR_MS));
    let second = world.granted(ask("x", "a"));
    let released = Outcome::Released {
        token: second.token,
        delayed: Some(ms(HOUR_MS)),
    };
    assert_eq!(world.release(&grant("x", &second)), released);
}

#[test]
fn a_grant_that_was_given_up_unused_reserves_nothing() {
    let mut world = World::new();
    world.granted(ask("x", "a").delays(0, HOUR_MS).request(1));
    world.apply(Command::Abandon(request(1)));
    assert_eq!(world.granted(ask("x", "b")).token, token(2));
}

/// Found by the simulator: it reserved nothing of its own, and took the first grant's reservation with it.
#[test]
fn a_take_over_that_was_given_up_leaves_what_was_reserved_before() {
    for own in [0, HOUR_MS / 2, 2 * HOUR_MS] {
        let mut world = World::new();
        world.granted(ask("x", "a").delays(0, HOUR_MS));
        world.granted(ask("x", "a").delays(0, own).request(1));
        world.apply(Command::Abandon(request(1)));
        assert_eq!(world.acquire(ask("x", "b")), delayed(2, HOUR_MS), "{own}");
    }
}

#[test]
fn an_entry_opens_a_bounded_number_of_locks() {
    let mut world = World::new();
    for lock in ["x", "y", "z"] {
        world.granted(ask(lock, "a").delays(DELAY_MS, 0));
    }
    world.pass(ms(TTL_MS));
    world.expire();
    world.pass(ms(DELAY_MS));
    world.machine.set_expiry(Expiry {
        alone: 2,
        beside: 1,
    });
    world.expire();
    assert_eq!(world.machine.locks(), 1);
}

#[test]
fn out_of_range_is_refused() {
    assert_eq!(
        GrantOptions::closing(60_001, 0),
        Err(Invalid::Option {
            option: GrantOption::LockDelay,
            given: 60_001
        })
    );
    assert_eq!(
        GrantOptions::closing(0, 24 * HOUR_MS + 1),
        Err(Invalid::Option {
            option: GrantOption::AtLeastFor,
            given: 24 * HOUR_MS + 1
        })
    );
    assert!(GrantOptions::closing(60_000, 24 * HOUR_MS).is_ok());
}

#[test]
fn readers_and_permits_have_no_delay_and_a_grant_with_one_does_not_become_shared() {
    let refused = Outcome::Invalid(Invalid::OptionsOfShared);
    let mut world = World::new();
    assert_eq!(world.acquire(with_delay("a").shared()), refused);
    assert_eq!(world.acquire(with_delay("a").permits(1, 3)), refused);
    assert_eq!(world.machine.locks(), 0);
    let first = world.granted(with_delay("a"));
    let downgrade = ask("x", "a").under(first.key).shared();
    assert_eq!(world.acquire(downgrade), refused);
    assert_eq!(world.acquire(ask("x", "a").shared()), refused);
    assert_eq!(world.held_by("x"), Some((1, "a".into())), "unchanged");
}

#[test]
fn a_grant_without_delays_becomes_shared_whatever_came_before_it() {
    // Its client took the lock over at the very end of its reservation.
    let mut world = World::new();
    world.granted(ask("x", "a").delays(0, 1_000));
    world.pass(ms(1_000));
    let second = world.granted(ask("x", "a"));
    world.granted(ask("x", "a").under(second.key).shared());

    // Or it came from a queue in which somebody else still waits.
    let mut world = World::new();
    let first = world.granted(with_delay("a"));
    world.queued(ask("x", "b").wait(60_000).request(1));
    world.queued(ask("x", "c").wait(60_000).request(2));
    world.release(&grant("x", &first));
    let (_, second) = world.handed_over();
    world.granted(ask("x", "b").under(second.key).shared());
}

#[test]
fn a_closed_lock_is_shown_with_the_time_that_is_left() {
    let mut world = World::new();
    world.granted(with_delay("a"));
    world.pass(ms(TTL_MS + 1));
    // Before its end was logged, and after.
    for _ in 0..2 {
        let view = world.machine.view("x", world.now).unwrap();
        assert_eq!((view.holder, view.delayed), (None, Some(ms(DELAY_MS - 1))));
        world.expire();
    }
    let opens = world.now.after(ms(DELAY_MS - 1));
    assert_eq!(world.machine.view("x", opens), None);
    assert_eq!(world.machine.locks(), 1);
    world.pass(ms(DELAY_MS));
    world.expire();
    assert_eq!((world.machine.locks(), world.machine.next_due()), (0, None));
}

fn open(world: &mut World) -> Outcome {
    world.apply(Command::Open {
        lock: lock_name("x"),
        reason: "the job failed".into(),
    })
}

/// The control is the lock that nobody opened: it is closed a millisecond before its time is over.
#[test]
fn an_operator_opens_a_closed_lock_and_it_is_handed_on() {
    for closing in [(DELAY_MS, 0), (0, HOUR_MS)] {
        let mut world = World::new();
        assert_eq!(open(&mut world), Outcome::NotHeld, "free");
        let (lock_delay, at_least_for) = closing;
        world.granted(ask("x", "a").delays(lock_delay, at_least_for));
        assert_eq!(open(&mut world), Outcome::NotHeld, "held");
        revoke(&mut world, token(1));
        world.queued(ask("x", "b").wait(HOUR_MS / 2).request(1));
        assert_eq!(world.held_by("x"), None);
        let _ = world.events();
        assert_eq!(open(&mut world), Outcome::Done);
        // Its event comes before the grant that it allows, with the token of the last grant.
        let seen = world.events();
        let opened = Change::Opened {
            reason: "the job failed".into(),
        };
        assert_eq!((seen[0].token, &seen[0].client), (token(1), &None));
        assert_eq!(seen[0].change, opened);
        assert!(matches!(seen[1].change, Change::Granted { .. }));
        assert_eq!(seen[1].revision, seen[0].revision + 1);
        assert_eq!(world.held_by("x"), Some((2, "b".to_owned())));
        assert_eq!(open(&mut world), Outcome::NotHeld, "held again");
    }
    let mut world = expired();
    restart(&mut world);
    assert_eq!(open(&mut world), Outcome::Done);
    assert_eq!(world.machine.locks(), 0, "nothing of it is left");
    assert_eq!(world.granted(ask("x", "b")).token, token(2));
}
