//! Several locks at once (rules M1–M3).

use palisade_core::{
    Away, Command, GrantRef, Invalid, Limits, LockMode, Machine, Outcome, QueueBound, invariants,
    set_of,
};

use crate::world::{TTL_MS, World, ask, grant, key, lock_name, ms, request, token};

fn part(lock: &str, of: &GrantRef) -> GrantRef {
    GrantRef {
        lock: lock_name(lock),
        ..of.clone()
    }
}

fn tokens(world: &World, locks: [&str; 2]) -> [Option<u64>; 2] {
    locks.map(|lock| world.held_by(lock).map(|(token, _)| token))
}

#[test]
fn a_set_is_granted_in_one_entry_under_one_token_and_one_lease() {
    let mut world = World::new();
    let set = world.granted(ask("b", "x").also(&["a", "c"]).metadata("m"));
    assert_eq!(set.token, token(1));
    let events = world.events();
    let of: Vec<_> = events
        .iter()
        .map(|event| (&*event.lock, event.token))
        .collect();
    assert_eq!(of, [("a", token(1)), ("b", token(1)), ("c", token(1))]);
    assert_eq!(world.machine.next_token(), Some(token(2)));
    assert_eq!((world.machine.locks(), world.machine.leases()), (3, 1));
    for lock in ["a", "b", "c"] {
        let view = world.machine.view(lock, world.now).unwrap();
        assert_eq!(view.metadata.as_deref(), Some("m"));
        assert_eq!(view.lease, Some(set.lease));
    }
    // One renewal is for all.
    world.pass(ms(TTL_MS - 1));
    world.renew(&grant("c", &set));
    world.pass(ms(TTL_MS - 1));
    assert_eq!(tokens(&world, ["a", "b"]), [Some(1), Some(1)]);
    world.pass(ms(1));
    assert_eq!(tokens(&world, ["a", "b"]), [None, None]);
}

#[test]
fn all_or_none() {
    let mut world = World::new();
    let other = world.granted(ask("b", "y"));
    let denied = world.acquire(ask("a", "x").also(&["b", "c"]));
    assert!(matches!(denied, Outcome::Held(ref holder) if holder.token == other.token));
    assert_eq!((world.machine.locks(), world.machine.waiters()), (1, 0));
    assert_eq!(world.machine.next_token(), Some(token(2)));
}

#[test]
fn nothing_is_held_while_a_set_waits_and_its_place_is_kept_at_a_lock_that_is_free() {
    let mut world = World::new();
    let b = world.granted(ask("b", "y"));
    world.queued(ask("a", "x").also(&["b"]).wait(60_000).request(1));
    assert_eq!(world.holder("a"), None);
    // A try is told of the set, a request that waits comes after it.
    let denied = world.acquire(ask("a", "z"));
    assert!(matches!(denied, Outcome::Held(ref holder) if &*holder.client == "x"));
    world.queued(ask("a", "z").wait(60_000).request(2));
    world.release(&grant("b", &b));
    let (first, set) = world.handed_over();
    assert_eq!((first, set.token), (request(1), token(2)));
    assert_eq!(tokens(&world, ["a", "b"]), [Some(2), Some(2)]);
    world.release(&grant("a", &set));
    assert_eq!(world.handed_over().0, request(2));
    assert_eq!(tokens(&world, ["a", "b"]), [Some(3), Some(2)]);
}

#[test]
fn sets_in_opposite_orders_do_not_wait_for_each_other() {
    let mut world = World::new();
    let (a, b) = (world.granted(ask("a", "p")), world.granted(ask("b", "q")));
    world.queued(ask("a", "x").also(&["b"]).wait(60_000).request(1));
    world.queued(ask("b", "y").also(&["a"]).wait(60_000).request(2));
    world.release(&grant("b", &b));
    assert!(world.settled().is_empty());
    world.release(&grant("a", &a));
    let (first, set) = world.handed_over();
    assert_eq!(first, request(1));
    let set = grant("a", &set);
    world.release(&set);
    assert!(world.settled().is_empty());
    world.release(&part("b", &set));
    assert_eq!(world.handed_over().0, request(2));
}

#[test]
fn a_set_that_leaves_lets_everybody_behind_it_go_on() {
    let leave: [fn(&mut World); 3] = [
        |world| world.pass(ms(500)),
        |world| drop(world.apply(Command::Withdraw(request(1)))),
        |world| drop(world.apply(Command::Abandon(request(1)))),
    ];
    for leave in leave {
        let mut world = World::new();
        world.granted(ask("c", "y").ttl(60_000));
        world.queued(ask("a", "x").also(&["b", "c"]).wait(500).request(1));
        world.queued(ask("a", "p").wait(60_000).request(2));
        world.queued(ask("b", "q").also(&["d"]).wait(60_000).request(3));
        leave(&mut world);
        world.expire();
        assert_eq!(tokens(&world, ["a", "b"]), [Some(2), Some(3)]);
        assert_eq!(world.held_by("d").map(|(token, _)| token), Some(3));
        assert_eq!(world.machine.waiters(), 0);
        invariants::check(&world.machine).unwrap();
    }
}

#[test]
fn a_lock_that_was_kept_for_a_set_is_forgotten_with_it() {
    let mut world = World::new();
    world.granted(ask("c", "y"));
    world.queued(ask("a", "x").also(&["b", "c"]).wait(500).request(1));
    assert_eq!(world.machine.locks(), 3);
    world.apply(Command::Withdraw(request(1)));
    assert_eq!((world.machine.locks(), world.machine.waiters()), (1, 0));
}

#[test]
fn a_wait_that_is_over_by_this_very_instant_blocks_nobody() {
    let mut world = World::new();
    world.granted(ask("b", "y").ttl(60_000));
    world.queued(ask("a", "x").also(&["b"]).wait(500).request(1));
    world.now = world.now.after(ms(500));
    assert_eq!(world.granted(ask("a", "z")).token, token(2));
}

/// The list of what is woken, and no recursion: each set that ends lets the next one be looked at.
#[test]
fn a_long_chain_of_sets_that_end_together_ends() {
    const LINKS: u32 = 1_000;
    let mut world = World::with(Limits {
        waiters_per_client: 1_000_000,
        ..Limits::DEFAULT
    });
    let name = |n: u32| format!("lock {n:05}");
    world.granted(ask(&name(0), "y").ttl(60_000));
    let lease = world.granted(ask("lease", "x"));
    for n in 0..LINKS {
        let next = name(n + 1);
        let asked = ask(&name(n), "x").also(&[&next]).under(lease.key);
        let mut acquire = asked.wait(50_000).with_key(lease.key);
        let mut id = [7; 16];
        id[..4].copy_from_slice(&n.to_be_bytes());
        acquire.request = Some(palisade_core::RequestId::from_bytes(id));
        assert_eq!(world.apply(Command::Acquire(acquire)), Outcome::Queued);
    }
    world.release(&grant("lease", &lease));
    // The first one's lease is gone, then the second one's, and so on.
    world.pass(ms(60_000));
    for _ in 0..2 * LINKS {
        world.expire();
    }
    assert_eq!((world.machine.waiters(), world.machine.locks()), (0, 0));
}

#[test]
fn a_set_is_wrong_in_many_ways_and_changes_nothing() {
    let mut world = World::new();
    world.granted(ask("gpu", "y").permits(1, 2));
    let mine = world.granted(ask("mine", "x"));
    world.granted(ask("slow", "x").delays(1_000, 0));
    let many: Vec<_> = (0..65).map(|n| lock_name(&format!("n{n:02}"))).collect();
    assert_eq!(
        set_of(many.clone()),
        Err(Invalid::SetTooLarge { locks: 65 })
    );
    assert_eq!(set_of(Vec::new()), Err(Invalid::SetTooLarge { locks: 0 }));
    let twice = set_of(vec![lock_name("a"), lock_name("b"), lock_name("a")]);
    assert_eq!(
        twice,
        Err(Invalid::SetOrder {
            lock: lock_name("a")
        })
    );
    let mut disordered = ask("b", "x").with_key(mine.key);
    disordered.also = [lock_name("a")].into();
    disordered.under = palisade_core::Under::Existing {
        key: mine.key,
        ttl: None,
    };
    let mut large = disordered.clone();
    large.lock = many[0].clone();
    large.also = many[1..].into();
    let records: Vec<_> = world.machine.records().collect();
    for (acquire, invalid) in [
        (
            disordered,
            Invalid::SetOrder {
                lock: lock_name("a"),
            },
        ),
        (large, Invalid::SetTooLarge { locks: 65 }),
        (
            ask("a", "z").also(&["b"]).shared().with_key(key(777)),
            Invalid::SetOfShared,
        ),
        (
            ask("a", "z").also(&["b"]).delays(1, 0).with_key(key(777)),
            Invalid::SetOfShared,
        ),
        (
            ask("a", "z").also(&["b"]).permits(1, 2).with_key(key(777)),
            Invalid::SetOfShared,
        ),
        (
            ask("slow", "x").also(&["a"]).with_key(key(777)),
            Invalid::SetOfShared,
        ),
        (
            ask("a", "z").also(&["gpu"]).with_key(key(777)),
            Invalid::PermitsDiffer {
                asked: None,
                has: Some(2),
            },
        ),
        (
            ask("a", "x")
                .also(&["mine"])
                .under(mine.key)
                .with_key(mine.key),
            Invalid::SetHeld {
                lock: lock_name("mine"),
            },
        ),
    ] {
        let applied = world.applied(Command::Acquire(acquire));
        assert_eq!(
            (applied.outcome, applied.changed),
            (Outcome::Invalid(invalid), false)
        );
    }
    assert_eq!(world.machine.records().collect::<Vec<_>>(), records);
}

#[test]
fn a_repeat_names_the_same_set() {
    let mut world = World::new();
    let set = world.granted(ask("a", "x").also(&["b"]).request(1));
    let again = world.granted(ask("b", "x").also(&["a"]).request(1));
    assert_eq!((again.token, again.key), (set.token, set.key));
    let reused = Outcome::Invalid(Invalid::RequestReused);
    for other in [
        ask("a", "x").request(1),
        ask("a", "x").also(&["c"]).request(1),
        ask("a", "x").also(&["b", "c"]).request(1),
    ] {
        assert_eq!(world.acquire(other), reused);
    }
    // A part that ended is told of.
    world.release(&grant("b", &set));
    let ended = world.acquire(ask("a", "x").also(&["b"]).request(1));
    assert!(matches!(ended, Outcome::Ended { .. }), "{ended:?}");
    // Under its own lease the whole set is a repeat, too.
    let set = world.granted(ask("p", "x").also(&["q"]));
    let again = world.granted(ask("p", "x").also(&["q"]).under(set.key));
    assert_eq!(again.token, set.token);
}

#[test]
fn a_waiting_set_that_is_repeated_keeps_its_place() {
    let mut world = World::new();
    let b = world.granted(ask("b", "y"));
    world.queued(ask("a", "x").also(&["b"]).wait(60_000).request(1));
    world.queued(ask("a", "x").also(&["b"]).wait(60_000).request(1));
    assert_eq!(world.machine.waiters(), 2);
    let other = world.acquire(ask("a", "x").also(&["c"]).wait(60_000).request(1));
    assert_eq!(other, Outcome::Invalid(Invalid::RequestReused));
    world.release(&grant("b", &b));
    assert_eq!(world.handed_over().0, request(1));
}

#[test]
fn what_an_abandoned_set_was_granted_is_released() {
    let mut world = World::new();
    world.granted(ask("a", "x").also(&["b", "c"]).request(1));
    world.apply(Command::Abandon(request(1)));
    assert_eq!((world.machine.locks(), world.machine.leases()), (0, 0));
}

#[test]
fn the_same_client_takes_its_own_locks_over_when_all_others_are_free() {
    let mut world = World::new();
    let own = world.granted(ask("a", "x"));
    let other = world.granted(ask("b", "y"));
    assert!(matches!(
        world.acquire(ask("a", "x").also(&["b"])),
        Outcome::Held(_)
    ));
    assert_eq!(
        world.held_by("a").map(|(token, _)| token),
        Some(own.token.get())
    );
    world.release(&grant("b", &other));
    let set = world.granted(ask("a", "x").also(&["b"]));
    assert_eq!(set.token, token(3));
    assert!(matches!(
        world.renew(&grant("a", &own)),
        Outcome::Ended { .. }
    ));
}

#[test]
fn bounds_count_each_lock_of_a_set() {
    let limits = Limits {
        waiters_per_client: 2,
        waiters_per_lock: 1,
        locks: 3,
        ..Limits::DEFAULT
    };
    let mut world = World::with(limits);
    world.granted(ask("a", "y"));
    let full = world.acquire(ask("a", "x").also(&["b", "c"]).wait(1_000).request(1));
    assert_eq!(full, Outcome::QueueFull(QueueBound::Client { max: 2 }));
    world.queued(ask("a", "x").also(&["b"]).wait(1_000).request(2));
    let full = world.acquire(ask("b", "z").also(&["c"]).wait(1_000).request(3));
    assert_eq!(full, Outcome::QueueFull(QueueBound::Lock { max: 1 }));
    let full = world.acquire(ask("p", "z").also(&["q"]));
    assert_eq!(full, Outcome::TooManyLocks { max: 3 });
    invariants::check(&world.machine).unwrap();
}

#[test]
fn over_a_change_of_leader_a_set_keeps_its_places_for_its_caller() {
    let mut world = World::new();
    let b = world.granted(ask("b", "y").ttl(60_000));
    world.queued(ask("a", "x").also(&["b"]).wait(60_000).request(1));
    world.queued(ask("a", "z").wait(60_000).request(2));
    world.apply(Command::Grace(Away::Led));
    world.release(&grant("b", &b));
    assert!(world.settled().is_empty(), "an orphan is not granted");
    assert_eq!(world.holder("a"), None, "nor overtaken");
    let back = world.granted(ask("a", "x").also(&["b"]).wait(60_000).request(1));
    assert_eq!(tokens(&world, ["a", "b"]), [Some(back.token.get()); 2]);

    // One that does not come back is passed when its window is over.
    world.queued(ask("b", "v").also(&["c"]).wait(60_000).request(3));
    world.queued(ask("c", "w").wait(60_000).request(4));
    world.apply(Command::Grace(Away::Led));
    world.queued(ask("c", "w").wait(60_000).request(4));
    world.pass(ms(2_000));
    world.expire();
    assert!(world.held_by("c").is_some());
    // After a restart nobody waits.
    world.apply(Command::Grace(Away::Restarted));
    assert_eq!(world.machine.waiters(), 0);
    invariants::check(&world.machine).unwrap();
}

#[test]
fn a_snapshot_in_the_middle_of_everything_changes_nothing() {
    let mut world = World::new();
    world.granted(ask("a", "x").also(&["b", "c"]).ttl(60_000));
    world.queued(
        ask("d", "y")
            .also(&["a"])
            .wait(1_000)
            .request(1)
            .metadata("m"),
    );
    world.queued(ask("e", "z").also(&["d", "f"]).wait(60_000).request(2));
    let records: Vec<_> = world.machine.records().collect();
    let copy = Machine::restore(99, records.clone()).unwrap();
    invariants::check(&copy).unwrap();
    assert_eq!(copy.records().collect::<Vec<_>>(), records);
    world.machine = copy;
    world.pass(ms(1_000));
    world.expire();
    // The first set is gone, and the second has its three locks.
    assert_eq!(world.held_by("f").map(|(token, _)| token), Some(2));
    assert_eq!(tokens(&world, ["d", "e"]), [Some(2), Some(2)]);
    assert_eq!(LockMode::default(), LockMode::Exclusive);
}
