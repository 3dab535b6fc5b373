//! The counter: one for all locks, in grant order, never reset (rule A2).

use palisade_core::{Command, LeaseId, Outcome, Token};

use crate::world::{World, ask, grant, ms, token};

#[test]
fn first_token_is_1_and_the_counter_reads_2_after_one_grant() {
    let mut world = World::new();
    assert_eq!(world.machine.next_token(), Some(token(1)));
    let a = world.granted(ask("orders", "a"));
    assert_eq!((a.token, a.lease), (token(1), LeaseId(token(1))));
    assert_eq!(world.machine.next_token(), Some(token(2)));
}

#[test]
fn tokens_rise_across_different_lock_names() {
    let mut world = World::new();
    let tokens = ["x", "y", "x2", "z"].map(|lock| world.granted(ask(lock, "a")).token.get());
    assert_eq!(tokens, [1, 2, 3, 4]);
}

#[test]
fn a_free_lock_forgets_its_name_but_not_its_tokens() {
    let mut world = World::new();
    let first = world.granted(ask("orders", "a"));
    world.release(&grant("orders", &first));
    assert_eq!(world.machine.locks(), 0);
    assert_eq!(world.granted(ask("orders", "a")).token, token(2));
}

#[test]
fn a_denial_draws_no_token() {
    let mut world = World::new();
    world.granted(ask("orders", "a"));
    world.acquire(ask("orders", "b"));
    world.queued(ask("orders", "c").wait(1_000).request(1));
    assert_eq!(world.machine.next_token(), Some(token(2)));
}

#[test]
fn a_leap_moves_the_counter_and_touches_no_grant() {
    let mut world = World::new();
    let a = world.granted(ask("orders", "a"));
    assert_eq!(world.apply(Command::Leap { by: 1 << 44 }), Outcome::Done);
    assert_eq!(world.machine.next_token(), Some(token(2 + (1 << 44))));
    assert!(matches!(
        world.renew(&grant("orders", &a)),
        Outcome::Renewed(_)
    ));
}

/// A world with only the last token of the range left.
fn at_the_end() -> World {
    let mut world = World::new();
    assert_eq!(
        world.apply(Command::Leap {
            by: Token::MAX.get() - 1
        }),
        Outcome::Done
    );
    assert_eq!(world.machine.next_token(), Some(Token::MAX));
    world
}

#[test]
fn the_last_token_is_granted_and_then_tokens_are_exhausted() {
    let mut world = at_the_end();
    let last = world.granted(ask("orders", "a"));
    assert_eq!((last.token, world.machine.next_token()), (Token::MAX, None));
    assert_eq!(world.acquire(ask("seats", "a")), Outcome::TokensExhausted);
    assert_eq!(
        world.acquire(ask("orders", "a")),
        Outcome::TokensExhausted,
        "nor taken back"
    );
    assert_eq!(
        world.held_by("orders"),
        Some((Token::MAX.get(), "a".into()))
    );
    let last = grant("orders", &last);
    assert!(
        matches!(world.renew(&last), Outcome::Renewed(_)),
        "who holds still renews"
    );
    assert_eq!(
        world.release(&last),
        Outcome::Released {
            token: Token::MAX,
            delayed: None,
        }
    );
    assert_eq!(world.acquire(ask("orders", "b")), Outcome::TokensExhausted);
}

#[test]
fn waiters_learn_that_tokens_are_exhausted() {
    let mut world = at_the_end();
    let last = world.granted(ask("orders", "a"));
    world.queued(ask("orders", "b").wait(1_000).request(1));
    world.queued(ask("orders", "c").wait(1_000).request(2));
    world.release(&grant("orders", &last));
    let outcomes: Vec<Outcome> = world
        .settled()
        .into_iter()
        .map(|(_, outcome)| outcome)
        .collect();
    assert_eq!(
        outcomes,
        [Outcome::TokensExhausted, Outcome::TokensExhausted]
    );
    assert_eq!(world.machine.locks(), 0);
}

#[test]
fn a_leap_past_the_range_exhausts_it_rather_than_wrap() {
    let mut world = World::new();
    for by in [Token::MAX.get(), u64::MAX, 0] {
        assert_eq!(world.apply(Command::Leap { by }), Outcome::TokensExhausted);
    }
    world.pass(ms(1));
    assert_eq!(world.acquire(ask("orders", "a")), Outcome::TokensExhausted);
}
