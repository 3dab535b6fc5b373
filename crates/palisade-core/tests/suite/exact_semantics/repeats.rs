//! Retries and late messages: everything may arrive twice, and nothing takes effect twice (A9, A12).

use palisade_core::{Command, Ending, Invalid, Outcome, Span};

use crate::world::{
    TTL_MS, World, ask, ask_all, grant, key, lock_name, ms, ns, request, token, tokenless,
};

const RELEASED: Ending = Ending::Released;

#[test]
fn a_repeated_release_says_that_it_was_released() {
    let mut world = World::new();
    let a = world.granted(ask("orders", "a"));
    world.release(&grant("orders", &a));
    let ended = Outcome::Ended {
        token: token(1),
        how: RELEASED,
    };
    assert_eq!(world.release(&grant("orders", &a)), ended);
    assert_eq!(world.release(&tokenless("orders", &a)), ended);
    assert_eq!(world.renew(&grant("orders", &a)), ended);
}

#[test]
fn a_late_release_does_not_free_the_next_grant() {
    let mut world = World::new();
    let mine = world.granted(ask("orders", "a"));
    world.release(&grant("orders", &mine));
    let next = world.granted(ask("orders", "a"));
    for late in [grant("orders", &mine), tokenless("orders", &mine)] {
        assert_eq!(
            world.release(&late),
            Outcome::Ended {
                token: token(1),
                how: RELEASED
            }
        );
    }
    assert_eq!(
        world.held_by("orders"),
        Some((next.token.get(), "a".into()))
    );
}

#[test]
fn a_late_release_with_its_token_does_not_free_the_next_grant_of_the_same_lease() {
    let mut world = World::new();
    let anchor = world.granted(ask("anchor", "a"));
    let first = world.granted(ask("orders", "a").under(anchor.key));
    world.release(&grant("orders", &first));
    let second = world.granted(ask("orders", "a").under(anchor.key));
    assert_eq!(
        world.release(&grant("orders", &first)),
        Outcome::Ended {
            token: first.token,
            how: RELEASED
        }
    );
    assert_eq!(
        world.held_by("orders"),
        Some((second.token.get(), "a".into()))
    );
    assert_eq!(
        world.release(&grant("orders", &second)),
        Outcome::Released {
            token: second.token,
            delayed: None,
        }
    );
    assert_eq!(
        world.release(&grant("orders", &first)),
        Outcome::Ended {
            token: first.token,
            how: RELEASED
        },
        "each grant of a lease is remembered by its own token"
    );
}

#[test]
fn a_request_that_was_granted_is_answered_with_what_is_left() {
    let mut world = World::new();
    let first = world.granted(ask("orders", "a").request(1));
    world.pass(ms(4_000));
    let again = world.granted(ask("orders", "a").request(1));
    assert_eq!(
        (again.token, again.key, again.lease),
        (first.token, first.key, first.lease)
    );
    assert_eq!(again.valid_for, ms(TTL_MS - 4_000));
    assert_eq!(world.machine.next_token(), Some(token(2)));
}

#[test]
fn a_request_granted_from_the_queue_is_answered_again_without_the_wait() {
    let mut world = World::new();
    let a = world.granted(ask("orders", "a"));
    world.queued(ask("orders", "b").wait(60_000).request(1));
    world.pass(ms(3_000));
    world.release(&grant("orders", &a));
    world.pass(ms(1_000));
    let again = world.granted(ask("orders", "b").wait(60_000).request(1));
    assert_eq!(
        (again.valid_for, again.waited),
        (ms(TTL_MS - 1_000), Span::ZERO)
    );
}

/// The holder counts `valid_for` from when it sent the attempt that was answered. If that attempt
/// joined a request that waited already, the time before it must not be counted.
#[test]
fn an_attempt_that_joins_a_waiting_request_is_not_promised_time_from_before_it() {
    let mut world = World::new();
    let a = world.granted(ask("orders", "a").ttl(60_000));
    world.queued(ask("orders", "b").wait(60_000).request(1));
    world.pass(ms(6_000));
    let second_attempt = world.now;
    world.queued(ask("orders", "b").wait(54_000).request(1));
    world.pass(ms(4_000));
    world.release(&grant("orders", &a));
    let (_, b) = world.handed_over();
    let believed_until = second_attempt.after(b.valid_for);
    let expires = world.now.after(world.holder("orders").unwrap().remaining);
    assert!(
        believed_until <= expires,
        "believes until {believed_until:?}, expires {expires:?}"
    );
    assert_eq!((b.waited, b.valid_for), (ms(4_000), ms(4_000 + TTL_MS)));
}

#[test]
fn an_attempt_that_joins_a_waiting_request_keeps_its_place_and_deadline() {
    let mut world = World::new();
    let a = world.granted(ask("orders", "a"));
    world.queued(ask("orders", "b").wait(1_000).request(1));
    world.queued(ask("orders", "c").wait(1_000).request(2));
    world.pass(ms(500));
    world.queued(ask("orders", "b").wait(60_000).request(1));
    assert_eq!(world.machine.waiters(), 2);
    world.release(&grant("orders", &a));
    assert_eq!(world.handed_over().0, request(1));
    world.pass(ms(500));
    world.expire();
    assert_eq!(world.settled().len(), 1);
}

#[test]
fn a_request_that_was_denied_is_denied_again() {
    let mut world = World::new();
    let a = world.granted(ask("orders", "a"));
    let first = world.acquire(ask("orders", "b").request(1));
    world.release(&grant("orders", &a));
    assert_eq!(
        world.acquire(ask("orders", "b").request(1)),
        first,
        "the first answer, not a new one"
    );
    assert!(matches!(
        world.acquire(ask("orders", "b").request(2)),
        Outcome::Granted(_)
    ));
}

#[test]
fn a_request_whose_grant_is_over_learns_how_it_ended() {
    let mut world = World::new();
    let first = world.granted(ask("orders", "a").request(1));
    world.release(&grant("orders", &first));
    let ended = |how| Outcome::Ended {
        token: token(1),
        how,
    };
    assert_eq!(
        world.acquire(ask("orders", "a").request(1)),
        ended(RELEASED)
    );

    let mut world = World::new();
    world.granted(ask("orders", "a").request(1));
    world.pass(ms(TTL_MS));
    assert_eq!(
        world.acquire(ask("orders", "a").request(1)),
        ended(Ending::Expired)
    );

    let mut world = World::new();
    world.granted(ask("orders", "a").request(1));
    world.granted(ask("orders", "a").request(2));
    assert_eq!(
        world.acquire(ask("orders", "a").request(1)),
        ended(Ending::Superseded)
    );
}

/// At the nanosecond of expiry no timer has fired yet; the answer must not depend on that.
#[test]
fn a_request_whose_grant_ends_this_very_instant_learns_it_too() {
    let mut world = World::new();
    world.pass(ns(1));
    world.granted(ask("orders", "a").request(1));
    world.pass(ms(TTL_MS));
    let ended = Outcome::Ended {
        token: token(1),
        how: Ending::Expired,
    };
    assert_eq!(world.acquire(ask("orders", "a").request(1)), ended);
}

#[test]
fn a_request_id_belongs_to_one_lock_and_one_client() {
    let mut world = World::new();
    let reused = Outcome::Invalid(Invalid::RequestReused);
    world.granted(ask("orders", "a").request(1));
    assert_eq!(
        world.acquire(ask("seats", "a").request(1)),
        reused,
        "another lock"
    );
    assert_eq!(
        world.acquire(ask("orders", "b").request(1)),
        reused,
        "another client must not be told that it holds, and given the holder's key"
    );
    world.queued(ask("orders", "b").wait(1_000).request(2));
    assert_eq!(
        world.acquire(ask("seats", "b").wait(1_000).request(2)),
        reused
    );
    assert_eq!(
        world.acquire(ask("orders", "c").wait(1_000).request(2)),
        reused
    );
}

#[test]
fn a_malformed_request_leaves_its_id_free() {
    let mut world = World::new();
    let long = "x".repeat(257);
    let refused = world.acquire(ask("orders", "a").request(1).metadata(&long));
    assert!(matches!(refused, Outcome::Invalid(Invalid::TooLong { .. })));
    world.granted(ask("orders", "a").request(1));
}

#[test]
fn abandoned_before_it_arrives_a_request_is_refused() {
    let mut world = World::new();
    assert_eq!(world.apply(Command::Abandon(request(1))), Outcome::Done);
    assert_eq!(
        world.acquire(ask("orders", "a").request(1)),
        Outcome::Abandoned
    );
    assert_eq!(world.held_by("orders"), None);
}

#[test]
fn abandoned_while_it_waits_a_request_leaves_the_queue() {
    let mut world = World::new();
    let a = world.granted(ask("orders", "a"));
    world.queued(ask("orders", "b").wait(60_000).request(1));
    world.apply(Command::Abandon(request(1)));
    assert_eq!(world.settled(), [(request(1), Outcome::Abandoned)]);
    world.release(&grant("orders", &a));
    assert_eq!(
        (world.held_by("orders"), world.settled()),
        (None, Vec::new())
    );
    assert_eq!(
        world.acquire(ask("orders", "b").wait(1_000).request(1)),
        Outcome::Abandoned
    );
}

#[test]
fn abandoned_after_its_grant_a_request_gives_the_lock_back() {
    let mut world = World::new();
    world.granted(ask("orders", "a").request(1));
    world.queued(ask("orders", "b").wait(60_000).request(2));
    world.apply(Command::Abandon(request(1)));
    assert_eq!(world.handed_over().0, request(2));
    assert_eq!(
        world.acquire(ask("orders", "a").request(1)),
        Outcome::Abandoned
    );
    assert_eq!(world.apply(Command::Abandon(request(1))), Outcome::Done);
    assert_eq!(
        world.held_by("orders"),
        Some((2, "b".into())),
        "twice gives nothing more back"
    );
}

#[test]
fn abandoning_an_old_request_does_not_touch_a_later_grant() {
    let mut world = World::new();
    let first = world.granted(ask("orders", "a").request(1));
    world.release(&grant("orders", &first));
    world.granted(ask("orders", "a").request(2));
    world.apply(Command::Abandon(request(1)));
    assert_eq!(world.held_by("orders"), Some((2, "a".into())));
}

#[test]
fn an_entry_that_changes_nothing_says_so() {
    let mut world = World::new();
    let a = world.granted(ask("orders", "a").request(1));
    let before: Vec<_> = world.machine.records().collect();
    let revoke = Command::Revoke {
        lock: lock_name("orders"),
        token: token(9),
        reason: "".into(),
    };
    let idle = [
        Command::Acquire(ask("orders", "b").with_key(key(99))),
        Command::Acquire(ask("orders", "a").request(1).with_key(key(99))),
        Command::Acquire(ask("orders", "a").under(a.key).with_key(a.key)),
        Command::Release(grant("seats", &a)),
        Command::Renew {
            grant: grant("seats", &a),
            ttl: None,
        },
        Command::Withdraw(request(9)),
        Command::Configure(*world.machine.limits()),
        Command::Expire,
        revoke,
    ];
    for command in idle {
        assert!(!world.applied(command.clone()).changed, "{command:?}");
        assert_eq!(world.effects, []);
        assert_eq!(world.machine.records().collect::<Vec<_>>(), before);
    }
}

/// A request is granted a lock that its lease has already, together with others. The repeat gets the first answer, and
/// abandoning it touches only the lock that it named.
#[test]
fn a_request_under_a_lease_with_a_set_is_repeated_and_abandoned_by_its_own_names() {
    let mut world = World::new();
    let set = world.granted(ask_all(&["S1", "S2", "S3"], "c"));
    let one = ask("S2", "c").under(set.key).request(1);
    let two = ask_all(&["S1", "S3"], "c").under(set.key).request(2);
    assert!(matches!(
        world.acquire(two.clone()),
        Outcome::Invalid(Invalid::SetPartlyHeld { .. }) | Outcome::Granted(_)
    ));
    let first = world.granted(one.clone());
    assert_eq!(world.granted(one), first);
    world.apply(Command::Abandon(request(1)));
    let held = |world: &World, lock| world.held_by(lock).is_some();
    assert_eq!(
        ["S1", "S2", "S3"].map(|lock| held(&world, lock)),
        [true, false, true]
    );
    // The lease has more than its answer; a request for less or more is another one.
    let first = world.granted(two.clone());
    assert_eq!(world.granted(two), first);
    let reused = Outcome::Invalid(Invalid::RequestReused);
    for other in [ask("S1", "c"), ask_all(&["S1", "S2", "S3"], "c")] {
        assert_eq!(world.acquire(other.under(set.key).request(2)), reused);
    }
    world.apply(Command::Abandon(request(2)));
    assert_eq!(world.machine.locks(), 0);
}

/// A set is given back whole, though its first part was released and its lease has hundreds of newer grants.
#[test]
fn an_abandoned_set_gives_back_all_that_is_left_of_it() {
    let mut world = World::new();
    let set = world.granted(ask_all(&["S1", "S2"], "c").request(1));
    for n in 0..300 {
        world.granted(ask(&format!("more/{n}"), "c").under(set.key));
    }
    world.release(&grant("S1", &set));
    world.apply(Command::Abandon(request(1)));
    assert_eq!(world.held_by("S2"), None);
    assert_eq!(world.machine.locks(), 300);
}

/// A denial is remembered with all that it was for.
#[test]
fn a_denied_set_is_not_the_answer_to_another_one() {
    let mut world = World::new();
    world.granted(ask("S1", "x"));
    let denied = world.acquire(ask_all(&["S1", "S2"], "c").request(1));
    assert_eq!(
        world.acquire(ask_all(&["S1", "S2"], "c").request(1)),
        denied
    );
    let other = world.acquire(ask_all(&["S1", "S3"], "c").request(1));
    assert_eq!(other, Outcome::Invalid(Invalid::RequestReused));
}
