//! A change of leader: every request that waits keeps its place for a window, so that its caller can come back (R15, R16).
//! So does a single request if the node that forwarded it is gone.

use palisade_core::limits::ORPHAN_WINDOW;
use palisade_core::machine::Expiry;
use palisade_core::{Ahead, Away, Command, Invalid, Machine, Outcome, Span};

use crate::world::{Ask, TTL_MS, World, ask, client_id, grant, ms, ns, request, token};

const WINDOW_MS: u64 = ORPHAN_WINDOW.as_millis();

fn b() -> Ask {
    ask("x", "b").wait(60_000).request(1)
}

fn c() -> Ask {
    ask("x", "c").wait(60_000).request(2)
}

/// `a` holds x, `b` and `c` wait for it, and another node takes over.
fn led() -> World {
    let mut world = World::new();
    world.granted(ask("x", "a"));
    world.queued(b());
    world.queued(c());
    world.pass(ms(5));
    assert_eq!(world.apply(Command::Grace(Away::Led)), Outcome::Done);
    assert_eq!((world.machine.waiters(), world.settled()), (2, Vec::new()));
    world
}

fn free(world: &mut World, number: u64) {
    let revoke = Command::Revoke {
        lock: crate::world::lock_name("x"),
        token: token(number),
        reason: "stuck".into(),
    };
    let token = token(number);
    assert_eq!(world.apply(revoke), Outcome::Revoked { token });
}

#[test]
fn a_caller_that_comes_back_takes_its_place_and_its_wait_goes_on() {
    let mut world = led();
    world.pass(ms(1_000));
    world.queued(c());
    world.queued(b());
    world.pass(ORPHAN_WINDOW);
    world.expire();
    assert_eq!(world.machine.waiters(), 2, "nobody's window ends any more");
    free(&mut world, 1);
    let (served, granted) = world.handed_over();
    assert_eq!((served, granted.token), (request(1), token(2)));
    assert_eq!(
        granted.waited, ORPHAN_WINDOW,
        "the wait counts from the attempt that is answered"
    );
}

#[test]
fn the_deadline_of_a_caller_that_came_back_is_the_old_one() {
    let mut world = World::new();
    world.granted(ask("x", "a").ttl(120_000));
    world.queued(b());
    world.pass(ms(5));
    world.apply(Command::Grace(Away::Led));
    world.queued(b());
    world.pass(ms(60_000 - 6));
    world.expire();
    assert_eq!(world.machine.waiters(), 1);
    world.pass(ms(1));
    world.expire();
    assert!(matches!(world.settled()[..], [(id, Outcome::Held(_))] if id == request(1)));
}

#[test]
fn an_orphan_is_not_granted_and_nobody_overtakes_it_even_on_a_free_lock() {
    let mut world = led();
    world.queued(c());
    free(&mut world, 1);
    assert_eq!((world.settled(), world.held_by("x")), (Vec::new(), None));
    let ahead = Outcome::Behind(Ahead {
        client: client_id("b"),
        remaining: ORPHAN_WINDOW,
    });
    assert_eq!(world.acquire(ask("x", "d")), ahead);
    assert_eq!(world.acquire(ask("x", "d").wait(0).request(7)), ahead);
    assert_eq!(world.acquire(ask("x", "d").wait(9)), ahead, "without an id");
    assert_eq!(
        world.acquire(ask("x", "b")),
        ahead,
        "another request of its client is not its own"
    );
    world.queued(ask("x", "d").wait(60_000).request(8));
    let seen = world.machine.view("x", world.now).unwrap();
    assert_eq!((seen.holder, seen.waiters), (None, 3));
    let (page, _) = world.machine.page("", 0, 10, world.now);
    assert_eq!(page.len(), 1);
    let granted = world.granted(b());
    assert_eq!((granted.token, granted.waited), (token(2), Span::ZERO));
    assert_eq!(granted.valid_for, ms(TTL_MS));
    assert_eq!(world.settled(), [], "the answer is the caller's alone");
    assert_eq!(world.events().len(), 1);
    let again = world.granted(b());
    assert_eq!(
        again.token,
        token(2),
        "asked a third time, the first answer"
    );
}

#[test]
fn an_entry_ends_a_bounded_number_of_orphans() {
    let mut world = World::new();
    for lock in ["x", "y"] {
        world.granted(ask(lock, "a").ttl(60_000));
    }
    for (number, lock) in [(1, "x"), (2, "x"), (3, "y")] {
        let wait = 500 + u64::from(number);
        world.queued(ask(lock, "b").wait(wait).request(number));
    }
    world.apply(Command::Grace(Away::Led));
    free(&mut world, 1);
    world.machine.set_expiry(Expiry {
        alone: 2,
        beside: 1,
    });
    world.pass(ms(600));
    world.expire();
    assert_eq!(
        world.machine.waiters(),
        1,
        "the first in line, and the one behind it"
    );
}

#[test]
fn an_orphan_is_skipped_when_its_window_ends() {
    for caught in [false, true] {
        let mut world = led();
        world.queued(c());
        free(&mut world, 1);
        world.pass(ns(ORPHAN_WINDOW.as_nanos() - 1));
        world.expire();
        assert_eq!(world.held_by("x"), None, "a nanosecond before its end");
        world.pass(ns(1));
        if caught {
            // The first caller that looks at the lock ends the window.
            assert!(matches!(world.acquire(ask("x", "d")), Outcome::Held(_)));
        } else {
            assert!(world.machine.next_due().unwrap() <= world.now);
            world.expire();
        }
        assert_eq!(world.handed_over().0, request(2));
        assert_eq!(world.held_by("x"), Some((2, "c".into())));
        world.queued(b());
        assert_eq!(world.machine.waiters(), 1, "at the end of the queue");
    }
}

#[test]
fn a_request_repeated_when_its_window_has_just_ended_is_a_new_one() {
    let mut world = led();
    world.queued(c());
    free(&mut world, 1);
    world.pass(ORPHAN_WINDOW);
    world.queued(b());
    assert_eq!(world.handed_over().0, request(2), "c went ahead of it");
    let mut alone = World::new();
    alone.granted(ask("x", "a"));
    alone.queued(b());
    alone.apply(Command::Grace(Away::Led));
    free(&mut alone, 1);
    alone.pass(ORPHAN_WINDOW);
    assert_eq!(alone.granted(b()).token, token(2));
}

#[test]
fn a_lock_that_nobody_comes_back_for_is_free() {
    let mut world = led();
    free(&mut world, 1);
    assert_eq!(world.machine.locks(), 1, "kept");
    world.pass(ORPHAN_WINDOW);
    world.expire();
    assert_eq!((world.machine.locks(), world.machine.waiters()), (0, 0));
    assert_eq!(
        (world.settled(), world.machine.next_due()),
        (Vec::new(), None)
    );
    assert_eq!(world.granted(ask("x", "d")).token, token(2));
}

#[test]
fn a_window_never_goes_beyond_the_wait() {
    let mut world = World::new();
    world.granted(ask("x", "a"));
    world.queued(ask("x", "b").wait(500).request(1));
    world.pass(ms(100));
    world.apply(Command::Grace(Away::Led));
    free(&mut world, 1);
    world.pass(ns(ms(400).as_nanos() - 1));
    assert!(matches!(world.acquire(ask("x", "d")), Outcome::Behind(_)));
    world.pass(ns(1));
    assert_eq!(world.granted(ask("x", "d")).token, token(2));
}

#[test]
fn each_change_of_leader_opens_the_window_anew_and_revives_nothing() {
    let mut world = led();
    world.queued(b());
    free(&mut world, 1);
    let (_, held) = world.handed_over();
    for _ in 0..4 {
        world.pass(ms(WINDOW_MS - 1));
        world.apply(Command::Grace(Away::Led));
    }
    assert_eq!(world.machine.waiters(), 1);
    world.release(&grant("x", &held));
    world.pass(ORPHAN_WINDOW);
    // Due by an entry before the next leader's, and only in line.
    world.machine.set_expiry(palisade_core::machine::Expiry {
        alone: 0,
        beside: 1,
    });
    world.expire();
    world.apply(Command::Grace(Away::Led));
    world
        .machine
        .set_expiry(palisade_core::machine::Expiry::CURRENT);
    assert_eq!(world.granted(ask("x", "d")).token, token(3));
}

#[test]
fn the_holder_renews_releases_and_takes_back_while_orphans_wait() {
    let mut world = World::new();
    let a = world.granted(ask("x", "a"));
    world.queued(b());
    world.apply(Command::Grace(Away::Led));
    let renewed = world.renew(&grant("x", &a));
    assert!(matches!(renewed, Outcome::Renewed(_)));
    let again = world.granted(ask("x", "a"));
    assert_eq!(again.token, token(2));
    let released = world.release(&grant("x", &again));
    assert!(matches!(released, Outcome::Released { .. }));
    for late in [&a, &again] {
        let repeated = world.release(&grant("x", late));
        assert!(matches!(repeated, Outcome::Ended { .. }), "{repeated:?}");
        let renewed = world.renew(&grant("x", late));
        assert!(matches!(renewed, Outcome::Ended { .. }), "{renewed:?}");
    }
    let revoke = Command::Revoke {
        lock: crate::world::lock_name("x"),
        token: token(2),
        reason: "stuck".into(),
    };
    assert_eq!(world.apply(revoke), Outcome::NotHeld);
}

#[test]
fn an_orphan_that_is_withdrawn_or_abandoned_lets_the_next_one_pass() {
    for (command, again) in [
        (Command::Withdraw(request(1)), Outcome::Queued),
        (Command::Abandon(request(1)), Outcome::Abandoned),
    ] {
        let mut world = led();
        world.queued(c());
        free(&mut world, 1);
        assert_eq!(world.apply(command), Outcome::Done);
        let settled = world.settled();
        let granted = settled
            .iter()
            .filter(|(_, outcome)| matches!(outcome, Outcome::Granted(_)));
        assert_eq!(granted.map(|(id, _)| *id).collect::<Vec<_>>(), [request(2)]);
        assert_eq!(world.acquire(b()), again);
    }
}

/// The node that forwarded `b`'s request is gone. In the second arm `b` does not repeat the request, and loses its place. In
/// the third, the connection that ended was `b`'s own.
#[test]
fn one_request_becomes_an_orphan_and_the_others_wait_as_before() {
    for (command, comes_back) in [
        (Command::Orphan(request(1)), true),
        (Command::Orphan(request(1)), false),
        (Command::Withdraw(request(1)), true),
    ] {
        let mut world = World::new();
        world.granted(ask("x", "a"));
        world.queued(b());
        world.queued(c());
        let is_orphan = command == Command::Orphan(request(1));
        let applied = world.applied(command.clone());
        assert_eq!((applied.outcome, applied.changed), (Outcome::Done, true));
        if is_orphan {
            let again = world.applied(command);
            assert!(!again.changed, "its window does not begin anew");
            world.pass(ms(WINDOW_MS - 1));
            free(&mut world, 1);
            assert_eq!((world.settled(), world.held_by("x")), (Vec::new(), None));
        }
        if comes_back {
            let _ = world.acquire(b());
        }
        if !is_orphan {
            free(&mut world, 1);
        }
        world.pass(ms(1));
        world.expire();
        let first = if is_orphan && comes_back { "b" } else { "c" };
        assert_eq!(world.held_by("x"), Some((2, first.to_owned())));
        let others = usize::from(comes_back);
        assert_eq!(world.machine.waiters(), others);
    }
    let mut world = World::new();
    let unknown = world.applied(Command::Orphan(request(77)));
    assert!(!unknown.changed);
}

#[test]
fn somebody_elses_repeat_does_not_take_a_place() {
    let mut world = led();
    free(&mut world, 1);
    for ask in [ask("y", "b"), ask("x", "c")] {
        let refused = world.acquire(ask.wait(60_000).request(1));
        assert_eq!(refused, Outcome::Invalid(Invalid::RequestReused));
    }
    assert_eq!(world.held_by("x"), None);
}

#[test]
fn a_restart_frees_what_was_kept() {
    let mut world = led();
    free(&mut world, 1);
    world.apply(Command::Grace(Away::Restarted));
    assert_eq!((world.machine.locks(), world.machine.waiters()), (0, 0));
}

/// Canonical: a machine restored between any two steps goes on alike.
#[test]
fn a_restored_machine_keeps_the_same_places() {
    let mut worlds = [led(), led()];
    for world in &mut worlds {
        free(world, 1);
    }
    worlds[1].machine = Machine::restore(9, worlds[0].machine.records()).unwrap();
    for span in [ms(WINDOW_MS - 1), ms(1), ms(1), ms(60_000)] {
        let effects = worlds.each_mut().map(|world| {
            world.pass(span);
            world.acquire(ask("x", "d").request(9));
            world.expire();
            world.effects.clone()
        });
        assert_eq!(effects[0], effects[1]);
    }
}
