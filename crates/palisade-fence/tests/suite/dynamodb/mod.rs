//! Both forms against DynamoDB as served by `moto`, which evaluates conditions and transactions
//! (`the_server_evaluates_conditions_and_transactions`).
//!
//! `PALISADE_DYNAMODB_ROUNDS` sets the rounds of the races and of the late writes (default 100, about half
//! a minute; 1,000 is the full battery).

mod limits;
mod lost_answers;
mod operator;
mod server;
mod subject;
mod transactions;

use crate::held;
use aws_sdk_dynamodb::types::AttributeValue;
use palisade_core::Token;
use palisade_fence::conformance::{self, Habit, Subject};
use palisade_fence::{Fence, Mode, Pass, Rule};
use palisade_testbed::{Moto, Proxy};
use server::{Sent, client, table, table_at};
use subject::{Items, Transactions};

const TEXTBOOK: Rule = Rule {
    mode: Mode::Textbook,
    ..Rule::CLAIM
};

fn rounds() -> u64 {
    std::env::var("PALISADE_DYNAMODB_ROUNDS").map_or(100, |text| text.parse().unwrap())
}

fn habit() -> Habit {
    Habit {
        rounds: rounds(),
        ..Habit::CLAIM
    }
}

fn pass(token: u64) -> Pass<'static> {
    Pass::new(Token::new(token).unwrap())
}

fn text(text: &str) -> AttributeValue {
    AttributeValue::S(text.to_owned())
}

async fn items(name: &str, rule: Rule) -> Items {
    Items {
        client: table(name, false).await,
        table: name.to_owned(),
        rule,
    }
}

async fn transactions(name: &str, rule: Rule) -> Transactions {
    Transactions {
        client: table(name, false).await,
        table: name.to_owned(),
        rule,
    }
}

#[tokio::test]
async fn an_item_with_its_fence_conforms() {
    let items = items("item_conforms", Rule::CLAIM).await;
    let report = conformance::run(&items, habit()).await;
    report.assert_passed();
    // `moto` keeps everything in memory, so no data is left after a kill.
    assert_eq!(report.left_out(), ["acknowledged_writes_survive_a_crash"]);
}

#[tokio::test]
async fn a_guard_item_in_a_transaction_conforms() {
    let transactions = transactions("guard_conforms", Rule::CLAIM).await;
    let report = conformance::run(&transactions, habit()).await;
    report.assert_passed();
    // A resource that was never claimed looks the same as one whose guard item was lost.
    assert_eq!(
        report.left_out(),
        [
            "acknowledged_writes_survive_a_crash",
            "data_without_its_fence_is_refused"
        ]
    );
}

async fn lost_in_flight<S: Subject>(subject: impl Fn(aws_sdk_dynamodb::Client) -> S) -> u64
where
    S::Fence: Fence + Clone + 'static,
{
    let relay = Proxy::to(Moto::shared().address());
    let direct = subject(client(&Moto::shared().url(), Sent::default()));
    let url = format!("http://{}", relay.addr());
    let relayed = subject(client(&url, Sent::default()));
    let old = relayed.fresh("counter").await.unwrap();
    let new = direct.fresh("counter").await.unwrap();
    held::lost(&old, &new, &relay, held::Sent::OnANewConnection, rounds()).await
}

#[tokio::test]
async fn a_claim_loses_no_write_held_in_flight() {
    let (name, rule) = ("item_held", Rule::CLAIM);
    table(name, false).await;
    let lost = lost_in_flight(|client| Items {
        client,
        table: name.to_owned(),
        rule,
    });
    assert_eq!(lost.await, 0);
    let name = "guard_held";
    table(name, false).await;
    let lost = lost_in_flight(|client| Transactions {
        client,
        table: name.to_owned(),
        rule,
    });
    assert_eq!(lost.await, 0);
}

#[tokio::test]
async fn the_textbook_fence_loses_every_write_held_in_flight() {
    let name = "textbook_held";
    table(name, false).await;
    let lost = lost_in_flight(|client| Items {
        client,
        table: name.to_owned(),
        rule: TEXTBOOK,
    });
    assert_eq!(lost.await, rounds(), "the control arm lost too little");
}

/// Four clients add one to the same item, each addition on the condition that no other write came in between.
/// Returns how many acknowledged additions, of at most `tries`, are missing from the item. It stops when some
/// are lost.
async fn lost_by_the_server(client: &aws_sdk_dynamodb::Client, tries: u64) -> u64 {
    let number = |n: u64| AttributeValue::N(n.to_string());
    let put = client.put_item().table_name("raced").item("id", text("x"));
    put.item("n", number(0)).send().await.unwrap();
    let value = |client: aws_sdk_dynamodb::Client| async move {
        let get = client.get_item().table_name("raced").key("id", text("x"));
        let item = get.consistent_read(true).send().await.unwrap().item;
        item.unwrap()["n"].as_n().unwrap().parse::<u64>().unwrap()
    };
    let adds = |client: aws_sdk_dynamodb::Client| async move {
        let mut acknowledged = 0;
        for _ in 0..10 {
            let old = value(client.clone()).await;
            let add = client
                .update_item()
                .table_name("raced")
                .key("id", text("x"))
                .update_expression("SET n = :new")
                .condition_expression("n = :old")
                .expression_attribute_values(":new", number(old + 1))
                .expression_attribute_values(":old", number(old));
            match add.send().await.map_err(|e| e.into_service_error()) {
                Ok(_) => acknowledged += 1,
                Err(refused) if refused.is_conditional_check_failed_exception() => {}
                Err(other) => panic!("{other:?}"),
            }
        }
        acknowledged
    };
    let (mut tried, mut acknowledged, mut lost) = (0, 0, 0);
    while tried < tries && lost == 0 {
        let all: Vec<_> = (0..4).map(|_| tokio::spawn(adds(client.clone()))).collect();
        for one in all {
            acknowledged += one.await.unwrap();
        }
        tried += 40;
        lost = acknowledged - value(client.clone()).await;
    }
    lost
}

#[tokio::test]
async fn the_server_checks_and_writes_in_one_step() {
    let client = table("raced", false).await;
    assert_eq!(lost_by_the_server(&client, 4 * rounds()).await, 0);
}

/// `moto` with its own threads: the reason why the testbed serves it one request at a time.
#[tokio::test]
async fn a_server_that_checks_and_writes_in_two_steps_is_found() {
    let moto = Moto::concurrent();
    let client = table_at(&moto.url(), "raced", false).await;
    assert_ne!(lost_by_the_server(&client, 40_000).await, 0);
}

/// The control of all these tests: the server evaluates conditions, and a transaction is all or nothing.
#[tokio::test]
async fn the_server_evaluates_conditions_and_transactions() {
    let client = table("honest", false).await;
    let put = |id: &str, condition: &str| {
        let put = client.put_item().table_name("honest").item("id", text(id));
        put.condition_expression(condition).send()
    };
    put("a", "attribute_not_exists(id)").await.unwrap();
    let again = put("a", "attribute_not_exists(id)").await.unwrap_err();
    let again = again.into_service_error();
    assert!(again.is_conditional_check_failed_exception(), "{again:?}");

    let put = |id: &str| {
        let put = aws_sdk_dynamodb::types::Put::builder()
            .table_name("honest")
            .item("id", text(id))
            .condition_expression("attribute_not_exists(id)");
        aws_sdk_dynamodb::types::TransactWriteItem::builder()
            .put(put.build().unwrap())
            .build()
    };
    let both = client.transact_write_items();
    let both = both.transact_items(put("b")).transact_items(put("a"));
    let canceled = both.send().await.unwrap_err().into_service_error();
    assert!(canceled.is_transaction_canceled_exception(), "{canceled:?}");
    let b = client.get_item().table_name("honest").key("id", text("b"));
    assert_eq!(b.send().await.unwrap().item, None, "half a transaction");
}

#[tokio::test]
async fn every_read_is_strongly_consistent() {
    table("consistent", false).await;
    let sent = Sent::default();
    let client = client(&Moto::shared().url(), sent.clone());
    let items = Items {
        client,
        table: "consistent".to_owned(),
        rule: Rule::CLAIM,
    };
    let item = items.fresh("r").await.unwrap().0;
    item.claim(pass(1)).await.unwrap();
    item.read(pass(1)).await.unwrap();
    item.read(pass(2)).await.unwrap();
    item.observe().await.unwrap();
    item.show().await.unwrap();
    let reads = sent.all("GetItem");
    assert!(reads.len() >= 5, "{reads:?}");
    for read in reads {
        assert_eq!(read["ConsistentRead"], true, "{read}");
    }
}
