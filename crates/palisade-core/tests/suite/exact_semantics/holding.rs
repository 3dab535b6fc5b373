//! Holders, the end of their time, and the callers that may end it earlier.

use palisade_core::{Change, Command, Ending, GrantRef, Holder, Outcome, Renewed, Span, Timestamp};

use crate::world::{
    TTL_MS, World, ask, client_id, grant, key, lock_name, ms, ns, token, tokenless, ttl, wall,
};

#[test]
fn a_second_client_is_denied_while_held() {
    let mut world = World::new();
    world.granted(ask("orders", "a"));
    world.pass(ms(4_000));
    let holder = Holder {
        client: client_id("a"),
        token: token(1),
        remaining: ms(TTL_MS - 4_000),
    };
    assert_eq!(world.acquire(ask("orders", "b")), Outcome::Held(holder));
}

#[test]
fn denied_one_nanosecond_before_issued_at_plus_ttl_and_granted_exactly_then() {
    let mut world = World::new();
    world.pass(ns(123_456_789));
    world.granted(ask("orders", "a").ttl(250));
    world.pass(ns(250_000_000 - 1));
    let Outcome::Held(holder) = world.acquire(ask("orders", "b")) else {
        panic!("granted early")
    };
    assert_eq!(holder.remaining, ns(1));
    world.pass(ns(1));
    assert_eq!(world.granted(ask("orders", "b")).token, token(2));
    let ended = &world.events()[0];
    assert_eq!(
        ended.change,
        Change::Ended {
            how: Ending::Expired,
            reason: None,
            delayed: None,
        }
    );
}

#[test]
fn a_time_to_live_of_24_hours_ends_to_the_nanosecond_too() {
    let mut world = World::new();
    world.granted(ask("orders", "a").ttl(24 * 3_600_000));
    world.pass(Span::from_nanos(ms(24 * 3_600_000).as_nanos() - 1));
    world.expire();
    assert!(matches!(
        world.acquire(ask("orders", "b")),
        Outcome::Held(_)
    ));
    world.pass(ns(1));
    assert_eq!(world.granted(ask("orders", "b")).token, token(2));
}

#[test]
fn expiry_is_an_entry_of_the_log_even_if_nobody_asks() {
    let mut world = World::new();
    world.granted(ask("orders", "a"));
    world.now = world.machine.next_due().unwrap();
    while world.machine.locks() > 0 {
        let due = world.machine.next_due().unwrap();
        assert!(
            due > world.machine.now(),
            "the timers ask for the future only"
        );
        world.now = due;
        world.expire();
    }
    assert_eq!(world.now.as_nanos(), ms(TTL_MS).as_nanos());
    assert_eq!(
        (world.machine.leases(), world.machine.next_due()),
        (0, None)
    );
}

#[test]
fn release_then_the_other_client_is_granted() {
    let mut world = World::new();
    let a = world.granted(ask("orders", "a"));
    assert_eq!(
        world.release(&grant("orders", &a)),
        Outcome::Released {
            token: token(1),
            delayed: None,
        }
    );
    assert_eq!(world.held_by("orders"), None);
    assert_eq!(world.granted(ask("orders", "b")).token, token(2));
}

#[test]
fn only_the_holder_releases_or_renews() {
    let mut world = World::new();
    let a = world.granted(ask("orders", "a"));
    let b = world.granted(ask("seats", "b"));
    let strangers = [
        GrantRef {
            lock: lock_name("orders"),
            key: b.key,
            token: None,
        },
        GrantRef {
            lock: lock_name("orders"),
            key: b.key,
            token: Some(a.token),
        },
        GrantRef {
            lock: lock_name("orders"),
            key: key(99),
            token: Some(a.token),
        },
        GrantRef {
            lock: lock_name("seats"),
            key: a.key,
            token: None,
        },
        GrantRef {
            lock: lock_name("nowhere"),
            key: a.key,
            token: None,
        },
        GrantRef {
            lock: lock_name("orders"),
            key: a.key,
            token: Some(token(2)),
        },
    ];
    let (last, others) = strangers.split_last().unwrap();
    for stranger in others {
        assert_eq!(world.renew(stranger), Outcome::NotHeld, "{stranger:?}");
        assert_eq!(world.release(stranger), Outcome::NotHeld, "{stranger:?}");
    }
    // The lease does hold the lock, by a grant with another number.
    let other = Outcome::OtherNumber { has: a.token };
    assert_eq!(world.renew(last), other);
    assert_eq!(world.release(last), other);
    let by = std::mem::replace(&mut world.by, crate::world::principal(1));
    let owned = world.granted(ask("mine", "c"));
    let wrong = GrantRef {
        token: Some(token(77)),
        ..grant("mine", &owned)
    };
    assert_eq!(
        world.renew(&wrong),
        Outcome::OtherNumber { has: owned.token }
    );
    world.by = by;
    assert_eq!(
        world.renew(&wrong),
        Outcome::NotHeld,
        "another principal learns nothing"
    );
    assert_eq!(world.held_by("orders"), Some((1, "a".into())));
    assert_eq!(world.held_by("seats"), Some((2, "b".into())));
}

#[test]
fn renew_keeps_token_and_counter() {
    let mut world = World::new();
    let a = world.granted(ask("orders", "a"));
    world.pass(ms(TTL_MS - 1));
    let renewed = Renewed {
        token: token(1),
        ttl: ttl(TTL_MS),
        valid_for: ms(TTL_MS),
        near_deadline: true,
        waiters: 0,
    };
    assert_eq!(world.renew(&grant("orders", &a)), Outcome::Renewed(renewed));
    assert_eq!(world.machine.next_token(), Some(token(2)));
    world.pass(ms(TTL_MS - 1));
    assert_eq!(
        world.held_by("orders"),
        Some((1, "a".into())),
        "the old deadline has passed"
    );
    assert_eq!(
        world.renew(&tokenless("orders", &a)),
        Outcome::Renewed(renewed)
    );
}

#[test]
fn a_renewal_is_near_its_deadline_when_less_than_a_quarter_of_the_time_before_it_is_left() {
    for (passed, longer, near) in [
        (Span::ZERO, None, false),
        (ms(TTL_MS / 4 * 3), None, false),
        (ms(TTL_MS / 4 * 3).plus(ns(1)), None, true),
        // The time to live that the lease had before the renewal counts.
        (ms(TTL_MS / 2), Some(ttl(60_000)), false),
        (ms(TTL_MS / 4 * 3).plus(ns(1)), Some(ttl(1_000)), true),
    ] {
        let mut world = World::new();
        let a = world.granted(ask("orders", "a"));
        world.pass(passed);
        let renew = Command::Renew {
            grant: grant("orders", &a),
            ttl: longer,
        };
        let Outcome::Renewed(renewed) = world.apply(renew) else {
            panic!("not renewed")
        };
        assert_eq!(renewed.near_deadline, near, "{passed:?}, {longer:?}");
    }
}

#[test]
fn the_event_of_an_end_says_how_long_the_grant_lasted() {
    let mut world = World::new();
    world.pass(ms(5_000));
    let a = world.granted(ask("orders", "a"));
    assert_eq!(world.events()[0].held, Span::ZERO);
    world.pass(ms(700));
    world.renew(&grant("orders", &a));
    world.pass(ms(800));
    world.release(&grant("orders", &a));
    assert_eq!(world.events()[0].held, ms(1_500));
    // In a phase, each reader has its own time.
    let first = world.granted(ask("orders", "a").shared());
    world.pass(ms(100));
    let second = world.granted(ask("orders", "b").shared());
    world.pass(ms(200));
    for (reader, held) in [(&second, ms(200)), (&first, ms(300))] {
        world.release(&tokenless("orders", reader));
        assert_eq!(world.events()[0].held, held);
    }
}

#[test]
fn renew_fails_at_the_boundary_and_revives_nothing() {
    let mut world = World::new();
    let a = world.granted(ask("orders", "a"));
    world.pass(ms(TTL_MS));
    let ended = Outcome::Ended {
        token: token(1),
        how: Ending::Expired,
    };
    assert_eq!(world.renew(&grant("orders", &a)), ended);
    assert_eq!(world.release(&grant("orders", &a)), ended);
    assert_eq!(world.held_by("orders"), None);
}

#[test]
fn a_renewal_may_change_the_time_to_live_and_a_shorter_one_takes_nothing_away() {
    let mut world = World::new();
    let a = grant("orders", &world.granted(ask("orders", "a")));
    let shorter = Command::Renew {
        grant: a.clone(),
        ttl: Some(ttl(1_000)),
    };
    let Outcome::Renewed(renewed) = world.apply(shorter.clone()) else {
        panic!("not renewed")
    };
    // If this answer is lost, the holder still relies on its earlier time; the lease has that time, too.
    assert_eq!((renewed.ttl, renewed.valid_for), (ttl(TTL_MS), ms(TTL_MS)));
    world.pass(ms(TTL_MS - 1_001));
    let Outcome::Renewed(renewed) = world.apply(shorter.clone()) else {
        panic!("not renewed")
    };
    assert_eq!((renewed.ttl, renewed.valid_for), (ttl(TTL_MS), ms(1_001)));
    // No more than the shorter time is left: it comes into force.
    world.pass(ms(1));
    let Outcome::Renewed(renewed) = world.apply(shorter.clone()) else {
        panic!("not renewed")
    };
    assert_eq!((renewed.ttl, renewed.valid_for), (ttl(1_000), ms(1_000)));
    let longer = Command::Renew {
        grant: a,
        ttl: Some(ttl(60_000)),
    };
    let Outcome::Renewed(renewed) = world.apply(longer) else {
        panic!("not renewed")
    };
    assert_eq!((renewed.ttl, renewed.valid_for), (ttl(60_000), ms(60_000)));
}

#[test]
fn re_acquire_by_the_holder_gets_a_higher_token_and_supersedes_the_old_grant() {
    let mut world = World::new();
    let before = world.granted(ask("orders", "a").metadata("before"));
    world.queued(ask("orders", "b").wait(60_000).request(1));
    let after = world.granted(ask("orders", "a"));
    assert_eq!(after.token, token(2));
    assert_eq!(
        world.events()[0].change,
        Change::Ended {
            how: Ending::Superseded,
            reason: None,
            delayed: None,
        }
    );
    assert_eq!(
        world.settled(),
        [],
        "who waits for another client goes on waiting"
    );
    let superseded = Outcome::Ended {
        token: token(1),
        how: Ending::Superseded,
    };
    for old in [grant("orders", &before), tokenless("orders", &before)] {
        assert_eq!(world.renew(&old), superseded);
        assert_eq!(world.release(&old), superseded);
    }
    assert_eq!(
        world.machine.view("orders", world.now).unwrap().metadata,
        None
    );
    assert_eq!(
        world.release(&grant("orders", &after)),
        Outcome::Released {
            token: token(2),
            delayed: None,
        }
    );
    assert_eq!(world.handed_over().1.token, token(3));
}

#[test]
fn taking_back_under_another_lease_of_ones_own_moves_the_grant_there() {
    let mut world = World::new();
    let old = world.granted(ask("orders", "a"));
    let other = world.granted(ask("seats", "a"));
    let moved = world.granted(ask("orders", "a").under(other.key));
    assert_eq!((moved.token, moved.lease), (token(3), other.lease));
    assert_eq!(
        world.machine.leases(),
        1,
        "the old lease ended with its only grant"
    );
    let superseded = Outcome::Ended {
        token: token(1),
        how: Ending::Superseded,
    };
    assert_eq!(world.renew(&grant("orders", &old)), superseded);
}

#[test]
fn acquiring_again_under_the_same_lease_is_a_repeat_same_grant_same_token() {
    let mut world = World::new();
    let first = world.granted(ask("orders", "a"));
    world.pass(ms(3_000));
    let again = world.granted(ask("orders", "a").under(first.key));
    assert_eq!(
        (again.token, again.lease, again.key),
        (first.token, first.lease, first.key)
    );
    assert_eq!(
        again.valid_for,
        ms(TTL_MS - 3_000),
        "a repeat is no renewal"
    );
    assert_eq!(again.acquired_at, first.acquired_at);
    assert_eq!(world.machine.next_token(), Some(token(2)));
    assert_eq!(world.effects, []);
}

#[test]
fn revoke_needs_the_current_token() {
    let mut world = World::new();
    let a = world.granted(ask("orders", "a"));
    let revoke = |token| Command::Revoke {
        lock: lock_name("orders"),
        token,
        reason: "stuck".into(),
    };
    let stale = Outcome::Stale {
        named: token(2),
        highest: token(1),
    };
    assert_eq!(world.apply(revoke(token(2))), stale);
    assert_eq!(world.held_by("orders"), Some((1, "a".into())));
    world.queued(ask("orders", "b").wait(1_000).request(1));
    assert_eq!(
        world.apply(revoke(token(1))),
        Outcome::Revoked { token: token(1) }
    );
    let revoked = Change::Ended {
        how: Ending::Revoked,
        reason: Some("stuck".into()),
        delayed: None,
    };
    assert_eq!(world.events()[0].change, revoked);
    assert_eq!(world.handed_over().1.token, token(2));
    assert_eq!(
        world.apply(revoke(token(1))),
        Outcome::Stale {
            named: token(1),
            highest: token(2)
        }
    );
    let ended = Outcome::Ended {
        token: token(1),
        how: Ending::Revoked,
    };
    assert_eq!(world.renew(&grant("orders", &a)), ended);
    world.pass(ms(TTL_MS));
    assert_eq!(
        world.apply(revoke(token(2))),
        Outcome::NotHeld,
        "the boundary is expired here too"
    );
}

#[test]
fn events_tell_every_change_once_and_are_numbered_from_1() {
    let mut world = World::new();
    let mut revisions = Vec::new();
    let a = world.granted(ask("orders", "a"));
    revisions.extend(world.events());
    world.queued(ask("orders", "b").wait(60_000).request(1));
    revisions.extend(world.events());
    world.pass(ms(5));
    world.release(&grant("orders", &a));
    revisions.extend(world.events());
    let seen: Vec<_> = revisions
        .iter()
        .map(|event| {
            (
                event.revision,
                event.at.as_nanos() / 1_000_000,
                event.client.as_deref().unwrap(),
                event.token.get(),
            )
        })
        .collect();
    assert_eq!(seen, [(1, 0, "a", 1), (2, 5, "a", 1), (3, 5, "b", 2)]);
}

#[test]
fn the_wall_clock_is_printed_and_decides_nothing() {
    let mut world = World::new();
    world.pass(ms(77));
    let granted = world.granted(ask("orders", "a"));
    assert_eq!(granted.acquired_at, wall(world.now));
}

#[test]
fn time_does_not_go_back() {
    let mut world = World::new();
    world.pass(ms(5_000));
    world.granted(ask("orders", "a"));
    world.now = Timestamp::ZERO;
    let b = world.granted(ask("seats", "b"));
    assert_eq!(world.machine.now().as_nanos(), ms(5_000).as_nanos());
    assert_eq!(b.valid_for, ms(TTL_MS));
    assert_eq!(
        world
            .machine
            .holder("seats", world.machine.now())
            .unwrap()
            .remaining,
        ms(TTL_MS)
    );
}
