//! One lease with many grants: they are renewed together, expire together, and end the lease.

use palisade_core::{Change, Command, Ending, Entry, Granted, Invalid, Outcome, Under, limits};

use crate::world::{TTL_MS, World, ask, grant, key, ms, token, ttl, wall};

/// A world in which client `a` holds x, y and z under one lease.
fn three_under_one() -> (World, [Granted; 3]) {
    let mut world = World::new();
    let x = world.granted(ask("x", "a"));
    let y = world.granted(ask("y", "a").under(x.key));
    let z = world.granted(ask("z", "a").under(x.key));
    assert_eq!((y.lease, z.lease), (x.lease, x.lease));
    assert_eq!(world.machine.leases(), 1);
    (world, [x, y, z])
}

#[test]
fn a_later_grant_gets_what_the_lease_has_left() {
    let mut world = World::new();
    let x = world.granted(ask("x", "a"));
    world.pass(ms(3_000));
    let y = world.granted(ask("y", "a").under(x.key));
    assert_eq!((y.token, y.valid_for), (token(2), ms(TTL_MS - 3_000)));
}

#[test]
fn the_grants_of_a_lease_are_renewed_together() {
    let (mut world, [_, y, _]) = three_under_one();
    world.pass(ms(TTL_MS - 1));
    assert!(matches!(world.renew(&grant("y", &y)), Outcome::Renewed(_)));
    for lock in ["x", "y", "z"] {
        assert_eq!(world.holder(lock).unwrap().remaining, ms(TTL_MS));
    }
}

#[test]
fn the_grants_of_a_lease_expire_together_in_token_order() {
    let (mut world, grants) = three_under_one();
    world.pass(ms(TTL_MS));
    world.expire();
    let ended: Vec<_> = world
        .events()
        .iter()
        .map(|event| event.token.get())
        .collect();
    assert_eq!(ended, [1, 2, 3]);
    let expired = Change::Ended {
        how: Ending::Expired,
        reason: None,
        delayed: None,
    };
    assert!(world.events().iter().all(|event| event.change == expired));
    assert_eq!((world.machine.locks(), world.machine.leases()), (0, 0));
    for (lock, held) in ["x", "y", "z"].iter().zip(&grants) {
        let ended = Outcome::Ended {
            token: held.token,
            how: Ending::Expired,
        };
        assert_eq!(world.renew(&grant(lock, held)), ended);
    }
}

#[test]
fn one_touched_at_the_boundary_ends_all_of_them() {
    let (mut world, [x, ..]) = three_under_one();
    world.pass(ms(TTL_MS));
    assert!(matches!(
        world.renew(&grant("x", &x)),
        Outcome::Ended {
            how: Ending::Expired,
            ..
        }
    ));
    assert_eq!(world.machine.leases(), 0);
}

#[test]
fn a_lease_ends_with_its_last_grant() {
    let (mut world, [x, y, z]) = three_under_one();
    world.release(&grant("x", &x));
    assert_eq!(world.machine.leases(), 1);
    let again = world.granted(ask("x", "a").under(y.key));
    assert_eq!(
        again.token,
        token(4),
        "released and taken again is a new grant"
    );
    for (lock, held) in [("x", &again), ("y", &y)] {
        world.release(&grant(lock, held));
    }
    assert_eq!(world.machine.leases(), 1);
    world.release(&grant("z", &z));
    assert_eq!(world.machine.leases(), 0);
    let under_the_dead = world.acquire(ask("w", "a").under(z.key));
    assert!(matches!(
        under_the_dead,
        Outcome::Ended {
            how: Ending::Released,
            ..
        }
    ));
}

/// Which of its grants a dead lease is remembered by must not depend on how a hash table is laid out.
#[test]
fn a_dead_lease_is_remembered_by_its_last_grant() {
    let (mut world, grants) = three_under_one();
    for (lock, held) in ["y", "x", "z"]
        .iter()
        .zip([&grants[1], &grants[0], &grants[2]])
    {
        world.release(&grant(lock, held));
    }
    let ended = Outcome::Ended {
        token: grants[2].token,
        how: Ending::Released,
    };
    assert_eq!(world.acquire(ask("w", "a").under(grants[0].key)), ended);
}

#[test]
fn a_dead_lease_is_remembered_by_the_lock_that_is_asked_for_if_it_had_it() {
    let (mut world, grants) = three_under_one();
    for (lock, held) in ["x", "y", "z"].iter().zip(&grants) {
        world.release(&grant(lock, held));
    }
    for (lock, held) in ["x", "y", "z"].iter().zip(&grants) {
        let ended = Outcome::Ended {
            token: held.token,
            how: Ending::Released,
        };
        assert_eq!(world.acquire(ask(lock, "a").under(held.key)), ended);
    }
}

#[test]
fn a_lease_is_its_clients_alone() {
    let mut world = World::new();
    let a = world.granted(ask("x", "a"));
    assert_eq!(world.acquire(ask("y", "b").under(a.key)), Outcome::NotHeld);
    assert_eq!(world.acquire(ask("x", "b").under(a.key)), Outcome::NotHeld);
    assert_eq!(
        world.acquire(ask("y", "a").under(key(99))),
        Outcome::NotHeld
    );
    assert_eq!(world.machine.locks(), 1);
}

#[test]
fn a_lease_keeps_its_time_to_live_when_another_grant_joins() {
    let mut world = World::new();
    let a = world.granted(ask("x", "a"));
    let mut wish = ask("y", "a").with_key(a.key);
    wish.under = Under::Existing {
        key: a.key,
        ttl: Some(ttl(5_000)),
    };
    let differs = Outcome::Invalid(Invalid::TtlDiffers { lease: ttl(TTL_MS) });
    assert_eq!(world.apply(Command::Acquire(wish.clone())), differs);
    wish.under = Under::Existing {
        key: a.key,
        ttl: Some(ttl(TTL_MS)),
    };
    assert!(matches!(
        world.apply(Command::Acquire(wish)),
        Outcome::Granted(_)
    ));
}

#[test]
fn a_lease_may_get_another_time_to_live_while_a_request_waits_for_it() {
    let mut world = World::new();
    let lease = world.granted(ask("seats", "b"));
    let a = world.granted(ask("orders", "a"));
    let mut wish = ask("orders", "b")
        .wait(60_000)
        .request(1)
        .with_key(lease.key);
    wish.under = Under::Existing {
        key: lease.key,
        ttl: Some(ttl(TTL_MS)),
    };
    assert_eq!(world.apply(Command::Acquire(wish)), Outcome::Queued);
    world.apply(Command::Renew {
        grant: grant("seats", &lease),
        ttl: Some(ttl(20_000)),
    });
    world.release(&grant("orders", &a));
    let (_, granted) = world.handed_over();
    assert_eq!((granted.lease, granted.ttl), (lease.lease, ttl(20_000)));
}

#[test]
fn a_lease_may_have_fifty_thousand_grants_and_end_with_all_of_them() {
    let mut world = World::new();
    let first = world.granted(ask("0", "a"));
    // Not `World::apply`: the invariants look at everything after every entry.
    let mut effects = Vec::new();
    let many = 50_000;
    for n in 1..many {
        let wish = ask(&n.to_string(), "a")
            .under(first.key)
            .with_key(first.key);
        let command = Command::Acquire(wish);
        let entry = Entry {
            at: world.now,
            wall: wall(world.now),
            by: palisade_core::Principal::ANONYMOUS,
            command,
        };
        world.machine.apply(entry, &mut effects);
    }
    assert_eq!(world.machine.locks(), many);
    world.pass(ms(TTL_MS));
    let bound = limits::EXPIRE_ALONE as usize;
    while world.machine.next_due().is_some() {
        let held = world.machine.locks();
        world.expire();
        assert_eq!(world.events().len(), held.min(bound));
        assert_eq!(world.machine.locks(), held.saturating_sub(bound));
    }
    assert_eq!((world.machine.locks(), world.machine.leases()), (0, 0));
}
