//! The forced schedule: the old holder's write is held back on the wire, and arrives between the new
//! holder's read and its write.

use std::sync::Arc;

use palisade_core::Token;
use palisade_fence::{Edit, Fence as _, Mode, Pass, Rule, Write, conformance};
use palisade_testbed::{Direction, Proxy, Redis};

use super::rule;
use super::subject::{Form, Resource, Subject, connect};

const KEY: &str = "/ledger";
const ROUNDS: u64 = 1_000;

fn pass(token: u64) -> Pass<'static> {
    Pass::new(Token::new(token).unwrap())
}

async fn start(at: &Resource, token: u64) -> u64 {
    at.claim(pass(token)).await.unwrap();
    let read = at.read(pass(token), KEY).await.unwrap();
    read.value.map_or(0, |bytes| {
        String::from_utf8(bytes).unwrap().parse().unwrap()
    })
}

async fn adds(at: &Resource, token: u64, before: u64) -> bool {
    let text = (before + 1).to_string();
    let write = Write::new(KEY, Edit::Put(text.as_bytes()));
    at.write(pass(token), write).await.is_ok()
}

/// Returns how many rounds lost an acknowledged addition.
async fn lost(form: Form) -> u64 {
    let server = Redis::start(&[]);
    let subject = Subject::new(&server, form).await;
    let proxy = Proxy::to(server.address());
    let slow = connect(&format!("redis://{}", proxy.addr())).await;
    let new = subject.resource("late", subject.connection.clone());
    let old = Arc::new(subject.resource("late", slow));
    let mut lost = 0;
    for round in 0..ROUNDS {
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
    assert_eq!(lost(Form::Strings(rule(Mode::Textbook))).await, ROUNDS);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_claim_loses_none() {
    assert_eq!(lost(Form::Strings(Rule::CLAIM)).await, 0);
    assert_eq!(lost(Form::Objects(Rule::CLAIM)).await, 0);
}

/// With a comparison in the client, the check and the write are two steps: a writer that is frozen between
/// them overwrites its successor's write.
#[tokio::test]
async fn a_check_in_the_client_loses_the_write_of_the_next() {
    let server = Redis::start(&[]);
    let subject = Subject::new(&server, Form::Naive).await;
    let habit = conformance::Habit {
        authorities: false,
        numbers: false,
        ..conformance::Habit::CLAIM
    };
    let report = conformance::run(&subject, habit).await;
    let frozen = "a_frozen_writer_loses_nothing";
    assert!(report.failed().contains(&frozen), "{report}");
}
