//! Elections (rules E1, E2 and E4): the holder's value, and how it changes.

use palisade_core::{Change, Command, GrantRef, Invalid, Outcome, limits};

use crate::world::{TTL_MS, World, ask, grant, ms, tokenless};

fn proclaim(grant: &GrantRef, value: &str) -> Command {
    Command::Proclaim {
        grant: grant.clone(),
        value: value.into(),
    }
}

/// The holder's value, as `show` reports it.
fn value(world: &World) -> Option<String> {
    let view = world.machine.view("primary", world.now)?;
    view.metadata.map(String::from)
}

#[test]
fn a_leader_is_elected_with_a_value_and_changes_it_without_a_new_token() {
    let mut world = World::new();
    let leader = world.granted(ask("primary", "a").metadata("10.0.0.1"));
    assert_eq!(value(&world).as_deref(), Some("10.0.0.1"));
    let before = world.machine.next_token();
    let named = grant("primary", &leader);
    let mut last = world.machine.revision();
    for (named, said) in [
        (&named, "10.0.0.2"),
        (&tokenless("primary", &leader), "10.0.0.3"),
        (&named, "10.0.0.3"),
    ] {
        let outcome = world.apply(proclaim(named, said));
        let revision = world.machine.revision();
        let expected = Outcome::Proclaimed {
            token: leader.token,
            revision,
        };
        assert_eq!(outcome, expected);
        assert!(revision > last);
        last = revision;
        assert_eq!(value(&world).as_deref(), Some(said));
        let events = world.events();
        assert_eq!(events.len(), 1);
        assert_eq!(
            (&events[0].change, events[0].token, events[0].revision),
            (&Change::Proclaimed, leader.token, revision)
        );
    }
    assert_eq!(world.machine.next_token(), before);
    let view = world.machine.view("primary", world.now).unwrap();
    assert_eq!(view.revision, Some(last));
}

#[test]
fn an_empty_value_takes_back_what_was_said() {
    let mut world = World::new();
    let leader = world.granted(ask("primary", "a").metadata("here"));
    let outcome = world.apply(proclaim(&grant("primary", &leader), ""));
    assert!(matches!(outcome, Outcome::Proclaimed { .. }));
    assert_eq!(value(&world), None);
}

#[test]
fn the_value_dies_with_the_grant() {
    let mut world = World::new();
    let first = world.granted(ask("primary", "a").metadata("first"));
    let first = grant("primary", &first);
    world.apply(proclaim(&first, "changed"));
    world.queued(ask("primary", "b").wait(60_000).request(1));
    world.release(&first);
    world.handed_over();
    assert_eq!(value(&world), None);
    // A later value of the former leader reaches nobody.
    let late = world.applied(proclaim(&first, "late"));
    assert!(matches!(late.outcome, Outcome::Ended { .. }), "{late:?}");
    assert!(!late.changed);
    assert_eq!(value(&world), None);
}

#[test]
fn at_the_instant_of_expiry_a_leader_says_nothing_any_more() {
    let mut world = World::new();
    let leader = world.granted(ask("primary", "a").metadata("here"));
    let named = grant("primary", &leader);
    world.pass(ms(TTL_MS - 1));
    let outcome = world.apply(proclaim(&named, "still"));
    assert!(matches!(outcome, Outcome::Proclaimed { .. }));
    // A value renews nothing.
    world.pass(ms(1));
    assert_eq!(value(&world), None);
    let outcome = world.apply(proclaim(&named, "too late"));
    assert!(matches!(outcome, Outcome::Ended { .. }), "{outcome:?}");
}

#[test]
fn only_the_holder_of_an_exclusive_grant_proclaims() {
    let mut world = World::new();
    let reader = world.granted(ask("primary", "a").shared());
    let refused = world.applied(proclaim(&grant("primary", &reader), "mine"));
    let expected = Outcome::Invalid(Invalid::ProclaimOfShared);
    assert_eq!((refused.outcome, refused.changed), (expected, false));
    let stranger = world.granted(ask("other", "b"));
    let refused = world.applied(proclaim(&grant("primary", &stranger), "mine"));
    assert_eq!(
        (refused.outcome, refused.changed),
        (Outcome::NotHeld, false)
    );
}

#[test]
fn a_value_has_a_bound() {
    let mut world = World::new();
    let leader = world.granted(ask("primary", "a").metadata("here"));
    let named = grant("primary", &leader);
    let most = "x".repeat(limits::METADATA_BYTES);
    let outcome = world.apply(proclaim(&named, &most));
    assert!(matches!(outcome, Outcome::Proclaimed { .. }));
    let refused = world.applied(proclaim(&named, &format!("{most}x")));
    assert!(matches!(
        refused.outcome,
        Outcome::Invalid(Invalid::TooLong { what: "value", .. })
    ));
    assert!(!refused.changed);
    assert_eq!(value(&world), Some(most));
}
