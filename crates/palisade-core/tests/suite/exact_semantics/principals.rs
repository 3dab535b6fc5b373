//! Principals (I5): client ids, request ids and leases live under them.

use palisade_core::{Command, Ending, Entry, GrantRef, Machine, Outcome, Under, limits};

use crate::world::{
    TTL_MS, World, ask, grant, key, lock_name, ms, principal, request, tokenless, wall,
};

const NOBODY: u8 = 0;
const ADA: u8 = 1;
const EVE: u8 = 2;

/// A world in which Ada holds `orders` as the client `a`, by request 1; and her grant.
fn held() -> (World, palisade_core::Granted) {
    let mut world = World::new();
    world.by = principal(ADA);
    let granted = world.granted(ask("orders", "a").request(1));
    (world, granted)
}

fn is_refused(outcome: &Outcome) -> bool {
    matches!(outcome, Outcome::WrongPrincipal { .. })
}

#[test]
fn a_client_id_of_another_principal_supersedes_nothing() {
    let (mut world, first) = held();
    for by in [EVE, NOBODY] {
        world.by = principal(by);
        let denied = world.acquire(ask("orders", "a"));
        assert!(matches!(denied, Outcome::Held(_)), "{denied:?}");
    }
    world.by = principal(ADA);
    let second = world.granted(ask("orders", "a"));
    assert!(second.token > first.token);
}

#[test]
fn a_right_key_of_another_principal_is_refused_by_name_and_changes_nothing() {
    let (mut world, granted) = held();
    let grant = grant("orders", &granted);
    let before: Vec<_> = world.machine.records().collect();
    for by in [EVE, NOBODY] {
        world.by = principal(by);
        for command in [
            Command::Renew {
                grant: grant.clone(),
                ttl: None,
            },
            Command::Release(grant.clone()),
            Command::Release(tokenless("orders", &granted)),
            // Another lock under the lease, and a downgrade.
            Command::Acquire(ask("other", "a").under(granted.key).with_key(key(99))),
            Command::Acquire(
                ask("orders", "a")
                    .under(granted.key)
                    .shared()
                    .with_key(key(99)),
            ),
        ] {
            let applied = world.applied(command.clone());
            assert!(is_refused(&applied.outcome), "{command:?}: {applied:?}");
            assert!(!applied.changed, "{command:?}");
        }
    }
    assert_eq!(world.machine.records().collect::<Vec<_>>(), before);
    world.by = principal(ADA);
    assert!(matches!(world.renew(&grant), Outcome::Renewed(_)));
    assert!(matches!(world.release(&grant), Outcome::Released { .. }));
}

#[test]
fn a_readers_grant_and_permits_are_not_for_another_principal() {
    for wish in [
        ask("orders", "a").shared(),
        ask("orders", "a").permits(1, 2),
    ] {
        let mut world = World::new();
        world.by = principal(ADA);
        let granted = world.granted(wish);
        let grant = tokenless("orders", &granted);
        for by in [EVE, NOBODY] {
            world.by = principal(by);
            assert!(is_refused(&world.renew(&grant)));
            assert!(is_refused(&world.release(&grant)));
        }
        world.by = principal(ADA);
        assert!(matches!(world.release(&grant), Outcome::Released { .. }));
    }
}

#[test]
fn a_request_id_answers_its_own_principal_only() {
    let (mut world, granted) = held();
    world.by = principal(EVE);
    let again = world.acquire(ask("orders", "a").request(1));
    assert!(matches!(again, Outcome::Held(_)), "{again:?}");
    // Another principal that knows the id can neither use it up nor give the grant back.
    assert_eq!(world.apply(Command::Abandon(request(1))), Outcome::Done);
    world.by = principal(ADA);
    let again = world.granted(ask("orders", "a").request(1));
    assert_eq!((again.token, again.key), (granted.token, granted.key));
}

#[test]
fn requests_with_one_id_wait_side_by_side() {
    let (mut world, granted) = held();
    for by in [EVE, NOBODY] {
        world.by = principal(by);
        world.queued(ask("orders", "a").wait(60_000).request(7));
    }
    assert_eq!(world.machine.waiters(), 2);
    world.by = principal(NOBODY);
    world.apply(Command::Withdraw(request(7)));
    assert_eq!(world.machine.waiters(), 1, "only its own");
    world.by = principal(ADA);
    world.release(&grant("orders", &granted));
    let settled = world.effects.iter().find_map(|effect| match effect {
        palisade_core::Effect::Settled { by, outcome, .. } => Some((*by, outcome.clone())),
        palisade_core::Effect::Event(_) => None,
    });
    let (by, outcome) = settled.unwrap();
    assert_eq!(by, principal(EVE));
    assert!(matches!(outcome, Outcome::Granted(_)));
}

/// Leases in a directory from before the access rules belong to the anonymous principal.
#[test]
fn an_anonymous_lease_is_its_key_holders_until_it_ends_and_superseded_by_nobody_known() {
    let mut world = World::new();
    let granted = world.granted(ask("orders", "a"));
    let grant = grant("orders", &granted);
    world.by = principal(ADA);
    assert!(matches!(world.renew(&grant), Outcome::Renewed(_)));
    assert!(matches!(
        world.acquire(ask("orders", "a")),
        Outcome::Held(_)
    ));
    let under = world.acquire(ask("other", "a").under(granted.key));
    assert!(is_refused(&under), "{under:?}");
    assert!(matches!(world.release(&grant), Outcome::Released { .. }));

    world.by = principal(NOBODY);
    world.granted(ask("orders", "a"));
    world.by = principal(ADA);
    world.pass(ms(TTL_MS));
    world.granted(ask("orders", "a"));
}

#[test]
fn an_operator_breaks_by_right_and_not_by_principal() {
    let (mut world, granted) = held();
    world.by = principal(EVE);
    let broken = world.apply(Command::Revoke {
        lock: crate::world::lock_name("orders"),
        token: granted.token,
        reason: "stuck".into(),
    });
    assert!(matches!(broken, Outcome::Revoked { .. }));
    world.by = principal(ADA);
    let told = world.renew(&grant("orders", &granted));
    assert!(
        matches!(
            told,
            Outcome::Ended {
                how: Ending::Revoked,
                ..
            }
        ),
        "{told:?}"
    );
}

#[test]
fn a_restored_machine_knows_whose_everything_is() {
    let (mut world, granted) = held();
    assert!(names_principals(&world.machine));
    world.by = principal(EVE);
    world.queued(ask("orders", "a").wait(60_000).request(7));
    world.machine = Machine::restore(3, world.machine.records()).unwrap();
    let refused = world.renew(&grant("orders", &granted));
    assert!(is_refused(&refused), "{refused:?}");
    world.by = principal(ADA);
    world.apply(Command::Abandon(request(7)));
    assert_eq!(world.machine.waiters(), 1, "it is another principal's");
    let again = world.granted(ask("orders", "a").request(1));
    assert_eq!(again.token, granted.token);
}

#[test]
fn a_bound_for_a_client_is_for_each_principal() {
    let mut world = World::with(palisade_core::Limits {
        waiters_per_client: 1,
        ..palisade_core::Limits::DEFAULT
    });
    world.granted(ask("orders", "x"));
    for by in [ADA, EVE] {
        world.by = principal(by);
        world.queued(ask("orders", "a").wait(60_000).request(1));
        let more = world.acquire(ask("orders", "a").wait(60_000).request(2));
        assert!(matches!(more, Outcome::QueueFull(_)), "{more:?}");
    }
}

#[test]
fn a_machine_without_principals_says_so() {
    let mut world = World::new();
    world.granted(ask("orders", "a").request(1));
    assert!(!names_principals(&world.machine));
    let acquire = ask("other", "b").request(2).with_key(key(50));
    assert!(matches!(acquire.under, Under::New { .. }));
    world.by = principal(ADA);
    world.apply(Command::Acquire(acquire));
    assert!(names_principals(&world.machine));
}

fn names_principals(machine: &Machine) -> bool {
    machine.records().any(|record| !record.by().is_anonymous())
}

/// A principal that ends more grants than are remembered makes the authority forget its own endings, of which the first
/// is the control, and nobody else's. Without shares Ada's release, asked again, is `not_held`, as if she had lost the lock.
#[test]
fn what_one_ends_makes_nobody_forget_how_anothers_grant_ended() {
    let (mut world, first) = held();
    let late = grant("orders", &first);
    world.apply(Command::Revoke {
        lock: lock_name("orders"),
        token: first.token,
        reason: "stuck".into(),
    });
    let released = world.granted(ask("ledger", "a"));
    let released = grant("ledger", &released);
    world.release(&released);
    let ends = |world: &mut World, number: u32| {
        let lock = lock_name("eves");
        let key = key(number);
        let token = None;
        let grant = GrantRef { lock, key, token };
        let commands = [
            Command::Acquire(ask("eves", "e").with_key(key)),
            Command::Release(grant.clone()),
        ];
        for command in commands {
            as_eve(world, command);
        }
        grant
    };
    let own_first = ends(&mut world, 1_000);
    let before = world.machine.revision();
    let flood = u32::try_from(limits::REMEMBERED).unwrap();
    (1_001..=1_000 + flood).for_each(|number| {
        ends(&mut world, number);
    });
    assert_eq!(world.machine.revision(), before + 2 * u64::from(flood));
    let ended = |token, how| Outcome::Ended { token, how };
    let (mut copy, records) = (World::new(), world.machine.records());
    copy.machine = Machine::restore(5, records).unwrap();
    copy.now = world.now;
    copy.by = world.by;
    for mut world in [world, copy] {
        let own_first = Command::Release(own_first.clone());
        assert_eq!(as_eve(&mut world, own_first), Outcome::NotHeld);
        let revoked = ended(first.token, Ending::Revoked);
        assert_eq!(world.renew(&late), revoked);
        assert_eq!(world.release(&late), revoked);
        assert_eq!(world.acquire(ask("other", "a").under(first.key)), revoked);
        assert_eq!(world.acquire(ask("orders", "a").request(1)), revoked);
        assert_eq!(world.holder("orders"), None);
        let again = world.release(&released);
        assert_eq!(again, ended(released.token.unwrap(), Ending::Released));
    }
}

fn as_eve(world: &mut World, command: Command) -> Outcome {
    let entry = Entry {
        at: world.now,
        wall: wall(world.now),
        by: principal(EVE),
        command,
    };
    world.effects.clear();
    world.machine.apply(entry, &mut world.effects).outcome
}
