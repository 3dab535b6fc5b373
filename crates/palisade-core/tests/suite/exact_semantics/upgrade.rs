//! Mode update: a reader that becomes the writer in one step, and when it does not (S8).

use palisade_core::machine::{Expiry, Record};
use palisade_core::{
    Away, Change, Command, Ending, GrantRef, Granted, Invalid, LockMode, Machine, Outcome,
};

use crate::world::{Ask, TTL_MS, World, ask, ask_all, client_id, lock_name, ms, request, token};

fn read(client: &str) -> Ask {
    ask("x", client).shared()
}

fn update(client: &str) -> Ask {
    ask("x", client).for_update()
}

fn upgrade(held: &Granted) -> Ask {
    ask("x", "u").upgrade(held.key)
}

/// Names a grant by its number.
fn grant(granted: &Granted) -> GrantRef {
    GrantRef {
        lock: lock_name("x"),
        key: granted.key,
        token: Some(granted.number()),
    }
}

/// A world in which `u` has the lock in mode update, and `r` reads beside it.
fn beside_a_reader() -> (World, Granted, Granted) {
    let mut world = World::new();
    let held = world.granted(update("u"));
    let reader = world.granted(read("r"));
    (world, held, reader)
}

fn ended(granted: &Granted, how: Ending) -> Outcome {
    let token = granted.number();
    Outcome::Ended { token, how }
}

fn renews(world: &mut World, granted: &Granted) -> bool {
    matches!(world.renew(&grant(granted)), Outcome::Renewed(_))
}

/// The client that a denial names.
fn ahead(outcome: Outcome) -> String {
    match outcome {
        Outcome::Held(holder) => holder.client.to_string(),
        Outcome::Behind(ahead) => ahead.client.to_string(),
        other => panic!("not denied but {other:?}"),
    }
}

#[test]
fn one_holder_in_mode_update_reads_with_the_others_under_the_token_of_the_phase() {
    let mut world = World::new();
    let reader = world.granted(read("r"));
    let held = world.granted(update("u"));
    let late = world.granted(read("s"));
    assert_eq!([&held, &late].map(|grant| grant.token), [reader.token; 2]);
    assert_ne!(held.shared, late.shared);
    // A second one waits, and names the first; the readers are not in its way.
    assert_eq!(ahead(world.acquire(update("v"))), "u");
    world.queued(update("v").wait(60_000).request(1));
    world.queued(read("t").wait(60_000).request(2));
    world.release(&grant(&reader));
    assert_eq!(world.settled(), []);
    world.release(&grant(&held));
    let settled: Vec<_> = world.settled().into_iter().map(|(id, _)| id).collect();
    assert_eq!(settled, [request(1), request(2)]);
    assert!(renews(&mut world, &late));
}

#[test]
fn alone_it_is_upgraded_at_once_with_a_new_number_under_the_same_lease() {
    let mut world = World::new();
    let held = world.granted(update("u").metadata("reads"));
    let writer = world.granted(upgrade(&held).metadata("writes"));
    let wanted = (token(2), None, held.lease, held.key);
    assert_eq!(
        (writer.token, writer.shared, writer.lease, writer.key),
        wanted
    );
    let changes: Vec<_> = world
        .events()
        .into_iter()
        .map(|event| (event.token, event.change))
        .collect();
    let superseded = Change::Ended {
        how: Ending::Superseded,
        reason: None,
        delayed: None,
    };
    let ttl = writer.ttl;
    let granted = Change::Granted { ttl };
    assert_eq!(changes, [(token(1), superseded), (token(2), granted)]);
    assert_eq!(world.renew(&grant(&held)), ended(&held, Ending::Superseded));
    assert!(renews(&mut world, &writer));
    assert!(matches!(world.acquire(read("r")), Outcome::Held(_)));
    let view = world.machine.view("x", world.now).unwrap();
    assert_eq!(
        (view.reader_count, view.metadata.as_deref()),
        (0, Some("writes"))
    );
    world.release(&grant(&writer));
    assert_eq!(world.machine.leases(), 0, "nothing is left of the lease");
}

#[test]
fn it_waits_for_the_other_readers_alone_and_keeps_new_ones_waiting() {
    let (mut world, held, reader) = beside_a_reader();
    world.queued(ask("x", "w").wait(60_000).request(1));
    assert_eq!(
        ahead(world.acquire(upgrade(&held))),
        "r",
        "not its own grant"
    );
    world.queued(upgrade(&held).wait(60_000).request(2));
    world.queued(read("s").wait(60_000).request(3));
    assert_eq!(ahead(world.acquire(read("t"))), "u", "who waits before it");
    assert!(renews(&mut world, &held));
    let modes: Vec<_> = world
        .machine
        .view("x", world.now)
        .unwrap()
        .queue
        .iter()
        .map(|queued| queued.mode)
        .collect();
    let expected = [LockMode::Upgrade, LockMode::Exclusive, LockMode::Shared];
    assert_eq!(modes, expected);
    world.pass(ms(5));
    world.release(&grant(&reader));
    let (id, writer) = world.handed_over();
    assert_eq!(
        (id, writer.token, writer.waited),
        (request(2), token(3), ms(5))
    );
    assert_eq!(world.renew(&grant(&held)), ended(&held, Ending::Superseded));
    // Then the others, in the order in which they came.
    world.release(&grant(&writer));
    assert_eq!(world.handed_over().0, request(1));
}

/// The last reader may leave by the end of its lease, by an operator, and by a request that was given up.
#[test]
fn however_the_last_reader_leaves_the_upgrade_is_granted() {
    let leave: [fn(&mut World, &Granted); 4] = [
        |world, reader| drop(world.release(&grant(reader))),
        |world, _| drop(world.apply(Command::Abandon(request(9)))),
        |world, reader| {
            drop(world.apply(Command::Revoke {
                lock: lock_name("x"),
                token: reader.number(),
                reason: "stuck".into(),
            }));
        },
        |world, _| {
            world.pass(ms(1_000));
            world.expire();
        },
    ];
    for leave in leave {
        let mut world = World::new();
        let held = world.granted(update("u"));
        let reader = world.granted(read("r").ttl(1_000).request(9));
        world.queued(upgrade(&held).wait(60_000).request(1));
        leave(&mut world, &reader);
        assert_eq!(world.handed_over().0, request(1));
    }
}

/// Nobody's timer has seen the end of the reader's lease: the request that finds it does not get past the upgrade.
#[test]
fn a_request_that_ends_the_last_readers_lease_does_not_overtake_the_upgrade() {
    for wish in [read("late"), update("late"), ask("x", "late")] {
        let mut world = World::new();
        for n in 0..3 {
            world.granted(ask(&format!("y{n}"), "other").ttl(1_000));
        }
        world.granted(read("r").ttl(1_000));
        let held = world.granted(update("u").ttl(60_000));
        world.queued(upgrade(&held).wait(60_000).request(1));
        world.queued(ask("x", "w").wait(60_000).request(2));
        world.machine.set_expiry(Expiry {
            alone: 1,
            beside: 1,
        });
        world.pass(ms(1_000));
        let denied = world.acquire(wish);
        assert!(matches!(denied, Outcome::Held(_)), "{denied:?}");
        let settled: Vec<_> = world.settled().into_iter().map(|(id, _)| id).collect();
        assert_eq!(settled, [request(1)]);
        assert_eq!(world.held_by("x").unwrap().1, "u");
    }
}

#[test]
fn when_the_wait_is_over_it_stays_in_mode_update_and_readers_join_again() {
    type GiveUp = fn(&mut World);
    let give_up: [(GiveUp, Option<&str>); 4] = [
        (
            |world| {
                world.pass(ms(500));
                world.expire();
            },
            Some("r"),
        ),
        (
            |world| drop(world.apply(Command::Withdraw(request(1)))),
            None,
        ),
        (
            |world| drop(world.apply(Command::Abandon(request(1)))),
            None,
        ),
        (
            |world| drop(world.apply(Command::Grace(Away::Restarted))),
            None,
        ),
    ];
    for (give_up, told) in give_up {
        let (mut world, held, reader) = beside_a_reader();
        world.queued(upgrade(&held).wait(500).request(1));
        world.queued(read("s").wait(60_000).request(2));
        give_up(&mut world);
        let named = world.settled().into_iter().find_map(|(id, outcome)| {
            let denied = id == request(1) && matches!(outcome, Outcome::Held(_));
            denied.then(|| ahead(outcome))
        });
        assert_eq!(named.as_deref(), told);
        let shown = world.machine.view("x", world.now).unwrap();
        let updates: Vec<_> = shown.readers.iter().map(|reader| reader.update).collect();
        assert_eq!((shown.waiters, updates[0], updates[1]), (0, true, false));
        assert!(renews(&mut world, &held) && renews(&mut world, &reader));
        world.granted(read("t"));
        // It may try again.
        world.queued(upgrade(&held).wait(500).request(3));
    }
}

#[test]
fn an_upgrade_ends_with_the_grant_that_it_is_for() {
    type End = fn(&mut World, &Granted);
    let end: [(End, Ending); 3] = [
        (
            |world, held| drop(world.release(&grant(held))),
            Ending::Released,
        ),
        (
            |world, held| {
                drop(world.apply(Command::Revoke {
                    lock: lock_name("x"),
                    token: held.number(),
                    reason: "stuck".into(),
                }));
            },
            Ending::Revoked,
        ),
        (
            |world, _| {
                world.pass(ms(1_000));
                world.expire();
            },
            Ending::Expired,
        ),
    ];
    for (end, how) in end {
        // The lease may have another lock, and live on.
        for other_lock in [false, true] {
            for other_reader in [false, true] {
                let mut world = World::new();
                let held = world.granted(update("u").ttl(1_000));
                if other_lock {
                    world.granted(ask("y", "u").under(held.key));
                }
                let reader = world.granted(read("r"));
                world.queued(upgrade(&held).wait(60_000).request(1));
                if !other_reader {
                    // An orphan is not granted, and does not keep the lock when its grant is over.
                    world.apply(Command::Grace(Away::Led));
                    world.release(&grant(&reader));
                }
                world.queued(read("s").wait(60_000).request(2));
                end(&mut world, &held);
                let settled = world.settled();
                let told = if other_reader {
                    vec![ended(&held, how)]
                } else {
                    vec![]
                };
                let last = settled.len() - 1;
                let told_first: Vec<_> = settled[..last]
                    .iter()
                    .map(|(_, told)| told.clone())
                    .collect();
                assert_eq!(told_first, told, "{how:?}");
                assert_eq!(settled[last].0, request(2), "readers join again");
                let upgrade = world.acquire(upgrade(&held).request(1));
                assert_eq!(upgrade, ended(&held, how), "asked again");
            }
        }
    }
}

#[test]
fn a_repeat_gets_the_same_answer_and_draws_no_second_number() {
    let (mut world, held, reader) = beside_a_reader();
    world.queued(upgrade(&held).wait(60_000).request(1));
    world.queued(upgrade(&held).wait(60_000).request(1));
    let another = Outcome::Invalid(Invalid::UpgradeWaits);
    assert_eq!(
        world.acquire(upgrade(&held).wait(60_000).request(2)),
        another
    );
    world.release(&grant(&reader));
    let writer = world.handed_over().1;
    for _ in 0..2 {
        let again = world.granted(upgrade(&held).wait(60_000).request(1));
        assert_eq!((again.token, again.lease), (writer.token, writer.lease));
    }
    assert_eq!(world.machine.next_token(), Some(token(4)));
    // The former grant in mode update is over, and an abandoned upgrade gives the lock back.
    assert_eq!(
        world.acquire(update("u").under(held.key)),
        Outcome::Invalid(Invalid::NotUpdate)
    );
    world.apply(Command::Abandon(request(1)));
    assert_eq!(world.holder("x"), None);
    let writer = ended(&writer, Ending::Released);
    assert_eq!(world.acquire(upgrade(&held)), writer);
}

#[test]
fn an_answer_that_was_no_is_repeated_too() {
    let (mut world, held, reader) = beside_a_reader();
    assert_eq!(ahead(world.acquire(upgrade(&held).request(1))), "r");
    world.release(&grant(&reader));
    assert_eq!(
        ahead(world.acquire(upgrade(&held).request(1))),
        "r",
        "rule A12"
    );
    world.granted(upgrade(&held).request(2));
}

#[test]
fn who_has_no_grant_in_mode_update_is_told_so_and_nothing_changes() {
    let mut world = World::new();
    let reader = world.granted(read("u"));
    let writer = world.granted(ask("y", "u"));
    let permits = world.granted(ask("z", "u").permits(1, 2));
    let set = world.granted(ask_all(&["p", "q"], "u"));
    let of_set = GrantRef {
        lock: lock_name("p"),
        key: set.key,
        token: Some(set.token),
    };
    let before: Vec<Record> = world.machine.records().collect();
    let on = |lock: &str, held: &Granted| ask(lock, "u").upgrade(held.key).wait(60_000).request(1);
    let not_update = Outcome::Invalid(Invalid::NotUpdate);
    assert_eq!(
        world.acquire(on("x", &reader)),
        Outcome::Invalid(Invalid::Upgrade)
    );
    assert_eq!(world.acquire(on("y", &writer)), not_update);
    assert_eq!(world.acquire(on("p", &set)), not_update);
    let asked_permits = world.acquire(on("z", &permits));
    let differ = Invalid::PermitsDiffer {
        asked: None,
        has: Some(2),
    };
    assert_eq!(asked_permits, Outcome::Invalid(differ));
    let new = ask("x", "u").for_update().under(reader.key).request(1);
    assert_eq!(
        world.acquire(new),
        Outcome::Invalid(Invalid::Upgrade),
        "nor for update"
    );
    let both = Ask::upgrade(ask_all(&["p", "q"], "u"), set.key);
    assert_eq!(world.acquire(both), Outcome::Invalid(Invalid::SetMode));
    let delayed = on("y", &writer).delays(1, 0);
    assert_eq!(
        world.acquire(delayed),
        Outcome::Invalid(Invalid::OptionsOfShared)
    );
    assert!(world.machine.records().eq(before));
    // A lock that the lease does not have.
    for lock in ["free", "y"] {
        let asked = ask(lock, "u").upgrade(reader.key).wait(60_000);
        assert_eq!(world.acquire(asked), Outcome::NotHeld, "{lock}");
    }
    assert!(matches!(world.renew(&of_set), Outcome::Renewed(_)));
}

#[test]
fn a_grant_in_mode_update_is_not_asked_for_in_another_mode() {
    let mut world = World::new();
    let held = world.granted(update("u").request(1));
    let under = |wish: Ask| wish.under(held.key);
    let other = Outcome::Invalid(Invalid::UpdateHeld);
    assert_eq!(world.acquire(under(read("u"))), other);
    assert_eq!(world.acquire(under(ask("x", "u"))), other);
    assert_eq!(world.acquire(under(ask_all(&["x", "y"], "u"))), other);
    let again = world.granted(under(update("u")));
    assert_eq!(again, held);
    // One request id is for one mode.
    let reused = Outcome::Invalid(Invalid::RequestReused);
    assert_eq!(world.acquire(read("u").request(1)), reused);
    assert_eq!(world.granted(update("u").request(1)).shared, held.shared);
}

#[test]
fn an_orphaned_upgrade_keeps_its_place_until_its_caller_is_back() {
    let (mut world, held, reader) = beside_a_reader();
    world.queued(upgrade(&held).wait(60_000).request(1));
    world.queued(ask("x", "w").wait(60_000).request(2));
    world.apply(Command::Grace(Away::Led));
    world.release(&grant(&reader));
    assert_eq!(world.settled(), [], "nobody is there to be told");
    assert_eq!(ahead(world.acquire(read("s"))), "u");
    let writer = world.granted(upgrade(&held).request(1));
    assert_eq!((writer.token, writer.lease), (token(3), held.lease));
    // The control: a caller that does not come back loses the place, and stays a reader as before.
    let (mut world, held, _) = beside_a_reader();
    world.queued(upgrade(&held).wait(60_000).request(1));
    world.apply(Command::Grace(Away::Led));
    world.pass(ms(2_000));
    world.expire();
    world.granted(read("s"));
    assert!(renews(&mut world, &held));
}

/// Its lease may have ended after the backup, and others may have written, so it must not write on the basis of its
/// reads.
#[test]
fn a_reader_from_before_a_restore_is_not_upgraded() {
    let (mut world, held, reader) = beside_a_reader();
    world.queued(upgrade(&held).wait(60_000).request(1));
    let mut restarted = World::new();
    (restarted.machine, restarted.now) = (world.machine.clone(), world.now);
    world.apply(Command::Grace(Away::Restored));
    world.apply(Command::Leap { by: 1_000 });
    assert_eq!((world.machine.waiters(), world.settled()), (0, Vec::new()));
    let next = world.machine.next_token();
    let refused = Outcome::Invalid(Invalid::Restored);
    for wait in [0, 60_000] {
        let again = upgrade(&held).wait(wait).request(1);
        assert_eq!(world.acquire(again), refused);
    }
    world.release(&grant(&reader));
    assert_eq!(world.acquire(upgrade(&held)), refused, "beside nobody");
    assert_eq!(world.machine.next_token(), next, "nothing was drawn");
    assert!(renews(&mut world, &held), "it reads on");
    assert_eq!(world.granted(update("u").under(held.key)), held);
    // Released and asked for again it may become the writer.
    world.release(&grant(&held));
    let anew = world.granted(update("u"));
    assert!(anew.token >= next.unwrap());
    world.granted(upgrade(&anew));
    // The control: after a restart it is as before.
    restarted.apply(Command::Grace(Away::Restarted));
    restarted.release(&grant(&reader));
    restarted.granted(upgrade(&held).request(1));
}

#[test]
fn a_set_behind_an_upgrade_waits_and_is_granted_in_its_turn() {
    let (mut world, held, reader) = beside_a_reader();
    world.queued(ask_all(&["x", "y"], "set").wait(60_000).request(1));
    world.queued(upgrade(&held).wait(60_000).request(2));
    world.release(&grant(&reader));
    let (id, writer) = world.handed_over();
    assert_eq!(id, request(2));
    world.release(&grant(&writer));
    assert_eq!(world.handed_over().0, request(1));
}

#[test]
fn the_last_token_is_not_drawn_for_an_upgrade_that_cannot_have_it() {
    let mut world = World::new();
    let held = world.granted(update("u"));
    let by = palisade_core::Token::MAX.get() - 1;
    world.apply(Command::Leap { by });
    assert_eq!(world.acquire(upgrade(&held)), Outcome::TokensExhausted);
    assert!(renews(&mut world, &held));
}

#[test]
fn a_machine_with_an_upgrade_that_waits_is_restored_alike() {
    type Spoil = fn(&mut Record);
    let (mut world, held, reader) = beside_a_reader();
    world.queued(ask("x", "w").wait(60_000).request(1));
    world.queued(update("v").wait(60_000).request(2));
    world.queued(upgrade(&held).wait(60_000).request(3));
    let records: Vec<Record> = world.machine.records().collect();
    let restored = Machine::restore(9, records.clone()).unwrap();
    assert!(restored.records().eq(records.clone()));
    let mut worlds = [world, World::new()];
    (worlds[1].machine, worlds[1].now) = (restored, worlds[0].now);
    for world in &mut worlds {
        world.release(&grant(&reader));
        assert_eq!(world.handed_over().0, request(3));
    }
    // Records that no machine wrote are refused.
    let spoil: [(Spoil, &str); 3] = [
        (
            |record| {
                if let Record::Share(share) = record {
                    share.update = false;
                }
            },
            "an upgrade waits without a grant in mode update",
        ),
        (
            |record| {
                if let Record::Share(share) = record {
                    share.update = true;
                }
            },
            "a lock has two grants in mode update, or has permits",
        ),
        (
            |record| {
                if let Record::Waiter(waiter) = record {
                    waiter.mode = LockMode::Upgrade;
                }
            },
            "an upgrade waits without a grant in mode update",
        ),
    ];
    for (spoil, why) in spoil {
        let mut spoiled = records.clone();
        spoiled.iter_mut().for_each(spoil);
        assert_eq!(Machine::restore(9, spoiled).unwrap_err().0, why);
    }
    let mut twice = records;
    let upgrade = twice.iter().position(
        |record| matches!(record, Record::Waiter(waiter) if waiter.mode == LockMode::Upgrade),
    );
    let at = upgrade.unwrap();
    let mut second = twice[at].clone();
    if let Record::Waiter(waiter) = &mut second {
        (waiter.request, waiter.arrival) = (request(4), waiter.arrival + 1);
    }
    twice.insert(at + 1, second);
    if let Record::Head(head) = &mut twice[0] {
        head.arrivals += 1;
    }
    let refused = Machine::restore(9, twice).unwrap_err().0;
    assert_eq!(refused, "two upgrades of one lock wait");
}

/// Bounded overtaking: in a storm of all modes a request that waits is passed by nothing but upgrades of grants that were
/// asked for before it, and by each once. Everybody is served in the end.
#[test]
fn in_a_storm_nobody_who_waits_is_passed_but_by_upgrades_asked_for_before_it() {
    let (mut passed, mut upgraded, mut denied) = (0, 0, 0);
    for seed in 1..60_u64 {
        let (mut world, mut random) = (World::new(), seed);
        let mut draw = move |below: u64| {
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (random >> 33) % below
        };
        // The holders, and whether each is in mode update; the waiting requests, whether each is for that, and how often
        // it may still be passed.
        let mut held: Vec<(Granted, bool)> = Vec::new();
        let mut waiting: Vec<(u8, bool, usize)> = Vec::new();
        let mut pass = |waiting: &mut Vec<(u8, bool, usize)>| {
            for (_, _, may) in waiting {
                *may = may.checked_sub(1).expect("passed once too often");
                passed += 1;
            }
        };
        let mut upgrades: Option<u8> = None;
        let mut next = 0_u8;
        while next < 150 || !held.is_empty() {
            let ask_more = next < 150;
            if ask_more && draw(3) > 0 {
                next += 1;
                let client = format!("c{next}");
                let kind = draw(6);
                let updates = kind < 2;
                let wish = match kind {
                    0 | 1 => update(&client),
                    2 => ask("x", &client),
                    _ => read(&client),
                };
                match world.acquire(wish.wait(60_000).request(next)) {
                    Outcome::Granted(granted) => {
                        assert!(waiting.is_empty() && upgrades.is_none(), "seed {seed}");
                        held.push((granted, updates));
                    }
                    Outcome::Queued => {
                        let holds = held.iter().filter(|(_, updates)| *updates).count();
                        let waits = waiting.iter().filter(|(_, updates, _)| *updates).count();
                        waiting.push((next, updates, holds + waits));
                    }
                    other => panic!("{other:?}"),
                }
                continue;
            }
            let holder = held.iter().position(|(_, updates)| *updates);
            if let Some(at) = holder
                && ask_more
                && upgrades.is_none()
                && draw(2) > 0
            {
                next += 1;
                let client = world.machine.view("x", world.now).unwrap();
                let number = held[at].0.number();
                let own = client.readers.iter().find(|reader| reader.id.0 == number);
                let client = own.unwrap().holder.client.clone();
                let wish = ask("x", &client).upgrade(held[at].0.key).request(next);
                match world.acquire(wish.wait(60_000)) {
                    Outcome::Granted(granted) => {
                        assert_eq!(held.len(), 1, "seed {seed}: beside a reader");
                        held = vec![(granted, false)];
                        pass(&mut waiting);
                        upgraded += 1;
                    }
                    Outcome::Queued => {
                        assert!(held.len() > 1, "seed {seed}: it waits for nobody");
                        upgrades = Some(next);
                    }
                    other => panic!("{other:?}"),
                }
                continue;
            }
            if held.is_empty() {
                continue;
            }
            if let Some(id) = upgrades
                && draw(6) == 0
            {
                world.apply(Command::Withdraw(request(id)));
                upgrades = None;
                denied += 1;
            } else {
                let leaves = draw(held.len() as u64) as usize;
                let (leaves, updates) = held.swap_remove(leaves);
                if updates && let Some(id) = upgrades.take() {
                    world.release(&grant(&leaves));
                    let gone = (request(id), ended(&leaves, Ending::Released));
                    assert!(world.settled().contains(&gone), "seed {seed}");
                } else {
                    world.release(&grant(&leaves));
                }
            }
            for (id, outcome) in world.settled() {
                let Outcome::Granted(granted) = outcome else {
                    continue;
                };
                let number = id.as_bytes()[0];
                if upgrades == Some(number) {
                    assert_eq!(held.len(), 1, "seed {seed}: beside a reader");
                    held = vec![(granted, false)];
                    pass(&mut waiting);
                    upgrades = None;
                    upgraded += 1;
                } else {
                    assert!(
                        upgrades.is_none(),
                        "seed {seed}: {number} passed the upgrade"
                    );
                    let (first, updates, _) = waiting.remove(0);
                    assert_eq!(first, number, "seed {seed}");
                    held.push((granted, updates));
                }
            }
            assert!(held.iter().filter(|(_, updates)| *updates).count() <= 1);
        }
        assert!(waiting.is_empty(), "seed {seed}: {waiting:?}");
    }
    // The control: there was something to see.
    assert!(
        passed > 20 && upgraded > 40 && denied > 5,
        "{passed} {upgraded} {denied}"
    );
}

#[test]
fn a_client_is_named_beside_the_mode_that_it_has() {
    let (world, _, _) = beside_a_reader();
    let view = world.machine.view("x", world.now).unwrap();
    let readers: Vec<_> = view
        .readers
        .iter()
        .map(|reader| (reader.holder.client.clone(), reader.update))
        .collect();
    assert_eq!(readers, [(client_id("u"), true), (client_id("r"), false)]);
    assert_eq!(view.holder.unwrap().remaining, ms(TTL_MS));
}
