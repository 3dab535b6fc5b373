//! Writes of several items in one step, and claims of several resources.

use aws_sdk_dynamodb::Client;
use aws_sdk_dynamodb::types::{ConditionCheck, Delete, Get, Put, TransactWriteItem, Update};
use palisade_fence::dynamodb::{Attributes, FENCE, Guards, Item};
use palisade_fence::{Admin as _, Error, Reject, Rule};

use super::server::table;
use super::{pass, text};

fn key(id: &str) -> Attributes {
    Attributes::from([("id".to_owned(), text(id)), ("at".to_owned(), text("now"))])
}

fn put(table: &str, id: &str, value: &str) -> TransactWriteItem {
    let mut item = key(id);
    item.insert("value".to_owned(), text(value));
    let put = Put::builder().table_name(table).set_item(Some(item));
    TransactWriteItem::builder()
        .put(put.build().unwrap())
        .build()
}

fn delete(table: &str, id: &str, condition: Option<&str>) -> TransactWriteItem {
    let delete = Delete::builder()
        .table_name(table)
        .set_key(Some(key(id)))
        .set_condition_expression(condition.map(str::to_owned));
    TransactWriteItem::builder()
        .delete(delete.build().unwrap())
        .build()
}

async fn value(client: &Client, table: &str, id: &str) -> Option<String> {
    let get = client.get_item().table_name(table).set_key(Some(key(id)));
    let item = get.consistent_read(true).send().await.unwrap().item?;
    Some(item["value"].as_s().unwrap().clone())
}

/// One table for all items, with a sort key.
async fn guards(name: &str) -> (Client, Guards) {
    let client = table(name, true).await;
    let guards = Guards::new(client.clone(), name, "id", Rule::CLAIM).with_sort_key("at");
    (client, guards)
}

#[tokio::test]
async fn a_late_write_of_many_items_changes_none() {
    let name = "many";
    let (client, guards) = guards(name).await;
    let orders = guards.guard("orders").unwrap();
    let both = |text| [put(name, "a", text), put(name, "b", text)];
    orders.write(pass(1), None, &both("one")).await.unwrap();
    orders.claim(pass(2)).await.unwrap();
    let late = orders
        .write(pass(1), None, &both("late"))
        .await
        .unwrap_err();
    assert!(matches!(late.rejected(), Some(Reject::Stale { .. })));
    for id in ["a", "b"] {
        assert_eq!(value(&client, name, id).await.as_deref(), Some("one"));
    }
    let get = |id| {
        let get = Get::builder().table_name(name).set_key(Some(key(id)));
        get.build().unwrap()
    };
    let gets = [get("b"), get("none"), get("a")];
    let read = orders.read(pass(2), &gets).await.unwrap();
    let read = read.value;
    let there: Vec<bool> = read.iter().map(Option::is_some).collect();
    assert_eq!(there, [true, false, true]);
}

#[tokio::test]
async fn a_condition_of_the_callers_own_is_not_a_rejection() {
    let name = "conditions";
    let (client, guards) = guards(name).await;
    let orders = guards.guard("orders").unwrap();
    let check = ConditionCheck::builder()
        .table_name(name)
        .set_key(Some(key("stock")))
        .condition_expression("attribute_exists(id)");
    let check = TransactWriteItem::builder()
        .condition_check(check.build().unwrap())
        .build();
    let items = [put(name, "a", "one"), check];
    let failed = orders.write(pass(1), None, &items).await;
    assert!(
        matches!(failed, Err(Error::Condition { index: 1 })),
        "{failed:?}"
    );
    assert_eq!(value(&client, name, "a").await, None, "half of the write");

    let items = [put(name, "a", "one")];
    orders.write(pass(1), None, &items).await.unwrap();
    let only_b = delete(name, "a", Some("attribute_exists(b)"));
    let failed = orders.write(pass(1), None, &[only_b]).await;
    assert!(
        matches!(failed, Err(Error::Condition { index: 0 })),
        "{failed:?}"
    );
    let nothing = delete(name, "b", None);
    let missing = orders.write(pass(1), None, &[nothing]).await.unwrap_err();
    assert_eq!(missing.rejected(), Some(&Reject::Missing));
    let items = [delete(name, "a", None)];
    orders.write(pass(1), None, &items).await.unwrap();
}

#[tokio::test]
async fn several_resources_are_claimed_all_or_none() {
    let (_, guards) = guards("several").await;
    let all = |token| [("a", pass(token)), ("b", pass(token)), ("c", pass(token))];
    guards.claim_all(&all(5)).await.unwrap();
    let b = guards.guard("b").unwrap();
    b.claim(pass(9)).await.unwrap();
    let refused = guards.claim_all(&all(7)).await.unwrap_err();
    assert!(matches!(refused.rejected(), Some(Reject::Stale { .. })));
    let a = guards.guard("a").unwrap();
    assert!(a.claim(pass(6)).await.is_ok(), "a was raised");

    let racing = (1..=8).map(|n| {
        let guards = guards.clone();
        tokio::spawn(async move { guards.claim_all(&all(10 + n)).await.is_ok() })
    });
    let mut admitted = 0;
    for racer in racing.collect::<Vec<_>>() {
        admitted += u32::from(racer.await.unwrap());
    }
    assert!(admitted >= 1);
    guards.claim_all(&all(18)).await.unwrap();
}

fn update(table: &str, id: &str, expression: &str, alias: Option<&str>) -> TransactWriteItem {
    let mut update = Update::builder()
        .table_name(table)
        .set_key(Some(key(id)))
        .update_expression(expression)
        .expression_attribute_values(":new", text("x"));
    if let Some(name) = alias {
        update = update.expression_attribute_names("#name", name);
    }
    TransactWriteItem::builder()
        .update(update.build().unwrap())
        .build()
}

/// A guarded write compares one mark. It changes no other one: neither a guard item nor an item with its own fence.
#[tokio::test]
async fn a_guarded_write_changes_no_other_mark() {
    let name = "marks";
    let (client, mut guards) = guards(name).await;
    let orders = guards.guard("orders").unwrap();
    let seat = Item::new(client.clone(), name, key("seat"), Rule::CLAIM).unwrap();
    let book = |seat: &mut Attributes| seat.insert("value".to_owned(), text("Alice")).is_none();
    seat.write(pass(9), None, book).await.unwrap();
    let other = guards.guard("other").unwrap();
    other.claim(pass(9)).await.unwrap();
    let mark = |item: &TransactWriteItem| {
        let mut item = item.clone();
        let put = item.put.as_mut().unwrap();
        put.item.insert("at".to_owned(), text(FENCE));
        item
    };
    let lowered = |item: &TransactWriteItem| {
        let mut item = item.clone();
        let put = item.put.as_mut().unwrap();
        put.item.insert(FENCE.to_owned(), text("{}"));
        item
    };
    let mut removed = delete(name, "palisade_fence#other", None);
    let delete_key = &mut removed.delete.as_mut().unwrap().key;
    delete_key.insert("at".to_owned(), text(FENCE));
    for (what, item) in [
        (
            "replace another guard",
            mark(&put(name, "palisade_fence#other", "x")),
        ),
        ("make a guard", mark(&put(name, "palisade_fence#new", "x"))),
        ("delete another guard", removed),
        (
            "its own guard",
            mark(&put(name, "palisade_fence#orders", "x")),
        ),
        ("replace a fenced item", put(name, "seat", "Bob")),
        ("delete a fenced item", delete(name, "seat", None)),
        ("make a fenced item", lowered(&put(name, "fresh", "Bob"))),
        (
            "update a fenced item",
            update(name, "seat", "SET #name = :new", Some("value")),
        ),
        (
            "lower a fence",
            update(name, "fresh", "SET palisade_fence = :new", None),
        ),
        (
            "by an alias",
            update(name, "fresh", "SET #name = :new", Some(FENCE)),
        ),
    ] {
        let items = [put(name, "a", "one"), item];
        let refused = orders.write(pass(1), None, &items).await;
        assert!(
            matches!(refused, Err(Error::Argument(_))),
            "{what}: {refused:?}"
        );
        assert_eq!(
            value(&client, name, "a").await,
            None,
            "{what}: half of the write"
        );
        assert_eq!(
            value(&client, name, "seat").await.as_deref(),
            Some("Alice"),
            "{what}"
        );
        assert_eq!(
            seat.show().await.unwrap().unwrap().highest(),
            Some(pass(9).token),
            "{what}"
        );
        let state = guards.show("other").await.unwrap().unwrap();
        assert_eq!(state.highest(), Some(pass(9).token), "{what}");
        assert_eq!(guards.show("new").await.unwrap(), None, "{what}");
    }
    // The control: the same calls on items without a fence.
    let items = [
        put(name, "a", "one"),
        update(name, "b", "SET #name = :new", Some("value")),
    ];
    orders.write(pass(1), None, &items).await.unwrap();
    let items = [put(name, "a", "two"), delete(name, "b", None)];
    orders.write(pass(1), None, &items).await.unwrap();
    // Not even the item's own holder can change its mark by a write.
    let lower = |seat: &mut Attributes| seat.insert(FENCE.to_owned(), text("{}")).is_none();
    let refused = seat.write(pass(9), None, lower).await;
    assert!(matches!(refused, Err(Error::Argument(_))), "{refused:?}");
    assert_eq!(
        seat.show().await.unwrap().unwrap().highest(),
        Some(pass(9).token)
    );
}

/// The fence would be written into the key: every claim would make another item, and none would see another one.
#[tokio::test]
async fn a_key_that_is_called_like_the_fence_is_refused() {
    let client = table("key", true).await;
    let key = Attributes::from([(FENCE.to_owned(), text("orders"))]);
    let item = Item::new(client.clone(), "key", key, Rule::CLAIM);
    assert!(matches!(item, Err(Error::Argument(_))), "{item:?}");
    for guards in [
        Guards::new(client.clone(), "key", FENCE, Rule::CLAIM),
        Guards::new(client, "key", "id", Rule::CLAIM).with_sort_key(FENCE),
    ] {
        let guard = guards.guard("orders");
        assert!(matches!(guard, Err(Error::Argument(_))), "{guard:?}");
    }
}
