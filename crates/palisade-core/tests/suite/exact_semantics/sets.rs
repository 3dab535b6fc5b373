//! Several locks at once: all or none, one token, and how a set waits (M1–M3).

use palisade_core::machine::{Expiry, Record};
use palisade_core::{
    Acquire, Ahead, Away, Change, Command, Ending, Granted, Holder, Invalid, LeaseKey, Limits,
    Machine, Outcome, QueueBound, Timestamp, Under, limits,
};

use crate::world::{
    Ask, TTL_MS, World, ask, ask_all, client_id, grant, key, lock_name, ms, request, token, ttl,
};

fn ab(client: &str) -> Ask {
    ask_all(&["a", "b"], client)
}

/// The token under which each lock is held.
fn tokens(world: &World, locks: &[&str]) -> Vec<Option<u64>> {
    let held = locks.iter().map(|lock| world.held_by(lock));
    held.map(|held| held.map(|(token, _)| token)).collect()
}

/// Requests granted by the last entry, in order, each with its token.
fn served(world: &World) -> Vec<(u8, u64)> {
    let settled = world.settled().into_iter();
    settled
        .filter_map(|(id, outcome)| match outcome {
            Outcome::Granted(granted) => Some((id.as_bytes()[0], granted.token.get())),
            _ => None,
        })
        .collect()
}

fn client_ahead(outcome: &Outcome) -> &str {
    match outcome {
        Outcome::Held(Holder { client, .. }) | Outcome::Behind(Ahead { client, .. }) => client,
        other => panic!("nobody is ahead: {other:?}"),
    }
}

/// A world that goes on from the snapshot of another one.
fn restored(world: &World) -> World {
    let mut copy = World::new();
    copy.machine = Machine::restore(99, world.machine.records()).unwrap();
    copy.now = world.now;
    copy
}

#[test]
fn a_set_is_granted_with_one_token_under_one_lease() {
    let mut world = World::new();
    let set = world.granted(ask_all(&["c", "a", "b"], "one").metadata("batch"));
    assert_eq!(set.token, token(1));
    assert_eq!(tokens(&world, &["a", "b", "c"]), [Some(1); 3]);
    assert_eq!((world.machine.leases(), world.machine.locks()), (1, 3));
    let events = world.events();
    let granted: Vec<&str> = events.iter().map(|event| &*event.lock).collect();
    assert_eq!(granted, ["a", "b", "c"], "an event for each, by name");
    assert!(
        events
            .iter()
            .all(|event| matches!(event.change, Change::Granted { .. }))
    );
    for lock in ["a", "b", "c"] {
        let view = world.machine.view(lock, world.now).unwrap();
        assert_eq!(view.metadata.as_deref(), Some("batch"));
        assert!(matches!(
            world.renew(&grant(lock, &set)),
            Outcome::Renewed(_)
        ));
    }
    assert_eq!(world.granted(ask("d", "one")).token, token(2));
}

#[test]
fn one_lock_that_is_held_denies_the_whole_set() {
    let mut world = World::new();
    world.granted(ask("b", "other"));
    let denied = world.acquire(ask_all(&["a", "b", "c"], "one"));
    assert_eq!(client_ahead(&denied), "other");
    assert_eq!(world.machine.locks(), 1, "nothing else is held");
    assert_eq!(world.machine.next_token(), Some(token(2)));
    // A reader is in the way as well.
    let mut world = World::new();
    world.granted(ask("b", "reader").shared());
    assert_eq!(client_ahead(&world.acquire(ab("one"))), "reader");
}

#[test]
fn nothing_is_held_while_a_set_waits() {
    let mut world = World::new();
    let b = world.granted(ask("b", "other"));
    world.queued(ask_all(&["a", "b", "c"], "one").wait(60_000).request(1));
    assert_eq!(tokens(&world, &["a", "b", "c"]), [None, Some(1), None]);
    assert_eq!(
        world.machine.leases(),
        1,
        "the set has no lease while it waits"
    );
    let view = world.machine.view("a", world.now).unwrap();
    assert_eq!((view.holder, view.waiters), (None, 1));
    world.pass(ms(5));
    world.release(&grant("b", &b));
    assert_eq!(served(&world), [(1, 2)]);
    assert_eq!(tokens(&world, &["a", "b", "c"]), [Some(2); 3]);
    let (_, granted) = world.handed_over();
    assert_eq!((granted.waited, granted.valid_for), (ms(5), ms(5 + TTL_MS)));
    assert_eq!(world.machine.waiters(), 0);
}

#[test]
fn a_later_request_for_a_free_lock_of_a_waiting_set_waits_behind_it() {
    let mut world = World::new();
    let b = world.granted(ask("b", "other"));
    world.queued(ab("set").wait(60_000).request(1));
    assert_eq!(client_ahead(&world.acquire(ask("a", "late"))), "set");
    assert_eq!(
        client_ahead(&world.acquire(ask("a", "late").shared())),
        "set"
    );
    world.queued(ask("a", "late").wait(60_000).request(2));
    world.release(&grant("b", &b));
    assert_eq!(served(&world), [(1, 2)]);
    let (_, set) = world.handed_over();
    world.release(&grant("a", &set));
    assert_eq!(served(&world), [(2, 3)]);
}

#[test]
fn two_sets_in_opposite_orders_do_not_deadlock() {
    let mut world = World::new();
    let held = world.granted(ask_all(&["b", "a"], "first"));
    world.queued(ask_all(&["a", "b"], "second").wait(60_000).request(2));
    world.queued(ask_all(&["b", "a"], "third").wait(60_000).request(3));
    world.release(&grant("b", &held));
    assert_eq!(served(&world), [], "half of it is not enough");
    world.release(&grant("a", &held));
    assert_eq!(served(&world), [(2, 2)]);
    let (_, second) = world.handed_over();
    world.release(&grant("a", &second));
    world.release(&grant("b", &second));
    assert_eq!(served(&world), [(3, 3)]);
}

#[test]
fn sets_that_cross_on_held_locks_are_granted_in_the_order_of_arrival() {
    let mut world = World::new();
    let [a, b] = ["a", "b"].map(|lock| world.granted(ask(lock, "x")));
    // Each waits for a lock that is held; (a, b) came before (b, c).
    world.queued(ab("one").wait(60_000).request(1));
    world.queued(ask_all(&["b", "c"], "two").wait(60_000).request(2));
    world.queued(ask("c", "three").wait(60_000).request(3));
    world.release(&grant("b", &b));
    assert_eq!(served(&world), [], "nobody overtakes the first set");
    world.release(&grant("a", &a));
    assert_eq!(served(&world), [(1, 3)]);
    let (_, one) = world.handed_over();
    world.release(&grant("b", &one));
    assert_eq!(served(&world), [(2, 4)]);
}

#[test]
fn a_set_behind_readers_waits_for_all_of_them_and_readers_behind_it_wait() {
    let mut world = World::new();
    let readers = ["r", "s"].map(|client| world.granted(ask("a", client).shared()));
    world.queued(ab("set").wait(60_000).request(1));
    world.queued(ask("a", "t").shared().wait(60_000).request(2));
    for (reader, served_now) in readers.iter().zip([vec![], vec![(1, 3)]]) {
        let reader = palisade_core::GrantRef {
            token: Some(reader.number()),
            ..grant("a", reader)
        };
        world.release(&reader);
        assert_eq!(served(&world), served_now);
    }
}

#[test]
fn a_part_is_released_early_and_the_rest_stays() {
    let mut world = World::new();
    let set = world.granted(ask_all(&["a", "b", "c"], "one").request(1));
    let released = world.release(&grant("b", &set));
    assert_eq!(
        released,
        Outcome::Released {
            token: set.token,
            delayed: None
        }
    );
    assert_eq!(tokens(&world, &["a", "b", "c"]), [Some(1), None, Some(1)]);
    assert!(matches!(
        world.renew(&grant("a", &set)),
        Outcome::Renewed(_)
    ));
    assert_eq!(world.granted(ask("b", "other")).token, token(2));
    // A repeat is answered with the lock that is gone.
    let ended = Outcome::Ended {
        token: set.token,
        how: Ending::Released,
    };
    let again = ask_all(&["a", "b", "c"], "one").request(1);
    assert_eq!(world.acquire(again), ended);
    world.pass(ms(TTL_MS));
    world.expire();
    assert_eq!(tokens(&world, &["a", "c"]), [None, None], "one lease");
}

#[test]
fn a_repeat_gets_the_grant_and_another_set_is_refused() {
    let mut world = World::new();
    let set = world.granted(ab("one").request(1));
    let again = world.granted(ab("one").request(1));
    assert_eq!((again.token, again.key), (set.token, set.key));
    let reused = Outcome::Invalid(Invalid::RequestReused);
    for other in [
        ask("a", "one"),
        ask_all(&["a", "c"], "one"),
        ask_all(&["b", "c"], "one"),
        ab("two"),
        ab("one").shared(),
    ] {
        assert_eq!(world.acquire(other.request(1)), reused);
    }
    // While it waits the whole set is compared.
    world.queued(ab("two").wait(60_000).request(2));
    world.queued(ab("two").wait(60_000).request(2));
    for other in [ask("a", "two"), ask_all(&["a", "b", "c"], "two")] {
        assert_eq!(world.acquire(other.wait(60_000).request(2)), reused);
    }
    // And a single lock is no set.
    world.granted(ask("d", "one").request(3));
    assert_ne!(
        world.acquire(ask_all(&["d", "e"], "one").request(3)),
        Outcome::Queued
    );
    assert_eq!(world.held_by("e"), None);
}

#[test]
fn the_lease_that_holds_a_set_gets_it_again_and_nothing_between() {
    let mut world = World::new();
    let set = world.granted(ab("one"));
    assert_eq!(world.granted(ab("one").under(set.key)).token, set.token);
    let partly = |lock| {
        Outcome::Invalid(Invalid::SetPartlyHeld {
            lock: lock_name(lock),
        })
    };
    let more = ask_all(&["a", "c"], "one").under(set.key);
    assert_eq!(world.acquire(more), partly("a"));
    let c = world.granted(ask("c", "one").under(set.key));
    assert_eq!(c.token, token(2));
    let all = ask_all(&["b", "c"], "one").under(set.key);
    assert_eq!(world.acquire(all), partly("b"), "two tokens are no set");
}

#[test]
fn a_set_takes_its_clients_former_grants_over() {
    let mut world = World::new();
    let a = world.granted(ask("a", "one"));
    let old = world.granted(ask_all(&["b", "c"], "one"));
    let new = world.granted(ask_all(&["a", "b", "d"], "one"));
    assert_eq!(new.token, token(3));
    assert_eq!(
        tokens(&world, &["a", "b", "c", "d"]),
        [Some(3), Some(3), Some(2), Some(3)]
    );
    let ended: Vec<String> = world
        .events()
        .iter()
        .map(|event| {
            let how = match event.change {
                Change::Ended { how, .. } => format!("{how:?}"),
                _ => "Granted".into(),
            };
            format!("{} {how}", event.lock)
        })
        .collect();
    let expected = [
        "a Superseded",
        "a Granted",
        "b Superseded",
        "b Granted",
        "d Granted",
    ];
    assert_eq!(ended, expected);
    for (lock, old) in [("a", &a), ("b", &old)] {
        let late = world.renew(&grant(lock, old));
        let how = Ending::Superseded;
        assert_eq!(
            late,
            Outcome::Ended {
                token: old.token,
                how
            }
        );
    }
}

#[test]
fn a_set_does_not_take_over_what_has_delays() {
    let mut world = World::new();
    world.granted(ask("b", "one").delays(1_000, 0));
    let delayed = Invalid::SetDelayed {
        lock: lock_name("b"),
    };
    assert_eq!(world.acquire(ab("one")), Outcome::Invalid(delayed));
    assert_eq!(tokens(&world, &["a", "b"]), [None, Some(1)]);
}

#[test]
fn a_time_out_speaks_of_a_lock_that_blocks() {
    let mut world = World::new();
    world.granted(ask("b", "other").ttl(60_000));
    world.queued(ab("set").wait(500).request(1));
    world.queued(ask("a", "late").wait(60_000).request(2));
    world.pass(ms(500));
    world.expire();
    let settled = world.settled();
    assert_eq!(
        settled[0].0,
        request(1),
        "the set first, then what waited for it"
    );
    assert_eq!(client_ahead(&settled[0].1), "other");
    assert_eq!(served(&world), [(2, 2)]);
    assert_eq!(world.machine.waiters(), 0);
}

#[test]
fn all_parts_leave_however_a_set_goes() {
    let leave: [fn(&mut World); 4] = [
        |world| drop(world.apply(Command::Withdraw(request(1)))),
        |world| drop(world.apply(Command::Abandon(request(1)))),
        |world| {
            world.pass(ms(500));
            world.expire();
        },
        |world| {
            world.apply(Command::Grace(Away::Led));
            world.queued(ask("a", "late").wait(60_000).request(2));
            world.queued(ask("c", "late").wait(60_000).request(3));
            world.pass(limits::ORPHAN_WINDOW);
            world.expire();
        },
    ];
    for leave in leave {
        let mut world = World::new();
        world.granted(ask("b", "other").ttl(60_000));
        world.queued(ask_all(&["a", "b", "c"], "set").wait(500).request(1));
        world.queued(ask("a", "late").wait(60_000).request(2));
        world.queued(ask("c", "late").wait(60_000).request(3));
        leave(&mut world);
        assert_eq!(served(&world), [(2, 2), (3, 3)]);
        assert_eq!(world.machine.waiters(), 0);
        assert_eq!(world.machine.view("b", world.now).unwrap().waiters, 0);
    }
}

#[test]
fn an_abandoned_set_gives_all_back_even_if_a_part_is_gone() {
    for gone in [None, Some("a"), Some("b")] {
        let mut world = World::new();
        let set = world.granted(ask_all(&["a", "b", "c"], "one").request(1));
        // The lease goes on with other locks.
        world.granted(ask("d", "one").under(set.key));
        if let Some(gone) = gone {
            world.release(&grant(gone, &set));
        }
        world.apply(Command::Abandon(request(1)));
        assert_eq!(
            tokens(&world, &["a", "b", "c", "d"]),
            [None, None, None, Some(2)],
            "{gone:?}"
        );
        let again = world.acquire(ask_all(&["a", "b", "c"], "one").request(1));
        assert_eq!(again, Outcome::Abandoned);
    }
}

/// Only of a set is the first grant looked for among the newest ones of its lease.
#[test]
fn an_abandoned_grant_is_given_back_however_many_its_lease_got_since() {
    let mut world = World::new();
    let first = world.granted(ask("x", "one").request(1));
    for lock in 0..300 {
        world.granted(ask(&format!("lock/{lock}"), "one").under(first.key));
    }
    world.apply(Command::Abandon(request(1)));
    assert_eq!(world.held_by("x"), None);
}

#[test]
fn a_set_whose_lease_is_gone_leaves_all_its_queues() {
    let mut world = World::new();
    let lease = world.granted(ask("x", "one").ttl(1_000));
    let b = world.granted(ask("b", "other"));
    let set = ab("one").under(lease.key).wait(60_000).request(1);
    world.queued(set);
    world.queued(ask("a", "late").wait(60_000).request(2));
    world.pass(ms(1_000));
    world.expire();
    let how = Ending::Expired;
    let over = Outcome::Ended {
        token: lease.token,
        how,
    };
    assert_eq!(world.settled()[0], (request(1), over));
    assert_eq!(served(&world), [(2, 3)]);
    world.release(&grant("b", &b));
    assert_eq!(world.machine.locks(), 1);
}

#[test]
fn a_set_counts_once_for_each_of_its_locks() {
    let mut world = World::with(Limits {
        waiters_per_client: 2,
        waiters_per_lock: 1,
        locks: 4,
        ..Limits::DEFAULT
    });
    world.granted(ask("a", "other"));
    let three = ask_all(&["a", "b", "c"], "set").wait(60_000).request(1);
    let full = Outcome::QueueFull(QueueBound::Client { max: 2 });
    assert_eq!(world.acquire(three), full);
    world.queued(ab("set").wait(60_000).request(2));
    let full = Outcome::QueueFull(QueueBound::Lock { max: 1 });
    assert_eq!(
        world.acquire(ask_all(&["b", "c"], "x").wait(60_000).request(3)),
        full
    );
    // Two locks have records; three more are too many, and none is made.
    let many = Outcome::TooManyLocks { max: 4 };
    assert_eq!(world.acquire(ask_all(&["d", "e", "f"], "x")), many);
    assert_eq!(world.machine.locks(), 2);
    world.granted(ask_all(&["d", "e"], "x"));
}

#[test]
fn the_bound_of_locks_counts_what_a_set_adds() {
    let limited = |locks| Limits {
        locks,
        ..Limits::DEFAULT
    };
    let mut world = World::with(limited(4));
    world.granted(ask("x", "other"));
    let four = ["a", "b", "c", "d"];
    let many = Outcome::TooManyLocks { max: 4 };
    assert_eq!(world.acquire(ask_all(&four, "one")), many);
    world.granted(ask_all(&four[1..], "one"));
    // A set that adds no lock is granted even after the bound was lowered.
    world.apply(Command::Configure(limited(1)));
    world.granted(ask_all(&four[1..], "one"));
}

/// However a set leaves, it counts as one thing that the entry ended.
#[test]
fn an_entry_ends_a_bounded_number_of_orphaned_sets() {
    for (most, left) in [(1, 5), (2, 2), (3, 2), (4, 0)] {
        let mut world = World::new();
        let held = world.granted(ask_all(&["a", "b", "c", "d"], "other").ttl(60_000));
        world.queued(ask_all(&["c", "d"], "one").wait(500).request(1));
        world.queued(ask("a", "two").wait(600).request(2));
        world.queued(ab("three").wait(700).request(3));
        world.queued(ask_all(&["c", "d"], "four").wait(800).request(4));
        world.apply(Command::Grace(Away::Led));
        // The lock is kept for a request that is over at the same time as the set behind it.
        world.release(&grant("a", &held));
        world.machine.set_expiry(Expiry {
            alone: most,
            beside: 1,
        });
        world.pass(ms(800));
        world.expire();
        assert_eq!(world.machine.waiters(), left, "{most}");
    }
}

#[test]
fn what_is_no_set_is_refused_by_name() {
    let mut world = World::new();
    world.granted(ask("s", "holder").permits(1, 2));
    let names = |names: &[&str]| names.iter().map(|name| lock_name(name)).collect::<Vec<_>>();
    let under = Under::New {
        key: key(1),
        ttl: ttl(TTL_MS),
    };
    let of_all = |names| Acquire::of_all(names, client_id("one"), under, None);
    assert_eq!(
        of_all(names(&["b", "a", "b"])),
        Err(Invalid::SetTwice {
            lock: lock_name("b")
        })
    );
    assert_eq!(of_all(Vec::new()), Err(Invalid::SetSize { given: 0 }));
    let many = |count: usize| {
        (0..count)
            .map(|n| lock_name(&format!("lock/{n}")))
            .collect::<Vec<_>>()
    };
    let given = limits::SET_LOCKS + 1;
    assert_eq!(of_all(many(given)), Err(Invalid::SetSize { given }));
    assert!(of_all(many(limits::SET_LOCKS)).is_ok());
    let said = Invalid::SetSize { given }.to_string();
    assert!(said.contains("65") && said.contains("64"), "{said}");
    // The core trusts neither the log nor an interface.
    let mut unordered = of_all(names(&["a", "b"])).unwrap();
    let first = std::mem::replace(&mut unordered.lock, unordered.also[0].clone());
    unordered.also = [first].into_iter().collect();
    let order = Invalid::SetOrder {
        lock: lock_name("a"),
    };
    assert_eq!(
        world.apply(Command::Acquire(unordered)),
        Outcome::Invalid(order)
    );
    let mode = Outcome::Invalid(Invalid::SetMode);
    assert_eq!(world.acquire(ab("one").shared()), mode);
    assert_eq!(world.acquire(ab("one").permits(1, 2)), mode);
    assert_eq!(world.acquire(ab("one").delays(1, 0)), mode);
    let (asked, has) = (None, Some(2));
    assert_eq!(
        world.acquire(ask_all(&["a", "s"], "one")),
        Outcome::Invalid(Invalid::PermitsDiffer { asked, has })
    );
    assert_eq!(world.machine.locks(), 1);
}

#[test]
fn a_machine_restored_in_the_middle_of_a_wait_goes_on_alike() {
    let mut world = World::new();
    let b = world.granted(ask("b", "other"));
    let set = world.granted(ask_all(&["x", "y"], "holder"));
    world.queued(
        ask_all(&["a", "b", "c"], "set")
            .wait(60_000)
            .request(1)
            .metadata("text"),
    );
    world.queued(ask_all(&["a", "x"], "next").wait(60_000).request(2));
    world.queued(ask("c", "late").wait(60_000).request(3));
    let mut copy = restored(&world);
    assert!(copy.machine.records().eq(world.machine.records()));
    let waits = |record: &Record| matches!(record, Record::Waiter(_));
    assert_eq!(world.machine.records().filter(waits).count(), 6);
    for world in [&mut world, &mut copy] {
        world.release(&grant("b", &b));
        assert_eq!(served(world), [(1, 3)]);
        let (_, first) = world.handed_over();
        let view = world.machine.view("c", world.now).unwrap();
        assert_eq!(view.metadata.as_deref(), Some("text"));
        world.apply(Command::Abandon(request(1)));
        assert_eq!(served(world), [(3, 4)], "a is kept for the next set");
        assert_eq!(tokens(world, &["a", "b", "c"]), [None, None, Some(4)]);
        world.release(&grant("x", &set));
        assert_eq!(served(world), [(2, 5)]);
        assert!(matches!(
            world.renew(&grant("c", &first)),
            Outcome::Ended { .. }
        ));
    }
    assert!(copy.machine.records().eq(world.machine.records()));
}

#[test]
fn after_a_change_of_leader_a_set_keeps_all_its_places_for_its_window() {
    let wish = || ab("set").wait(60_000).request(1);
    let mut world = World::new();
    let b = world.granted(ask("b", "other"));
    world.queued(wish());
    world.apply(Command::Grace(Away::Led));
    world.release(&grant("b", &b));
    assert_eq!(served(&world), [], "its caller is not there");
    assert_eq!(client_ahead(&world.acquire(ask("a", "late"))), "set");
    assert_eq!(client_ahead(&world.acquire(ask("b", "late"))), "set");
    let set: Granted = world.granted(wish());
    assert_eq!(tokens(&world, &["a", "b"]), [Some(2), Some(2)]);
    assert_eq!(set.waited, ms(0));
    assert_eq!(world.settled(), [], "the answer is the caller's alone");
    // For another set, no caller comes back.
    world.queued(ab("lost").wait(60_000).request(2));
    world.apply(Command::Grace(Away::Led));
    world.apply(Command::Revoke {
        lock: lock_name("a"),
        token: set.token,
        reason: "stuck".into(),
    });
    world.pass(limits::ORPHAN_WINDOW);
    world.granted(ask("a", "late"));
    assert_eq!(world.machine.waiters(), 0);
}

#[test]
fn a_restart_drops_the_sets_that_wait_and_what_is_kept_for_them() {
    let mut world = World::new();
    world.granted(ask("b", "other"));
    world.queued(ask_all(&["a", "b", "c"], "set").wait(60_000).request(1));
    world.apply(Command::Grace(Away::Restarted));
    assert_eq!((world.machine.locks(), world.machine.waiters()), (1, 0));
}

/// Each set is first in one queue and second in another. All end at one instant, and none by recursion.
#[test]
fn a_chain_of_sets_that_end_together_takes_no_stack() {
    const SETS: u32 = 20_000;
    let mut machine = Machine::new(1);
    let mut effects = Vec::new();
    let mut apply = |at, command| {
        effects.clear();
        let entry = palisade_core::Entry {
            at,
            wall: crate::world::wall(at),
            by: palisade_core::Principal::ANONYMOUS,
            command,
        };
        (machine.apply(entry, &mut effects).outcome, effects.len())
    };
    let name = |n: u32| lock_name(&format!("lock/{n:06}"));
    let id = |n: u32| palisade_core::RequestId::from_bytes(u128::from(n).to_le_bytes());
    let wish = |n: u32, wait| {
        let under = Under::New {
            key: LeaseKey::from_bytes(u128::from(n + 1).to_le_bytes()),
            ttl: ttl(TTL_MS),
        };
        let client = client_id(&format!("client/{n}"));
        Command::Acquire(Acquire {
            wait: Some(ms(wait)),
            ..Acquire::of_all(vec![name(n), name(n + 1)], client, under, Some(id(n))).unwrap()
        })
    };
    let under = Under::New {
        key: LeaseKey::from_bytes([255; 16]),
        ttl: ttl(60_000),
    };
    let first = Acquire::new(name(0), client_id("first"), under, None);
    apply(Timestamp::ZERO, Command::Acquire(first));
    for n in 0..SETS {
        // The first one ends a moment before the others, so that they end in line, one after the other.
        let wait = if n == 0 { 1_000 } else { 2_000 };
        assert_eq!(apply(Timestamp::ZERO, wish(n, wait)).0, Outcome::Queued);
    }
    // Nobody looked at the clock for a while: when the first one is over, all the others are too.
    let (_, settled) = apply(Timestamp::from_millis(2_001), Command::Withdraw(id(0)));
    assert_eq!(settled, SETS as usize, "each has its answer");
    assert_eq!((machine.waiters(), machine.locks()), (0, 1));
}
