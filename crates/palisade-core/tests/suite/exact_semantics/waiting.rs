//! Queues: first come, first served, for no longer than the caller wants, and only if still there.

use palisade_core::{Away, Command, Ending, Holder, Invalid, Limits, Outcome, QueueBound, Span};

use crate::world::{
    TTL_MS, World, ask, client_id, grant, key, ms, ns, principal, request, token, tokenless, ttl,
};

#[test]
fn waiters_are_granted_first_come_first_served_one_for_each_release() {
    let mut world = World::new();
    let mut current = world.granted(ask("orders", "a"));
    for (n, client) in ["b", "c", "d"].iter().enumerate() {
        world.pass(ms(10));
        world.queued(ask("orders", client).wait(60_000).request(n as u8));
    }
    for n in 0..3 {
        world.release(&grant("orders", &current));
        let (served, granted) = world.handed_over();
        assert_eq!(
            (served, granted.token),
            (request(n), token(2 + u64::from(n)))
        );
        current = granted;
    }
    assert_eq!(world.machine.waiters(), 0);
}

/// Requests that leave together leave in this order, the last one first.
#[test]
fn arrivals_are_numbered_over_all_locks_while_they_wait() {
    let mut world = World::new();
    world.granted(ask("x", "a"));
    world.granted(ask("y", "a"));
    for (n, lock) in [(1, "x"), (2, "y"), (3, "x")] {
        world.queued(ask(lock, "b").wait(60_000).request(n));
    }
    let arrivals = |world: &World, by| [1, 2, 3].map(|n| world.machine.arrival(by, &request(n)));
    assert_eq!(arrivals(&world, world.by), [Some(1), Some(2), Some(3)]);
    assert_eq!(arrivals(&world, principal(1)), [None; 3]);
    world.apply(Command::Withdraw(request(1)));
    assert_eq!(arrivals(&world, world.by), [None, Some(2), Some(3)]);
}

#[test]
fn a_waiters_grant_counts_from_when_it_was_asked_for() {
    let mut world = World::new();
    let a = world.granted(ask("orders", "a"));
    world.pass(ms(100));
    world.queued(ask("orders", "b").wait(60_000).request(1));
    world.pass(ms(700));
    world.release(&grant("orders", &a));
    let (_, b) = world.handed_over();
    assert_eq!((b.waited, b.valid_for), (ms(700), ms(700 + TTL_MS)));
    assert_eq!(
        world.holder("orders").unwrap().remaining,
        ms(TTL_MS),
        "the lease starts at the grant"
    );
}

#[test]
fn no_wait_is_a_try() {
    let mut world = World::new();
    world.granted(ask("orders", "a"));
    assert!(matches!(
        world.acquire(ask("orders", "b").wait(0).request(1)),
        Outcome::Held(_)
    ));
    assert!(matches!(
        world.acquire(ask("orders", "b").request(2)),
        Outcome::Held(_)
    ));
    let unnamed = world.acquire(ask("orders", "b").wait(1_000));
    assert!(
        matches!(unnamed, Outcome::Held(_)),
        "who cannot be called back does not wait"
    );
    assert_eq!(world.machine.waiters(), 0);
}

#[test]
fn a_wait_ends_at_its_deadline_with_held() {
    let mut world = World::new();
    world.granted(ask("orders", "a"));
    world.queued(ask("orders", "b").wait(1_000).request(1));
    world.pass(ns(1_000_000_000 - 1));
    world.expire();
    assert_eq!(world.settled(), []);
    world.pass(ns(1));
    world.expire();
    let holder = Holder {
        client: client_id("a"),
        token: token(1),
        remaining: ms(TTL_MS - 1_000),
    };
    assert_eq!(world.settled(), [(request(1), Outcome::Held(holder))]);
}

#[test]
fn a_waiter_past_its_deadline_is_skipped() {
    let mut world = World::new();
    world.pass(ns(300));
    let a = world.granted(ask("orders", "a"));
    world.queued(ask("orders", "b").wait(1_000).request(1));
    world.queued(ask("orders", "c").wait(1_001).request(2));
    world.pass(ms(1_000));
    world.pass(ns(1));
    world.release(&grant("orders", &a));
    let settled = world.settled();
    let gone = Holder {
        client: client_id("a"),
        token: token(1),
        remaining: Span::ZERO,
    };
    assert_eq!(
        settled[0],
        (request(1), Outcome::Held(gone)),
        "nothing is granted after the deadline"
    );
    assert!(matches!(&settled[1], (who, Outcome::Granted(_)) if *who == request(2)));
    assert_eq!(
        world.held_by("orders"),
        Some((2, "c".into())),
        "a skipped waiter draws no token"
    );
}

#[test]
fn a_waiter_whose_lease_died_is_skipped() {
    let mut world = World::new();
    let lease = world.granted(ask("seats", "b").ttl(1_000));
    let a = world.granted(ask("orders", "a"));
    world.queued(ask("orders", "b").under(lease.key).wait(60_000).request(1));
    world.queued(ask("orders", "c").wait(60_000).request(2));
    world.pass(ms(1_000));
    world.release(&grant("orders", &a));
    let settled = world.settled();
    let ended = Outcome::Ended {
        token: lease.token,
        how: Ending::Expired,
    };
    assert_eq!(settled[0], (request(1), ended));
    assert_eq!(world.held_by("orders"), Some((3, "c".into())));
}

#[test]
fn a_waiter_whose_lease_lives_is_granted_under_it() {
    let mut world = World::new();
    let lease = world.granted(ask("seats", "b"));
    let a = world.granted(ask("orders", "a"));
    world.queued(ask("orders", "b").under(lease.key).wait(60_000).request(1));
    world.pass(ms(2_000));
    world.release(&grant("orders", &a));
    let (_, granted) = world.handed_over();
    assert_eq!((granted.lease, granted.key), (lease.lease, lease.key));
    assert_eq!(
        granted.valid_for,
        ms(2_000 + TTL_MS - 2_000),
        "no more than the lease has left"
    );
}

#[test]
fn an_expiry_wakes_the_next_waiter_in_the_same_entry() {
    let mut world = World::new();
    world.granted(ask("orders", "a"));
    world.queued(ask("orders", "b").wait(60_000).request(1));
    world.pass(ms(TTL_MS));
    world.expire();
    assert_eq!(world.handed_over().1.token, token(2));
    assert_eq!(world.held_by("orders"), Some((2, "b".into())));
}

#[test]
fn an_acquire_at_the_very_instant_of_expiry_does_not_jump_the_queue() {
    let mut world = World::new();
    world.pass(ns(1));
    world.granted(ask("orders", "a"));
    world.queued(ask("orders", "b").wait(60_000).request(1));
    world.pass(ms(TTL_MS));
    let Outcome::Held(holder) = world.acquire(ask("orders", "c")) else {
        panic!("jumped the queue")
    };
    assert_eq!((&*holder.client, holder.token), ("b", token(2)));
}

#[test]
fn queues_are_bounded_per_lock() {
    let mut world = World::with(Limits {
        waiters_per_lock: 2,
        ..Limits::DEFAULT
    });
    world.granted(ask("orders", "a"));
    world.granted(ask("seats", "a"));
    world.queued(ask("orders", "b").wait(1_000).request(1));
    world.queued(ask("orders", "c").wait(1_000).request(2));
    let full = Outcome::QueueFull(QueueBound::Lock { max: 2 });
    assert_eq!(
        world.acquire(ask("orders", "d").wait(1_000).request(3)),
        full
    );
    world.queued(ask("seats", "d").wait(1_000).request(4));
}

#[test]
fn queues_are_bounded_per_client() {
    let mut world = World::with(Limits {
        waiters_per_client: 2,
        ..Limits::DEFAULT
    });
    for lock in ["x", "y", "z"] {
        world.granted(ask(lock, "a"));
    }
    world.queued(ask("x", "b").wait(1_000).request(1));
    world.queued(ask("y", "b").wait(1_000).request(2));
    let full = Outcome::QueueFull(QueueBound::Client { max: 2 });
    assert_eq!(world.acquire(ask("z", "b").wait(1_000).request(3)), full);
    world.queued(ask("z", "c").wait(1_000).request(4));
    world.apply(Command::Withdraw(request(1)));
    world.queued(ask("z", "b").wait(1_000).request(5));
}

#[test]
fn the_default_bounds_are_those_of_the_contract() {
    let limits = Limits::DEFAULT;
    assert_eq!(
        (limits.waiters_per_lock, limits.waiters_per_client),
        (1_024, 64)
    );
    assert_eq!(
        (limits.min_ttl, limits.max_ttl),
        (ttl(100), ttl(24 * 3_600_000))
    );
}

#[test]
fn withdrawn_requests_leave_the_queue_and_may_come_back() {
    let mut world = World::new();
    let a = world.granted(ask("orders", "a"));
    world.queued(ask("orders", "b").wait(60_000).request(1));
    world.queued(ask("orders", "c").wait(60_000).request(2));
    assert_eq!(world.apply(Command::Withdraw(request(1))), Outcome::Done);
    assert_eq!(world.effects, [], "there is nobody left to be answered");
    world.queued(ask("orders", "b").wait(60_000).request(1));
    world.release(&grant("orders", &a));
    assert_eq!(
        world.handed_over().0,
        request(2),
        "who comes back stands at the end"
    );
    let unknown = world.applied(Command::Withdraw(request(77)));
    assert!(!unknown.changed);
}

#[test]
fn a_waiter_may_be_granted_what_a_stranger_can_no_longer_release() {
    let mut world = World::new();
    let a = world.granted(ask("orders", "a"));
    world.queued(ask("orders", "b").wait(60_000).request(1));
    world.release(&tokenless("orders", &a));
    let late = world.release(&tokenless("orders", &a));
    assert_eq!(
        late,
        Outcome::Ended {
            token: token(1),
            how: Ending::Released
        }
    );
    assert_eq!(world.held_by("orders"), Some((2, "b".into())));
}

#[test]
fn a_stall_ends_the_waits_that_were_over_meanwhile() {
    let mut world = World::new();
    world.granted(ask("orders", "a"));
    world.queued(ask("orders", "b").wait(1_000).request(1));
    world.queued(ask("orders", "c").wait(60_000).request(2));
    world.pass(ms(20_000));
    world.apply(Command::Grace(Away::Paused(ms(20_000))));
    let holder = Holder {
        client: client_id("a"),
        token: token(1),
        remaining: ms(TTL_MS),
    };
    assert_eq!(world.settled(), [(request(1), Outcome::Held(holder))]);
    assert_eq!(world.machine.waiters(), 1);
}

#[test]
fn two_waiters_cannot_open_one_lease_twice() {
    let mut world = World::new();
    let a = world.granted(ask("orders", "a"));
    let same = key(20_000);
    let twins = ["b", "c"].into_iter().zip(1..);
    for (client, n) in twins {
        let wish = ask("orders", client).wait(60_000).request(n).with_key(same);
        assert_eq!(world.apply(Command::Acquire(wish)), Outcome::Queued);
    }
    let other = ask("seats", "d").with_key(same);
    assert!(matches!(
        world.apply(Command::Acquire(other)),
        Outcome::Granted(_)
    ));
    world.release(&grant("orders", &a));
    let refused = Outcome::Invalid(Invalid::LeaseKeyInUse);
    assert_eq!(
        world.settled(),
        [(request(1), refused.clone()), (request(2), refused)]
    );
    world.granted(ask("orders", "b").request(1));
}
