//! Operations for operators: look, list, re-arm, sweep.

use object_store::ObjectStoreExt;
use palisade_core::Token;
use palisade_fence::{Admin, Edit, Error, Fence, Listed, Rearm, Reject, Write};

use super::{in_memory, manifest, pass, put, puts};

#[tokio::test]
async fn a_lost_fence_is_rearmed_above_the_old_tokens() {
    let objects = in_memory().await;
    let resource = objects.store.resource("r").unwrap();
    puts(&resource, 5, "x").await;
    objects.objects.delete(&manifest("r")).await.unwrap();
    for token in [4, 6] {
        let write = resource.write(pass(token), put("y")).await;
        assert!(matches!(write, Err(Error::FenceLost(_))), "{write:?}");
        let claim = resource.claim(pass(token)).await;
        assert!(matches!(claim, Err(Error::FenceLost(_))), "{claim:?}");
    }
    let seen = resource.observe("/a").await;
    assert!(matches!(seen, Err(Error::FenceLost(_))), "{seen:?}");

    let floor = Token::new(9).unwrap();
    let mut store = objects.store.clone();
    let with = Rearm {
        floor,
        authority: None,
        lower_from: None,
    };
    store.rearm("r", &with).await.unwrap();
    let low = resource.write(pass(8), put("y")).await.unwrap_err();
    assert_eq!(
        low.rejected(),
        Some(&Reject::Stale {
            presented: Token::new(8).unwrap(),
            highest: floor
        })
    );
    puts(&resource, 9, "y").await;
    let lower = |from| Rearm {
        floor: Token::new(3).unwrap(),
        lower_from: from,
        ..with
    };
    for from in [None, Token::new(8).ok()] {
        let refused = store.rearm("r", &lower(from)).await;
        assert!(matches!(refused, Err(Error::FloorTooLow(_))), "{refused:?}");
    }
    store.rearm("r", &lower(Some(floor))).await.unwrap();
    puts(&resource, 3, "z").await;
}

#[tokio::test]
async fn deleting_keeps_the_fence_and_a_sweep_keeps_named_objects() {
    let mut store = in_memory().await.store;
    let resource = store.resource("a/b c").unwrap();
    for (token, text) in [(1, "one"), (2, "two"), (3, "three")] {
        puts(&resource, token, text).await;
    }
    assert_eq!(store.sweep("a/b c").await.unwrap(), 2);
    let seen = resource.observe("/a").await.unwrap();
    assert_eq!(seen.as_deref(), Some(b"three".as_slice()));
    let delete = Write::new("/a", Edit::Delete);
    resource.write(pass(4), delete).await.unwrap();
    assert_eq!(store.sweep("a/b c").await.unwrap(), 1);
    let late = resource.write(pass(3), put("late")).await.unwrap_err();
    assert!(matches!(late.rejected(), Some(Reject::Stale { .. })));
    let listed = store.list("a/", None, 10).await.unwrap();
    assert_eq!(listed.len(), 1);
    assert_eq!(listed[0].resource, "a/b c");
    assert_eq!(listed[0].state.highest(), Token::new(4).ok());
}

#[tokio::test]
async fn fences_are_listed_by_pages_in_name_order() {
    let mut store = in_memory().await.store;
    for name in ["b", "a/2", "a/1", "a/%2F", "c"] {
        puts(&store.resource(name).unwrap(), 7, "x").await;
    }
    let names = |listed: Vec<Listed>| -> Vec<String> {
        listed.into_iter().map(|listed| listed.resource).collect()
    };
    let all = names(store.list("", None, 10).await.unwrap());
    assert_eq!(all, ["a/%2F", "a/1", "a/2", "b", "c"]);
    let page = names(store.list("a/", Some("a/%2F"), 1).await.unwrap());
    assert_eq!(page, ["a/1"]);
    assert_eq!(store.show("nobody").await.unwrap(), None);
}
