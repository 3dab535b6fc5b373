//! The forced schedule: the old holder's write is held back on the wire, and arrives between the new
//! holder's read and its write.

use std::sync::Arc;

use palisade_core::Token;
use palisade_fence::postgres::Strategy;
use palisade_fence::{Change, Checked, Fence as _, Mode, Pass, Rule, Write};
use palisade_testbed::{Direction, Postgres, Proxy};

use super::drivers::{Driver, Sqlx, Tokio};
use super::forms::Form;
use super::subject::{Resource, Subject};

const KEY: &str = "/ledger";

/// The number of rounds, unless `PALISADE_LATE_WRITES` overrides it: 1,000 is the full battery for every
/// form.
fn rounds(usual: u64) -> u64 {
    let told = std::env::var("PALISADE_LATE_WRITES").ok();
    told.map_or(usual, |text| text.parse().unwrap())
}

fn pass(token: u64) -> Pass<'static> {
    Pass::new(Token::new(token).unwrap())
}

async fn start<D: Driver>(at: &Resource<D>, token: u64) -> u64 {
    assert!(at.claim(pass(token)).await.unwrap().is_admitted());
    match at.read(pass(token), KEY).await.unwrap() {
        Checked::Admitted(read) => read.value.map_or(0, |bytes| {
            String::from_utf8(bytes).unwrap().parse().unwrap()
        }),
        Checked::Rejected(reject) => panic!("{reject}"),
    }
}

async fn adds<D: Driver>(at: &Resource<D>, token: u64, before: u64) -> bool {
    let text = (before + 1).to_string();
    let write = Write::new(KEY, Change::Put(text.as_bytes()));
    at.write(pass(token), write).await.unwrap().is_admitted()
}

/// Returns how many rounds lost an acknowledged addition.
async fn lost<D: Driver>(form: Form, rounds: u64) -> u64 {
    let server = Postgres::shared();
    let subject = Subject::<D>::new(&server.url(), form).await;
    let proxy = Proxy::to(server.address());
    let slow = subject
        .url
        .replace(&server.address().to_string(), &proxy.addr().to_string());
    assert_ne!(slow, subject.url, "the old holder goes through the relay");
    let new = subject.resource("late", &subject.url).await;
    let old = Arc::new(new.over(&slow));
    let mut lost = 0;
    for round in 0..rounds {
        let (a, b) = (2 * round + 1, 2 * round + 2);
        let before = start(&old, a).await;
        proxy.hold(Direction::Forth);
        let held = Arc::clone(&old);
        let late = tokio::spawn(async move { adds(&held, a, before).await });
        let seen = start(&new, b).await;
        proxy.let_go(Direction::Forth);
        let late = late.await.unwrap();
        let fresh = adds(&new, b, seen).await;
        let after = start(&new, b).await;
        lost += (before + u64::from(late) + u64::from(fresh)).saturating_sub(after);
    }
    lost
}

#[tokio::test(flavor = "multi_thread")]
async fn the_textbook_loses_every_late_write() {
    let rule = Rule {
        mode: Mode::Textbook,
        ..Rule::CLAIM
    };
    let rounds = rounds(1_000);
    assert_eq!(lost::<Tokio>(Form::Guard(rule), rounds).await, rounds);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_claimed_guard_row_loses_none_through_tokio_postgres() {
    assert_eq!(
        lost::<Tokio>(Form::Guard(Rule::CLAIM), rounds(1_000)).await,
        0
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn the_claimed_guard_row_loses_none_through_sqlx() {
    assert_eq!(lost::<Sqlx>(Form::Guard(Rule::CLAIM), rounds(100)).await, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_claimed_columns_lose_none() {
    for strategy in [Strategy::Optimistic, Strategy::Pessimistic] {
        assert_eq!(lost::<Tokio>(Form::Column(strategy), rounds(100)).await, 0);
        assert_eq!(lost::<Sqlx>(Form::Records(strategy), rounds(100)).await, 0);
    }
}
