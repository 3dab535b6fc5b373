//! Semaphores: permits as slots, all or none, in order of arrival, and how their number changes (P1–P6).

use palisade_core::machine::Expiry;
use palisade_core::{Away, Command, Ending, Granted, Invalid, Outcome, Permits, Slots, slot_key};

use crate::world::{Ask, TTL_MS, World, ask, grant, lock_name, ms, request, token};

fn permits(client: &str, wanted: u32, of: u32) -> Ask {
    ask("x", client).permits(wanted, of)
}

fn slots(granted: &Granted) -> Vec<u32> {
    granted.slots.iter().collect()
}

fn resize(world: &mut World, permits: u32) -> Outcome {
    world.apply(Command::Resize {
        lock: lock_name("x"),
        permits,
    })
}

/// Requests granted by the last entry, in order, each with its slots.
fn served(world: &World) -> Vec<(u8, Vec<u32>)> {
    let settled = world.settled().into_iter();
    settled
        .filter_map(|(id, outcome)| match outcome {
            Outcome::Granted(granted) => Some((id.as_bytes()[0], slots(&granted))),
            _ => None,
        })
        .collect()
}

#[test]
fn each_holder_has_slots_and_a_token_of_its_own() {
    let mut world = World::new();
    let first = world.granted(permits("a", 1, 3));
    let second = world.granted(permits("b", 2, 3));
    assert_eq!((first.token, second.token), (token(1), token(2)));
    assert_eq!((slots(&first), slots(&second)), (vec![1], vec![2, 3]));
    assert_eq!((first.shared, second.shared), (None, None));
    assert!(matches!(
        world.acquire(permits("c", 1, 3)),
        Outcome::Held(_)
    ));
    // The next holder of a slot has a higher token than the one before it.
    world.release(&grant("x", &first));
    let third = world.granted(permits("c", 1, 3));
    assert_eq!((third.token, slots(&third)), (token(3), vec![1]));
}

#[test]
fn a_request_gets_all_its_permits_or_none() {
    let mut world = World::new();
    let one = world.granted(permits("a", 1, 2));
    assert!(matches!(
        world.acquire(permits("b", 2, 2)),
        Outcome::Held(_)
    ));
    world.queued(permits("b", 2, 2).wait(60_000).request(1));
    world.release(&grant("x", &one));
    assert_eq!(served(&world), [(1, vec![1, 2])]);
    assert_eq!(
        world.machine.next_token(),
        Some(token(3)),
        "one token for both"
    );
}

#[test]
fn a_large_request_is_not_overtaken_by_small_ones() {
    let mut world = World::new();
    let [one, two, _] = ["a", "b", "c"].map(|client| world.granted(permits(client, 1, 3)));
    world.queued(permits("l", 2, 3).wait(60_000).request(1));
    world.queued(permits("s", 1, 3).wait(60_000).request(2));
    world.release(&grant("x", &one));
    assert_eq!(
        served(&world),
        [],
        "a slot is free, and the large request is first"
    );
    assert!(matches!(
        world.acquire(permits("t", 1, 3)),
        Outcome::Behind(_)
    ));
    world.release(&grant("x", &two));
    assert_eq!(served(&world), [(1, vec![1, 2])]);
    // One that gives up makes room for those behind it.
    world.queued(permits("l", 3, 3).wait(500).request(3));
    world.apply(Command::Withdraw(request(2)));
    assert_eq!(served(&world), []);
}

#[test]
fn small_requests_go_on_as_soon_as_the_large_one_before_them_is_gone() {
    let leave: [fn(&mut World); 3] = [
        |world| drop(world.apply(Command::Withdraw(request(1)))),
        |world| drop(world.apply(Command::Abandon(request(1)))),
        |world| {
            world.pass(ms(500));
            world.expire();
        },
    ];
    for leave in leave {
        let mut world = World::new();
        world.granted(permits("a", 1, 2));
        world.queued(permits("l", 2, 2).wait(500).request(1));
        world.queued(permits("s", 1, 2).wait(60_000).request(2));
        leave(&mut world);
        assert_eq!(served(&world), [(2, vec![2])]);
    }
}

#[test]
fn permits_are_over_with_their_lease_though_no_timer_has_seen_it() {
    let mut world = World::new();
    world.machine.set_expiry(Expiry {
        alone: 1,
        beside: 1,
    });
    world.granted(ask("w", "a"));
    world.granted(permits("a", 2, 2));
    world.pass(ms(TTL_MS));
    // The only grant that a timer ends in this entry is the other lock's.
    let next = world.granted(permits("b", 2, 2));
    assert_eq!((next.token, slots(&next)), (token(3), vec![1, 2]));
}

#[test]
fn a_crashed_client_leaks_no_permit() {
    let mut world = World::new();
    for client in ["a", "b"] {
        world.granted(permits(client, 1, 3));
    }
    let kept = world.granted(permits("c", 1, 3).ttl(2 * TTL_MS));
    world.pass(ms(TTL_MS));
    // Nobody's timer has seen it: a request that comes does.
    let next = world.granted(permits("d", 2, 3));
    assert_eq!(slots(&next), [1, 2]);
    assert_eq!((world.machine.locks(), world.machine.readers()), (1, 2));
    assert!(matches!(
        world.renew(&grant("x", &kept)),
        Outcome::Renewed(_)
    ));
    world.pass(ms(10 * TTL_MS));
    world.expire();
    assert_eq!((world.machine.locks(), world.machine.readers()), (0, 0));
}

#[test]
fn another_number_of_permits_is_refused_and_both_are_named() {
    let mut world = World::new();
    world.granted(permits("a", 1, 3));
    let before = world.machine.next_token();
    let differ = |asked, has| Outcome::Invalid(Invalid::PermitsDiffer { asked, has });
    let answers = [
        world.acquire(permits("b", 1, 2)),
        world.acquire(ask("x", "b")),
        world.acquire(ask("x", "b").shared()),
    ];
    assert_eq!(
        answers,
        [
            differ(Some(2), Some(3)),
            differ(None, Some(3)),
            differ(None, Some(3))
        ]
    );
    let Outcome::Invalid(refused) = &answers[0] else {
        panic!("not refused");
    };
    assert!(
        refused
            .to_string()
            .contains("says 2 permits, and the lock has 3"),
        "{refused}"
    );
    assert_eq!(world.machine.next_token(), before);
    // Permits of a lock with a writer, or with readers.
    world.granted(ask("y", "a"));
    world.granted(ask("z", "a").shared());
    for lock in ["y", "z"] {
        let asked = world.acquire(ask(lock, "a").permits(1, 2));
        assert_eq!(asked, differ(Some(2), None));
    }
}

#[test]
fn a_number_of_permits_has_a_range() {
    for (wanted, of) in [(0, 0), (0, 3), (4, 3), (1, 65), (65, 65)] {
        assert_eq!(
            Permits::new(wanted, of),
            Err(Invalid::Permits { wanted, of })
        );
    }
    assert!(Permits::new(64, 64).is_ok());
    // Every slot's name must be one.
    let long = "n".repeat(252);
    let mut world = World::new();
    assert!(matches!(
        world.acquire(ask(&long, "a").permits(1, 2)),
        Outcome::Granted(_)
    ));
    let too_long = world.acquire(ask(&format!("{long}n"), "a").permits(1, 2));
    assert!(matches!(
        too_long,
        Outcome::Invalid(Invalid::SemaphoreName { bytes: 253 })
    ));
    assert_eq!(&*slot_key(&lock_name("db"), 12).unwrap(), "db~12");
    // A lock's name may end like a slot: no two slots have one key for that.
    let names = ["db", "db~1", "db~1~1", "db~", "db~11"].map(lock_name);
    let keys = names
        .iter()
        .flat_map(|lock| (1..=64).map(|slot| slot_key(lock, slot).unwrap()));
    let keys: std::collections::BTreeSet<_> = keys.collect();
    assert_eq!(keys.len(), 5 * 64);
}

#[test]
fn a_lease_asks_again_for_what_it_has_and_for_nothing_else() {
    let mut world = World::new();
    let first = world.granted(permits("a", 2, 5));
    let again = world.granted(permits("a", 2, 5).under(first.key));
    assert_eq!((again.token, again.slots), (first.token, first.slots));
    assert_eq!(
        world.acquire(permits("a", 1, 5).under(first.key)),
        Outcome::Invalid(Invalid::PermitsHeld { held: 2, asked: 1 })
    );
    // The same client under another lease is another holder.
    assert_eq!(slots(&world.granted(permits("a", 1, 5))), [3]);
}

#[test]
fn a_repeat_of_a_request_asks_for_as_many() {
    let mut world = World::new();
    let first = world.granted(permits("a", 2, 5).request(1));
    assert_eq!(
        world.granted(permits("a", 2, 5).request(1)).token,
        first.token
    );
    let reused = Outcome::Invalid(Invalid::RequestReused);
    assert_eq!(world.acquire(permits("a", 1, 5).request(1)), reused);
    assert_eq!(world.acquire(ask("x", "a").request(1)), reused);
}

#[test]
fn an_operator_makes_a_semaphore_larger_and_those_who_wait_come_in() {
    let mut world = World::new();
    world.granted(permits("a", 1, 1));
    world.queued(permits("b", 1, 1).wait(60_000).request(1));
    assert_eq!(resize(&mut world, 3), Outcome::Done);
    assert_eq!(served(&world), [(1, vec![2])]);
    assert_eq!(slots(&world.granted(permits("c", 1, 3))), [3]);
    assert!(matches!(
        world.acquire(permits("d", 1, 1)),
        Outcome::Invalid(Invalid::PermitsDiffer { .. })
    ));
}

#[test]
fn a_semaphore_gets_smaller_as_its_slots_come_free() {
    let mut world = World::new();
    let holders = ["a", "b", "c"].map(|client| world.granted(permits(client, 1, 3)));
    world.queued(permits("l", 2, 3).wait(60_000).request(1));
    world.queued(permits("s", 1, 3).wait(60_000).request(2));
    assert_eq!(resize(&mut world, 1), Outcome::Done);
    let (wanted, of) = (2, 1);
    assert_eq!(
        world.settled(),
        [(
            request(1),
            Outcome::Invalid(Invalid::Permits { wanted, of })
        )]
    );
    // Slots 2 and 3 are given to nobody any more, and their holders keep them.
    world.release(&grant("x", &holders[2]));
    assert_eq!(served(&world), []);
    assert!(matches!(
        world.renew(&grant("x", &holders[1])),
        Outcome::Renewed(_)
    ));
    // One is held still, as many as there are now, although slot 1 is free.
    world.release(&grant("x", &holders[0]));
    assert_eq!(served(&world), []);
    assert!(matches!(
        world.acquire(permits("n", 1, 1)),
        Outcome::Behind(_)
    ));
    world.release(&grant("x", &holders[1]));
    assert_eq!(served(&world), [(2, vec![1])]);
}

#[test]
fn nobody_is_granted_a_permit_while_as_many_are_held_as_there_are_now() {
    let mut world = World::new();
    let holders = ["a", "b", "c"].map(|client| world.granted(permits(client, 1, 4)));
    world.release(&grant("x", &holders[0]));
    world.release(&grant("x", &holders[1]));
    // Slot 3 is held, so one of two permits is left.
    assert_eq!(resize(&mut world, 2), Outcome::Done);
    assert!(matches!(
        world.acquire(permits("d", 2, 2)),
        Outcome::Held(_)
    ));
    assert_eq!(slots(&world.granted(permits("e", 1, 2))), [1]);
    assert!(matches!(
        world.acquire(permits("f", 1, 2)),
        Outcome::Held(_)
    ));
    world.release(&grant("x", &holders[2]));
    assert_eq!(slots(&world.granted(permits("f", 1, 2))), [2]);
}

/// Nobody holds it, and it is kept for a request that has no caller back yet.
#[test]
fn a_semaphore_that_gets_smaller_is_handed_on_to_nobody_who_wants_more() {
    let mut world = World::new();
    let holder = world.granted(permits("a", 3, 3));
    world.queued(permits("b", 3, 3).wait(60_000).request(1));
    world.apply(Command::Grace(Away::Led));
    world.queued(permits("c", 3, 3).wait(60_000).request(2));
    world.queued(permits("d", 1, 3).wait(60_000).request(3));
    world.release(&grant("x", &holder));
    assert_eq!(served(&world), []);
    assert_eq!(resize(&mut world, 1), Outcome::Done);
    let refused = Outcome::Invalid(Invalid::Permits { wanted: 3, of: 1 });
    assert!(world.settled().contains(&(request(2), refused)));
    assert_eq!(served(&world), [(3, vec![1])]);
}

#[test]
fn only_a_semaphore_has_a_number_of_permits_to_change() {
    let mut world = World::new();
    assert_eq!(resize(&mut world, 3), Outcome::NotHeld);
    world.granted(ask("x", "a"));
    let differ = Invalid::PermitsDiffer {
        asked: Some(3),
        has: None,
    };
    assert_eq!(resize(&mut world, 3), Outcome::Invalid(differ));
    for of in [0, 65] {
        let wrong = Invalid::Permits { wanted: 1, of };
        assert_eq!(resize(&mut world, of), Outcome::Invalid(wrong));
    }
}

#[test]
fn an_operator_takes_one_holders_permits() {
    let mut world = World::new();
    let [first, second] = ["a", "b"].map(|client| world.granted(permits(client, 1, 2)));
    let revoke = |world: &mut World, number| {
        world.apply(Command::Revoke {
            lock: lock_name("x"),
            token: token(number),
            reason: "stuck".into(),
        })
    };
    let highest = second.token;
    assert_eq!(
        revoke(&mut world, 9),
        Outcome::Stale {
            named: token(9),
            highest
        }
    );
    let taken = first.token;
    assert_eq!(revoke(&mut world, 1), Outcome::Revoked { token: taken });
    assert_eq!(
        world.renew(&grant("x", &first)),
        Outcome::Ended {
            token: taken,
            how: Ending::Revoked
        }
    );
    assert_eq!(slots(&world.granted(permits("c", 1, 2))), [1]);
}

#[test]
fn a_new_leader_keeps_the_number_and_the_places() {
    let mut world = World::new();
    let holder = world.granted(permits("a", 2, 2));
    world.queued(permits("b", 1, 2).wait(60_000).request(1));
    world.apply(Command::Grace(Away::Led));
    world.release(&grant("x", &holder));
    // Both slots are free, and kept for the request whose caller is not back yet.
    let view = world.machine.view("x", world.now).unwrap();
    assert_eq!((view.holder, view.permits), (None, Some(2)));
    assert!(matches!(
        world.acquire(permits("c", 1, 2)),
        Outcome::Behind(_)
    ));
    assert!(matches!(
        world.acquire(permits("c", 1, 3)),
        Outcome::Invalid(Invalid::PermitsDiffer { .. })
    ));
    let back = world.granted(permits("b", 1, 2).wait(60_000).request(1));
    assert_eq!(slots(&back), [1]);
}

#[test]
fn a_view_shows_holders_their_slots_and_the_number() {
    let mut world = World::new();
    world.granted(permits("a", 2, 3));
    world.granted(permits("b", 1, 3));
    let view = world.machine.view("x", world.now).unwrap();
    assert_eq!((view.permits, view.reader_count), (Some(3), 2));
    let holders = view
        .readers
        .iter()
        .map(|held| (held.holder.token, held.slots));
    assert_eq!(
        holders.collect::<Vec<_>>(),
        [
            (token(1), Slots::from_bits(0b011)),
            (token(2), Slots::from_bits(0b100))
        ]
    );
}
