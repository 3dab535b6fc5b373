//! Writes that took effect but whose answer was lost: the SDK sends them again by itself.

use std::sync::Arc;
use std::time::Duration;

use palisade_fence::conformance::Subject;
use palisade_fence::{Edit, Fence, Rule, Write};
use palisade_testbed::{Direction, Moto, Proxy};

use super::pass;
use super::server::{Sent, client, table};
use super::subject::{Items, Transactions};

const KEY: &str = "/log";

/// Appends without a number, and loses the answer; returns the final content, and how often the write was
/// sent.
async fn append_and_lose<S: Subject>(
    operation: &'static str,
    subject: impl Fn(aws_sdk_dynamodb::Client) -> S,
) -> (Vec<u8>, usize)
where
    S::Fence: Fence + 'static,
{
    let relay = Arc::new(Proxy::to(Moto::shared().address()));
    let sent = Sent::default();
    let url = format!("http://{}", relay.addr());
    let relayed = subject(client(&url, sent.clone()))
        .fresh("r")
        .await
        .unwrap();
    let direct = subject(client(&Moto::shared().url(), Sent::default()));
    let direct = direct.fresh("r").await.unwrap();
    relayed.claim(pass(1)).await.unwrap();

    let before = sent.all(operation).len();
    let holding = Arc::clone(&relay);
    sent.before_the_next(operation, move || holding.hold(Direction::Back));
    let write = async {
        let append = Write::new(KEY, Edit::Append(b"x"));
        relayed.write(pass(1), append).await
    };
    let cut = async {
        let effect = async { while direct.observe(KEY).await.unwrap().is_none() {} };
        let waited = tokio::time::timeout(Duration::from_secs(30), effect).await;
        waited.expect("the write never took effect");
        relay.break_connections();
        relay.let_go(Direction::Back);
    };
    let (answer, ()) = futures_util::future::join(write, cut).await;
    assert!(answer.is_ok(), "{answer:?}");
    let there = direct.observe(KEY).await.unwrap().unwrap();
    (there, sent.all(operation).len() - before)
}

#[tokio::test]
async fn an_item_recognises_its_own_write() {
    table("item_lost", false).await;
    let (there, sent) = append_and_lose("PutItem", |client| Items {
        client,
        table: "item_lost".to_owned(),
        rule: Rule::CLAIM,
    })
    .await;
    assert_eq!(there, b"x");
    assert_eq!(sent, 2, "the write was sent again");
}

#[tokio::test]
async fn a_transaction_recognises_its_own_write() {
    table("guard_lost", false).await;
    let (there, sent) = append_and_lose("TransactWriteItems", |client| Transactions {
        client,
        table: "guard_lost".to_owned(),
        rule: Rule::CLAIM,
    })
    .await;
    assert_eq!(there, b"x");
    assert_eq!(sent, 2, "the write was sent again");
}
