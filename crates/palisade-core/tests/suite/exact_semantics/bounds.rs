//! A value out of range is refused with the range, and a refusal is a value that changes nothing.

use palisade_core::{Command, GrantRef, Invalid, Limits, Outcome, Timestamp, limits};

use crate::world::{TTL_MS, World, ask, grant, key, lock_name, ms, request, token, ttl};

#[test]
fn too_many_locks() {
    let mut world = World::with(Limits {
        locks: 2,
        ..Limits::DEFAULT
    });
    let x = world.granted(ask("x", "a"));
    world.granted(ask("y", "a"));
    assert_eq!(
        world.acquire(ask("z", "a")),
        Outcome::TooManyLocks { max: 2 }
    );
    world.granted(ask("x", "a"));
    assert!(matches!(
        world.release(&grant("x", &x)),
        Outcome::Ended { .. }
    ));
    world.pass(ms(TTL_MS));
    assert!(
        matches!(world.acquire(ask("z", "a")), Outcome::Granted(_)),
        "expired ones make room"
    );
}

#[test]
fn the_operators_range_for_the_time_to_live_is_named() {
    let (min_ttl, max_ttl) = (ttl(1_000), ttl(2_000));
    let mut world = World::with(Limits {
        min_ttl,
        max_ttl,
        ..Limits::DEFAULT
    });
    for given_ms in [999, 2_001] {
        let invalid = Invalid::Ttl {
            given_ms,
            min: min_ttl,
            max: max_ttl,
        };
        assert_eq!(
            world.acquire(ask("x", "a").ttl(given_ms)),
            Outcome::Invalid(invalid)
        );
    }
    let a = world.granted(ask("x", "a").ttl(1_000));
    let renew = Command::Renew {
        grant: grant("x", &a),
        ttl: Some(ttl(2_001)),
    };
    let invalid = Invalid::Ttl {
        given_ms: 2_001,
        min: min_ttl,
        max: max_ttl,
    };
    assert_eq!(world.apply(renew), Outcome::Invalid(invalid));
    assert_eq!(world.holder("x").unwrap().remaining, ms(1_000));
}

#[test]
fn there_is_no_unbounded_wait() {
    let mut world = World::new();
    world.granted(ask("x", "a"));
    let too_long = limits::MAX_WAIT.as_millis() + 1;
    let refused = world.acquire(ask("x", "b").wait(too_long).request(1));
    assert_eq!(
        refused,
        Outcome::Invalid(Invalid::Wait { given_ms: too_long })
    );
    world.queued(ask("x", "b").wait(too_long - 1).request(1));
}

#[test]
fn texts_have_a_longest_length() {
    let mut world = World::new();
    let fits = "m".repeat(limits::METADATA_BYTES);
    let long = format!("{fits}m");
    let too_long = |what| Invalid::TooLong {
        what,
        bytes: 257,
        max: 256,
    };
    assert_eq!(
        world.acquire(ask("x", "a").metadata(&long)),
        Outcome::Invalid(too_long("metadata"))
    );
    world.granted(ask("x", "a").metadata(&fits));
    let reason = long.into();
    let revoke = Command::Revoke {
        lock: lock_name("x"),
        token: token(1),
        reason,
    };
    assert_eq!(world.apply(revoke), Outcome::Invalid(too_long("reason")));
    assert!(world.holder("x").is_some());
}

#[test]
fn a_lease_key_in_use_opens_no_second_lease() {
    let mut world = World::new();
    let a = world.granted(ask("x", "a"));
    for client in ["a", "b"] {
        let twin = Command::Acquire(ask("y", client).with_key(a.key));
        assert_eq!(world.apply(twin), Outcome::Invalid(Invalid::LeaseKeyInUse));
    }
    assert_eq!(world.machine.leases(), 1);
}

/// Every command, in the states where it is not welcome: values, no panics, and the lock stays.
#[test]
fn nothing_in_a_denial_path_panics_or_is_an_error() {
    let mut world = World::new();
    let a = world.granted(ask("x", "a"));
    let stranger = GrantRef {
        lock: lock_name("x"),
        key: key(98),
        token: None,
    };
    let nowhere = GrantRef {
        lock: lock_name("nowhere"),
        ..stranger.clone()
    };
    let revoke = |lock, token| Command::Revoke {
        lock: lock_name(lock),
        token,
        reason: "".into(),
    };
    type Expected = fn(&Outcome) -> bool;
    let denials: [(Command, Expected); 10] = [
        (Command::Acquire(ask("x", "b").with_key(key(97))), |it| {
            matches!(it, Outcome::Held(_))
        }),
        (
            Command::Acquire(ask("y", "b").under(key(98)).with_key(key(98))),
            is_not_held,
        ),
        (
            Command::Renew {
                grant: stranger.clone(),
                ttl: None,
            },
            is_not_held,
        ),
        (
            Command::Renew {
                grant: nowhere.clone(),
                ttl: Some(ttl(100)),
            },
            is_not_held,
        ),
        (Command::Release(stranger), is_not_held),
        (Command::Release(nowhere), is_not_held),
        (revoke("nowhere", token(1)), is_not_held),
        (revoke("x", token(9)), |it| {
            matches!(it, Outcome::Stale { .. })
        }),
        (Command::Withdraw(request(1)), |it| *it == Outcome::Done),
        (Command::Abandon(request(1)), |it| *it == Outcome::Done),
    ];
    for (command, expected) in denials {
        let outcome = world.apply(command.clone());
        assert!(expected(&outcome), "{command:?}: {outcome:?}");
        assert_eq!(world.effects, []);
        assert_eq!(world.held_by("x"), Some((a.token.get(), "a".into())));
    }
}

fn is_not_held(outcome: &Outcome) -> bool {
    *outcome == Outcome::NotHeld
}

/// The last instant there is: nothing wraps, nothing panics.
#[test]
fn the_end_of_time_is_survived() {
    let mut world = World::new();
    world.granted(ask("x", "a"));
    world.now = Timestamp::from_nanos(u64::MAX - 1);
    world.granted(ask("x", "b"));
    world.now = Timestamp::from_nanos(u64::MAX);
    world.granted(ask("y", "b"));
    world.expire();
    assert_eq!(world.holder("y"), None);
}
