//! Readers and writers: phases, their tokens, strict order of arrival, and the way from writer to reader (S1–S7, S10).

use palisade_core::machine::Expiry;
use palisade_core::{
    Away, Change, Command, Ending, GrantId, GrantRef, Granted, Invalid, Limits, LockMode, Machine,
    Outcome,
};

use crate::world::{
    Ask, TTL_MS, World, ask, ask_all, client_id, key, lock_name, ms, ns, request, token, tokenless,
};

fn read(client: &str) -> Ask {
    ask("x", client).shared()
}

fn write(client: &str) -> Ask {
    ask("x", client)
}

/// Names a grant by its number.
fn grant(granted: &Granted) -> GrantRef {
    GrantRef {
        lock: lock_name("x"),
        key: granted.key,
        token: Some(granted.number()),
    }
}

/// Token and number of a shared grant.
fn numbers(granted: &Granted) -> (u64, u64) {
    let Some(GrantId(number)) = granted.shared else {
        panic!("not shared: {granted:?}");
    };
    (granted.token.get(), number.get())
}

/// Requests granted by the last entry, in order.
fn served(world: &World) -> Vec<u8> {
    let settled = world.settled().into_iter();
    let granted = settled.filter(|(_, outcome)| matches!(outcome, Outcome::Granted(_)));
    granted.map(|(id, _)| id.as_bytes()[0]).collect()
}

#[test]
fn readers_of_one_phase_have_one_token_and_numbers_of_their_own() {
    let mut world = World::new();
    let first = world.granted(read("a"));
    let other = world.granted(ask("y", "b"));
    let second = world.granted(read("b"));
    let third = world.granted(read("b"));
    assert_eq!(
        [&first, &second, &third].map(numbers),
        [(1, 1), (1, 3), (1, 4)]
    );
    assert_eq!((other.token, other.shared), (token(2), None));
    // The phase goes on although its first reader, with the phase's number, is gone.
    world.release(&grant(&first));
    assert_eq!(numbers(&world.granted(read("c"))), (1, 5));
    assert_eq!(world.held_by("x"), Some((1, "b".into())));
}

#[test]
fn a_phase_ends_with_its_last_reader_and_tokens_rise_between_phases() {
    let mut world = World::new();
    let readers = ["a", "b"].map(|client| world.granted(read(client)));
    for reader in &readers {
        assert!(matches!(world.acquire(write("w")), Outcome::Held(_)));
        world.release(&grant(reader));
    }
    let writer = world.granted(write("w"));
    assert_eq!(writer.token, token(3));
    world.release(&grant(&writer));
    assert_eq!(numbers(&world.granted(read("a"))), (4, 4));
}

#[test]
fn a_reader_waits_behind_a_waiting_writer_and_a_try_is_told_who_is_ahead() {
    let mut world = World::new();
    let reader = world.granted(read("a"));
    world.queued(write("w").wait(60_000).request(1));
    world.queued(read("b").wait(60_000).request(2));
    let told = |outcome| match outcome {
        Outcome::Held(holder) => (holder.client, Some(holder.token)),
        Outcome::Behind(ahead) => (ahead.client, None),
        other => panic!("{other:?}"),
    };
    let phase = Some(token(1));
    assert_eq!(told(world.acquire(read("c"))), (client_id("w"), None));
    assert_eq!(told(world.acquire(write("c"))), (client_id("a"), phase));
    world.release(&grant(&reader));
    assert_eq!(served(&world), [1]);
}

#[test]
fn one_release_admits_the_whole_run_of_readers_at_the_head() {
    let mut world = World::new();
    let writer = world.granted(write("w"));
    for n in [1, 2, 3, 5] {
        world.queued(read(&format!("r{n}")).wait(60_000).request(n));
        if n == 3 {
            world.queued(write("w4").wait(60_000).request(4));
        }
    }
    world.release(&grant(&writer));
    assert_eq!(
        served(&world),
        [1, 2, 3],
        "and not the one behind the writer"
    );
    let tokens = world
        .settled()
        .into_iter()
        .map(|(_, outcome)| match outcome {
            Outcome::Granted(granted) => numbers(&granted),
            other => panic!("{other:?}"),
        });
    assert_eq!(tokens.collect::<Vec<_>>(), [(2, 2), (2, 3), (2, 4)]);
}

#[test]
fn readers_get_in_as_soon_as_the_writer_before_them_is_gone() {
    let leave: [fn(&mut World); 4] = [
        |world| drop(world.apply(Command::Withdraw(request(1)))),
        |world| drop(world.apply(Command::Abandon(request(1)))),
        |world| {
            world.pass(ms(500));
            world.expire();
        },
        |world| {
            // Nobody's timer has seen it: a reader that comes does.
            world.pass(ms(500));
            assert!(matches!(world.acquire(read("late")), Outcome::Granted(_)));
        },
    ];
    for leave in leave {
        let mut world = World::new();
        world.granted(read("a"));
        world.queued(write("w").wait(500).request(1));
        world.queued(read("b").wait(60_000).request(2));
        leave(&mut world);
        assert_eq!(served(&world), [2]);
    }
}

#[test]
fn a_repeat_gets_the_same_grant_and_an_old_name_never_touches_the_next_one() {
    let mut world = World::new();
    let anchor = world.granted(ask("y", "a"));
    world.granted(read("b"));
    let first = world.granted(read("a").under(anchor.key));
    let again = world.granted(read("a").under(anchor.key));
    assert_eq!(first, again);
    world.release(&grant(&first));
    let second = world.granted(read("a").under(anchor.key));
    assert_eq!((numbers(&first), numbers(&second)), ((2, 3), (2, 4)));
    // One token, one lease, one lock: only the number distinguishes them.
    let how = Ending::Released;
    let token = token(3);
    assert_eq!(world.release(&grant(&first)), Outcome::Ended { token, how });
    assert!(matches!(world.renew(&grant(&second)), Outcome::Renewed(_)));
    let released = world.release(&tokenless("x", &second));
    assert!(matches!(released, Outcome::Released { .. }), "{released:?}");
}

#[test]
fn a_downgrade_is_one_step_with_a_new_token_and_lets_waiting_readers_in() {
    let mut world = World::new();
    let writer = world.granted(write("w").request(9));
    world.queued(read("r").wait(60_000).request(1));
    world.queued(write("v").wait(60_000).request(2));
    let reader = world.granted(read("w").under(writer.key));
    assert_eq!((numbers(&reader), served(&world)), ((2, 2), vec![1]));
    assert_eq!((reader.lease, world.events().len()), (writer.lease, 3));
    let (token, how) = (writer.token, Ending::Superseded);
    let old = Outcome::Ended { token, how };
    assert_eq!(world.renew(&grant(&writer)), old);
    assert_eq!(world.acquire(write("w").request(9)), old, "asked again");
    assert!(matches!(world.renew(&grant(&reader)), Outcome::Renewed(_)));
}

#[test]
fn a_reader_does_not_become_a_writer() {
    let mut world = World::new();
    let reader = world.granted(read("a"));
    let upgrade = Outcome::Invalid(Invalid::Upgrade);
    assert_eq!(world.acquire(write("a").under(reader.key)), upgrade);
    assert!(
        matches!(world.acquire(write("a")), Outcome::Held(_)),
        "its own client neither"
    );
}

#[test]
fn a_shared_reacquire_does_not_end_the_clients_former_life_but_takes_over_its_writer() {
    let mut world = World::new();
    let writer = world.granted(write("a"));
    let reader = world.granted(read("a"));
    assert_eq!(numbers(&reader), (2, 2));
    assert!(matches!(
        world.renew(&grant(&writer)),
        Outcome::Ended { .. }
    ));
    let other = world.granted(read("a"));
    assert_eq!(numbers(&other), (2, 3));
    assert!(matches!(world.renew(&grant(&reader)), Outcome::Renewed(_)));
}

#[test]
fn a_readers_lease_ends_to_the_nanosecond() {
    let mut world = World::new();
    let a = world.granted(read("a"));
    world.pass(ns(1));
    let b = world.granted(read("b"));
    world.pass(ns(ms(TTL_MS).as_nanos() - 1));
    let (token, how) = (a.number(), Ending::Expired);
    assert_eq!(world.renew(&grant(&a)), Outcome::Ended { token, how });
    assert!(matches!(world.acquire(write("w")), Outcome::Held(_)));
    assert_eq!(world.held_by("x"), Some((1, "b".into())));
    world.pass(ns(1));
    assert_eq!(world.holder("x"), None);
    assert_eq!(world.granted(write("w")).token, crate::world::token(3));
    assert!(matches!(world.renew(&grant(&b)), Outcome::Ended { .. }));
}

/// Beside its command an entry ends one number of leases in line, and another number on the lock that is asked for.
#[test]
fn a_request_ends_a_bounded_number_of_its_locks_readers() {
    let mut world = World::new();
    // A set that waits elsewhere makes no difference.
    world.granted(ask("y", "other").ttl(60_000));
    world.queued(ask_all(&["y", "z"], "set").wait(60_000).request(1));
    for client in ["a", "b", "c", "d", "e", "f"] {
        world.granted(read(client));
    }
    world.machine.set_expiry(Expiry {
        alone: 1,
        beside: 2,
    });
    world.pass(ms(TTL_MS));
    let denied = world.acquire(write("w"));
    assert!(matches!(denied, Outcome::Held(_)), "{denied:?}");
    assert_eq!(world.events().len(), 2 + 2);
}

/// The entry that asks ends the former writer's grant, and the lock goes to the next one.
#[test]
fn a_reader_does_not_join_a_writer_that_was_just_granted() {
    let mut world = World::new();
    world.machine.set_expiry(Expiry {
        alone: 1,
        beside: 1,
    });
    world.granted(ask("w", "a"));
    world.granted(write("a"));
    world.queued(write("b").wait(60_000).request(1));
    world.pass(ms(TTL_MS));
    // The only grant that a timer ends in this entry is the other lock's.
    let denied = world.acquire(read("c"));
    assert!(matches!(denied, Outcome::Held(_)), "{denied:?}");
    assert_eq!(world.held_by("x"), Some((3, "b".into())));
}

#[test]
fn an_abandoned_request_gives_back_its_own_readers_grant_and_no_other() {
    let mut world = World::new();
    let first = world.granted(read("a").request(1));
    let second = world.granted(read("b").request(2));
    world.apply(Command::Abandon(request(1)));
    let ended: Vec<_> = world
        .events()
        .iter()
        .map(|event| event.change.clone())
        .collect();
    let released = Change::Ended {
        how: Ending::Released,
        reason: None,
        delayed: None,
    };
    assert_eq!(ended, [released]);
    assert!(matches!(world.renew(&grant(&first)), Outcome::Ended { .. }));
    // Its lease reads again, by another request, after the grant of the abandoned one was released.
    world.granted(ask("y", "b").under(second.key));
    world.release(&grant(&second));
    let third = world.granted(read("b").under(second.key).request(3));
    world.apply(Command::Abandon(request(2)));
    assert!(matches!(world.renew(&grant(&third)), Outcome::Renewed(_)));
}

#[test]
fn an_operator_takes_one_readers_grant_by_its_number() {
    let mut world = World::new();
    let [a, b] = ["a", "b"].map(|client| world.granted(read(client)));
    let revoke = |number| Command::Revoke {
        lock: lock_name("x"),
        token: token(number),
        reason: "stuck".into(),
    };
    let highest = token(1);
    assert_eq!(
        world.apply(revoke(7)),
        Outcome::Stale {
            named: token(7),
            highest
        }
    );
    let token = b.number();
    assert_eq!(world.apply(revoke(2)), Outcome::Revoked { token });
    assert!(matches!(world.renew(&grant(&b)), Outcome::Ended { .. }));
    assert!(matches!(world.renew(&grant(&a)), Outcome::Renewed(_)));
}

#[test]
fn an_orphaned_writer_keeps_readers_waiting_for_its_window() {
    let mut world = World::new();
    world.granted(read("a"));
    world.queued(write("w").wait(60_000).request(1));
    world.queued(read("b").wait(60_000).request(2));
    world.apply(Command::Grace(Away::Led));
    world.queued(read("b").request(2));
    assert!(matches!(world.acquire(read("c")), Outcome::Behind(_)));
    world.pass(ms(2_000));
    world.expire();
    assert_eq!(served(&world), [2]);
    // And an orphaned reader at the head comes back into the phase.
    let mut world = World::new();
    let writer = world.granted(write("w"));
    world.queued(read("a").wait(60_000).request(1));
    world.queued(read("b").wait(60_000).request(2));
    world.apply(Command::Grace(Away::Led));
    world.granted(read("w").under(writer.key));
    assert_eq!(served(&world), []);
    assert_eq!(numbers(&world.granted(read("a").request(1))), (2, 3));
    assert_eq!(numbers(&world.granted(read("b").request(2))), (2, 4));
}

#[test]
fn a_machine_with_readers_is_restored_alike() {
    let mut world = World::new();
    let anchor = world.granted(ask("y", "a"));
    world.granted(read("a").under(anchor.key).metadata("first"));
    world.granted(ask("z", "a").under(anchor.key));
    world.granted(read("b"));
    world.queued(write("w").wait(60_000).request(1));
    world.queued(read("c").wait(60_000).request(2));
    let restored = Machine::restore(9, world.machine.records()).unwrap();
    assert!(restored.records().eq(world.machine.records()));
    let mut worlds = [world, World::new()];
    (worlds[1].machine, worlds[1].now) = (restored, worlds[0].now);
    for _ in 0..3 {
        let effects = worlds.each_mut().map(|world| {
            world.pass(ms(TTL_MS));
            world.expire();
            world.effects.clone()
        });
        assert_eq!(effects[0], effects[1]);
    }
}

/// However many readers there are, an entry does a bounded amount of work, and joining does not depend on them.
#[test]
fn a_crowd_of_readers_comes_and_goes_in_bounded_steps() {
    let mut world = World::with(Limits::DEFAULT);
    let mut effects = Vec::new();
    let machine = &mut world.machine;
    let crowd = 20_000_u32;
    let apply = |machine: &mut Machine, at, command, effects: &mut Vec<_>| {
        let wall = palisade_core::WallTime::default();
        effects.clear();
        machine.apply(
            palisade_core::Entry {
                at,
                wall,
                by: palisade_core::Principal::ANONYMOUS,
                command,
            },
            effects,
        )
    };
    let start = palisade_core::Timestamp::ZERO;
    for n in 0..crowd {
        let wish = read("a").with_key(key(n));
        apply(machine, start, Command::Acquire(wish), &mut effects);
    }
    assert_eq!((machine.locks(), machine.leases()), (1, crowd as usize));
    let end = start.after(ms(TTL_MS));
    machine.set_expiry(Expiry::CURRENT);
    let writer = write("w").wait(1_000).request(1).with_key(key(crowd));
    let asked = apply(machine, end, Command::Acquire(writer), &mut effects);
    assert_eq!(
        asked.outcome,
        Outcome::Queued,
        "what is left ends within the millisecond"
    );
    assert!(effects.len() < 100, "{}", effects.len());
    let mut entries = 0;
    while machine.leases() > 1 {
        apply(machine, end, Command::Expire, &mut effects);
        entries += 1;
    }
    assert!((9..12).contains(&entries), "{entries}");
    assert_eq!(
        machine.holder("x", end).map(|holder| holder.client),
        Some(client_id("w"))
    );
}

#[test]
fn the_last_token_is_for_one_reader() {
    let mut world = World::new();
    world.granted(read("a"));
    let by = palisade_core::Token::MAX.get() - 2;
    world.apply(Command::Leap { by });
    assert_eq!(numbers(&world.granted(read("b"))).0, 1);
    assert_eq!(world.acquire(read("c")), Outcome::TokensExhausted);
    assert_eq!(LockMode::default(), LockMode::Exclusive);
}

/// The token of such a phase may be lower than that of a writer since.
#[test]
fn nobody_joins_readers_from_before_a_restore() {
    for away in [Away::Restarted, Away::Restored] {
        let mut world = World::new();
        let [a, b] = ["a", "b"].map(|client| world.granted(read(client)));
        let slot = world.granted(ask("s", "a").permits(1, 2));
        world.apply(Command::Grace(away));
        world.apply(Command::Leap { by: 1_000 });
        let next = world.machine.next_token().unwrap();
        world.granted(ask("s", "b").permits(1, 2));
        world.release(&GrantRef {
            lock: lock_name("s"),
            ..grant(&slot)
        });
        if away == Away::Restarted {
            // The control.
            assert_eq!(world.granted(read("c")).token, a.token);
            continue;
        }
        let denied = world.acquire(read("c"));
        assert!(
            matches!(&denied, Outcome::Held(holder) if *holder.client == *"a"),
            "{denied:?}"
        );
        world.queued(read("c").wait(60_000).request(1));
        world.queued(read("d").for_update().wait(60_000).request(2));
        // Over a snapshot, too.
        world.machine = Machine::restore(7, world.machine.records()).unwrap();
        assert_eq!(
            world.granted(read("a").under(a.key)),
            a,
            "its own are repeated"
        );
        world.release(&grant(&a));
        assert_eq!(world.settled(), []);
        world.release(&grant(&b));
        for (_, outcome) in world.settled() {
            assert!(matches!(outcome, Outcome::Granted(granted) if granted.token > next));
        }
        assert_eq!(world.machine.view("x", world.now).unwrap().reader_count, 2);
        world.granted(read("e"));
    }
}

#[test]
fn one_request_id_is_for_one_mode() {
    let mut world = World::new();
    let reused = Outcome::Invalid(Invalid::RequestReused);
    world.granted(read("a").request(1));
    assert_eq!(world.acquire(write("a").request(1)), reused, "granted");
    world.queued(write("w").wait(60_000).request(2));
    assert_eq!(
        world.acquire(read("w").wait(60_000).request(2)),
        reused,
        "waiting"
    );
    world.queued(write("w").wait(60_000).request(2));
}

#[test]
fn one_lock_is_shown_with_its_readers_and_its_queue() {
    let mut world = World::new();
    let a = world.granted(read("a").metadata("first"));
    let b = world.granted(read("b"));
    world.queued(write("w").wait(500).request(1));
    world.queued(read("c").wait(900).request(2));
    world.pass(ms(100));
    let view = world.machine.view("x", world.now).unwrap();
    assert_eq!((view.reader_count, view.waiters), (2, 2));
    let readers = view.readers.iter();
    let readers = readers.map(|reader| (reader.id.0, reader.holder.token, reader.metadata.clone()));
    let phase = token(1);
    let first = (a.number(), phase, Some("first".into()));
    assert!(readers.eq([first, (b.number(), phase, None)]));
    let queue = view.queue.iter();
    let queue = queue.map(|wait| (wait.client.as_str(), wait.mode, wait.waited, wait.remaining));
    assert!(queue.eq([
        ("w", LockMode::Exclusive, ms(100), ms(400)),
        ("c", LockMode::Shared, ms(100), ms(800)),
    ]));
    // A listing gives the oldest reader and counts the others.
    let (page, _) = world.machine.page("", 0, 10, world.now);
    assert_eq!((page[0].reader_count, page[0].waiters), (2, 2));
    assert!(page[0].readers.is_empty() && page[0].queue.is_empty());
}

/// Bounded overtaking, with the bound zero: in storms of both kinds no later request passes a waiting one, and a writer
/// waits for no other readers than those that held or waited before it.
#[test]
fn in_a_storm_of_readers_and_writers_nobody_who_waits_is_passed() {
    for seed in 1..40_u64 {
        let (mut world, mut random) = (World::new(), seed);
        let mut draw = move |below: u64| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (random >> 33) % below
        };
        let (mut held, mut waiting, mut next) = (Vec::new(), Vec::new(), 0_u8);
        let passed = |waiting: &mut Vec<u8>, world: &World, held: &mut Vec<Granted>| {
            for (id, outcome) in world.settled() {
                let Outcome::Granted(granted) = outcome else {
                    panic!("{outcome:?}");
                };
                assert_eq!(waiting.remove(0), id.as_bytes()[0], "seed {seed}");
                held.push(granted);
            }
        };
        while next < 120 || !held.is_empty() {
            if next < 120 && draw(3) > 0 {
                next += 1;
                let client = format!("c{next}");
                let wish = if draw(4) > 0 {
                    read(&client)
                } else {
                    write(&client)
                };
                match world.acquire(wish.wait(60_000).request(next)) {
                    Outcome::Granted(granted) => {
                        assert!(waiting.is_empty(), "seed {seed}: {next} passed {waiting:?}");
                        held.push(granted);
                    }
                    Outcome::Queued => waiting.push(next),
                    other => panic!("{other:?}"),
                }
            } else if !held.is_empty() {
                let leaves = draw(held.len() as u64) as usize;
                world.release(&grant(&held.swap_remove(leaves)));
                passed(&mut waiting, &world, &mut held);
            }
        }
        assert!(
            waiting.is_empty(),
            "seed {seed}: {waiting:?} were never granted"
        );
    }
}
