//! Bad input and damage: the error is clear, and nothing is written.

use aws_sdk_dynamodb::types::{Get, Put, TransactWriteItem};
use palisade_fence::conformance::Subject;
use palisade_fence::dynamodb::{Attributes, Guards, Item};
use palisade_fence::{Admin, Error, Rule};

use super::server::table;
use super::{items, pass, text};

#[tokio::test]
async fn input_out_of_range_is_refused_with_the_allowed_range() {
    let client = table("ranges", false).await;
    let mut guards = Guards::new(client.clone(), "ranges", "id", Rule::CLAIM);
    for bad in ["", &"x".repeat(256), "line\nend"] {
        let refused = guards.guard(bad).map(|_| ());
        assert!(matches!(refused, Err(Error::Name(_))), "{bad:?}");
    }
    for attributes in [0, 3] {
        let key: Attributes = (0..attributes)
            .map(|n| (format!("k{n}"), text("x")))
            .collect();
        let refused = Item::new(client.clone(), "ranges", key, Rule::CLAIM);
        let message = refused.unwrap_err().to_string();
        assert!(message.ends_with("1 ..= 2 are allowed"), "{message}");
    }
    let guard = guards.guard("r").unwrap();
    let put = Put::builder().table_name("ranges").item("id", text("x"));
    let put = TransactWriteItem::builder()
        .put(put.build().unwrap())
        .build();
    let get = Get::builder().table_name("ranges").key("id", text("x"));
    let get = get.build().unwrap();
    for items in [0, 100] {
        let puts = vec![put.clone(); items];
        let refused = guard.write(pass(1), None, &puts).await;
        let message = refused.unwrap_err().to_string();
        assert!(
            message.ends_with("1 ..= 99 are allowed at once"),
            "{message}"
        );
        let refused = guard.read(pass(1), &vec![get.clone(); items]).await;
        assert!(matches!(refused, Err(Error::Argument(_))), "{refused:?}");
    }
    for claims in [vec![], vec![("r", pass(1)), ("r", pass(2))]] {
        let refused = guards.claim_all(&claims).await;
        assert!(matches!(refused, Err(Error::Argument(_))), "{refused:?}");
    }
    let shown = guards.show("r").await.unwrap();
    assert_eq!(shown, None, "nothing was written");
}

/// A put replaces them, so the caller's value would be lost without a word. The control is the key as it is.
#[tokio::test]
async fn an_attribute_of_the_fence_or_of_another_key_is_refused() {
    let items = items("attributes", Rule::CLAIM).await;
    let item = items.fresh("r").await.unwrap().0;
    let write = async |name: &str, value: &str| {
        let put = (name.to_owned(), text(value));
        let change = move |attributes: &mut Attributes| {
            attributes.extend([("n".to_owned(), text("1")), put.clone()]);
            true
        };
        item.write(pass(5), None, change).await
    };
    for (name, value) in [("palisade_fence", "{}"), ("id", "another")] {
        let refused = write(name, value).await;
        assert!(matches!(refused, Err(Error::Argument(_))), "{refused:?}");
        assert_eq!(item.observe().await.unwrap(), None);
        assert_eq!(item.show().await.unwrap(), None, "nothing was raised");
    }
    write("id", "r").await.unwrap();
    let there = Attributes::from([("n".to_owned(), text("1"))]);
    assert_eq!(item.observe().await.unwrap(), Some(there));
}

#[tokio::test]
async fn a_damaged_fence_is_a_fault_and_stays_as_it_is() {
    let items = items("damaged", Rule::CLAIM).await;
    let item = items.fresh("r").await.unwrap().0;
    item.claim(pass(5)).await.unwrap();
    for damage in ["", "{}", "5"] {
        let put = items.client.put_item().table_name("damaged");
        let put = put
            .item("id", text("r"))
            .item("palisade_fence", text(damage));
        put.send().await.unwrap();
        let claim = item.claim(pass(6)).await;
        assert!(matches!(claim, Err(Error::Damaged(_))), "{claim:?}");
        let get = items.client.get_item().table_name("damaged");
        let got = get.key("id", text("r")).send().await.unwrap();
        assert_eq!(got.item.unwrap()["palisade_fence"], text(damage));
    }
}

#[tokio::test]
async fn a_missing_table_is_an_error_that_names_it() {
    let client = table("there", false).await;
    let guards = Guards::new(client, "elsewhere", "id", Rule::CLAIM);
    let failed = guards.guard("r").unwrap().claim(pass(1)).await;
    let message = failed.unwrap_err().report();
    assert!(message.contains("ResourceNotFound"), "{message}");
}
