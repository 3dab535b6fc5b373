//! Operations for operators: look, list, re-arm.

use aws_sdk_dynamodb::types::AttributeValue;
use palisade_core::Token;
use palisade_fence::conformance::Subject;
use palisade_fence::dynamodb::Guards;
use palisade_fence::{Admin, Error, Listed, Rearm, Reject, Rule};

use super::server::table;
use super::{items, pass, text};

fn floor(token: u64) -> Rearm<'static> {
    Rearm {
        floor: Token::new(token).unwrap(),
        authority: None,
        lower_from: None,
    }
}

#[tokio::test]
async fn an_existing_item_is_armed_and_keeps_its_attributes() {
    let items = items("before", Rule::CLAIM).await;
    let before = items.client.put_item().table_name("before");
    let before = before.item("id", text("r")).item("name", text("x"));
    before.send().await.unwrap();
    let item = items.fresh("r").await.unwrap().0;
    let refused = item.claim(pass(6)).await;
    assert!(matches!(refused, Err(Error::FenceLost(_))), "{refused:?}");
    item.rearm(&floor(9)).await.unwrap();
    let low = item.claim(pass(8)).await.unwrap_err();
    assert!(matches!(low.rejected(), Some(Reject::Stale { .. })));
    let read = item.read(pass(9)).await.unwrap().value;
    assert_eq!(read.unwrap()["name"], text("x"));

    let refused = item.rearm(&floor(3)).await;
    assert!(matches!(refused, Err(Error::FloorTooLow(_))), "{refused:?}");
    let poisoned = Rearm {
        lower_from: Token::new(9).ok(),
        ..floor(3)
    };
    item.rearm(&poisoned).await.unwrap();
    item.claim(pass(3)).await.unwrap();
}

#[tokio::test]
async fn guards_are_listed_by_pages_in_name_order_among_other_items() {
    let client = table("listed", false).await;
    let other = client.put_item().table_name("listed");
    let other = other
        .item("id", text("a/0"))
        .item("n", AttributeValue::N("1".to_owned()));
    other.send().await.unwrap();
    let mut guards = Guards::new(client, "listed", "id", Rule::CLAIM);
    for name in ["b", "a/2", "a/1"] {
        let guard = guards.guard(name).unwrap();
        guard.claim(pass(7)).await.unwrap();
    }
    let names = |listed: Vec<Listed>| -> Vec<String> {
        listed.into_iter().map(|listed| listed.resource).collect()
    };
    let all = names(guards.list("", None, 10).await.unwrap());
    assert_eq!(all, ["a/1", "a/2", "b"]);
    let page = names(guards.list("a/", Some("a/1"), 1).await.unwrap());
    assert_eq!(page, ["a/2"]);
    assert_eq!(guards.show("nobody").await.unwrap(), None);
    guards.rearm("b", &floor(20)).await.unwrap();
    let shown = guards.show("b").await.unwrap().unwrap();
    assert_eq!(shown.highest(), Token::new(20).ok());
}
