//! Bad input and damage: the error is clear, and nothing is written.

use object_store::ObjectStoreExt;
use palisade_fence::{Admin, Edit, Error, Fence, Write};

use super::{in_memory, manifest, pass, puts};

#[tokio::test]
async fn an_invalid_name_is_reported_with_the_reason() {
    let mut store = in_memory().await.store;
    for bad in ["", &"x".repeat(256), "line\nend", "ümlaut"] {
        let refused = store.resource(bad).map(|_| ());
        assert!(matches!(refused, Err(Error::Name(_))), "{bad:?}");
        assert!(store.show(bad).await.is_err(), "{bad:?}");
    }
    let resource = store.resource("r").unwrap();
    for bad in ["", "relative", "/../up", "/a/./b", "/nul\0"] {
        let write = Write::new(bad, Edit::Put(b"x"));
        let refused = resource.write(pass(1), write).await;
        assert!(matches!(refused, Err(Error::Name(_))), "{bad:?}");
        let refused = resource.observe(bad).await;
        assert!(matches!(refused, Err(Error::Name(_))), "{bad:?}");
    }
    assert_eq!(store.show("r").await.unwrap(), None, "nothing was written");
}

#[tokio::test]
async fn a_damaged_manifest_is_a_fault_and_stays_as_it_is() {
    let objects = in_memory().await;
    let resource = objects.store.resource("r").unwrap();
    puts(&resource, 5, "x").await;
    let whole = objects.objects.get(&manifest("r")).await.unwrap();
    let whole = String::from_utf8(whole.bytes().await.unwrap().to_vec()).unwrap();
    for damage in [
        "{",
        "{}",
        &whole.replace("\"token\":5", "\"token\":-5"),
        &whole.replace("\"token\":5", "\"token\":9007199254740992"),
        &whole.replace("\"format\":1", "\"format\":2"),
    ] {
        assert_ne!(damage, whole, "the manifest was damaged");
        let damaged = damage.to_owned().into();
        objects.objects.put(&manifest("r"), damaged).await.unwrap();
        let claim = resource.claim(pass(6)).await;
        assert!(matches!(claim, Err(Error::Damaged(_))), "{claim:?}");
        let stays = objects.objects.get(&manifest("r")).await.unwrap();
        assert_eq!(stays.bytes().await.unwrap(), damage.as_bytes());
    }
}

#[tokio::test]
async fn missing_data_is_a_fault_and_not_an_empty_key() {
    let objects = in_memory().await;
    let resource = objects.store.resource("r").unwrap();
    puts(&resource, 5, "x").await;
    let mut listed = objects.objects.list(None);
    while let Some(found) = futures_util::StreamExt::next(&mut listed).await {
        let location = found.unwrap().location;
        if location.as_ref().contains("/data/") {
            objects.objects.delete(&location).await.unwrap();
        }
    }
    let read = resource.read(pass(5), "/a").await;
    assert!(matches!(read, Err(Error::Damaged(_))), "{read:?}");
}

#[tokio::test]
async fn a_key_with_too_many_parts_must_be_put_whole() {
    let store = in_memory().await.store;
    let resource = store.resource("r").unwrap();
    let append = Write::new("/log", Edit::Append(b"."));
    for _ in 0..1_000 {
        resource.write(pass(1), append).await.unwrap();
    }
    let refused = resource.write(pass(1), append).await.unwrap_err();
    assert_eq!(
        refused.to_string(),
        "/log has 1000 parts; at most 1000 are allowed: put it whole"
    );
    let whole = resource.observe("/log").await.unwrap().unwrap();
    assert_eq!(whole.len(), 1_000);
    let put = Write::new("/log", Edit::Put(&whole));
    resource.write(pass(1), put).await.unwrap();
    resource.write(pass(1), append).await.unwrap();
}

/// Names that could lead to another resource's manifest, or to its own. Each resource has its mark and its data.
#[tokio::test]
async fn a_name_leads_to_no_other_mark() {
    let mut store = in_memory().await.store;
    let names = [
        "a",
        "A",
        "a/",
        "a/data",
        "a%2Fdata",
        "a/fence.json",
        "a.",
        "..",
        ".",
        "../a",
        "fence.json",
        "a//b",
        "data/1-x",
    ];
    for (token, name) in (10..).zip(names) {
        let resource = store.resource(name).unwrap();
        puts(&resource, token, name).await;
        for key in ["/fence.json", "/data/fence.json", "/%2e%2e/fence.json"] {
            let write = Write::new(key, Edit::Put(b"{}"));
            resource.write(pass(token), write).await.unwrap();
            let delete = Write::new(key, Edit::Delete);
            resource.write(pass(token), delete).await.unwrap();
        }
        store.sweep(name).await.unwrap();
    }
    for (token, name) in (10..).zip(names) {
        let state = store.show(name).await.unwrap().unwrap();
        assert_eq!(state.highest(), Some(pass(token).token), "{name}");
        let resource = store.resource(name).unwrap();
        let seen = resource.observe("/a").await.unwrap();
        assert_eq!(seen.as_deref(), Some(name.as_bytes()));
        let late = resource.claim(pass(token - 1)).await.unwrap_err();
        assert!(late.rejected().is_some(), "{name}");
    }
    assert_eq!(store.list("", None, 99).await.unwrap().len(), names.len());
}
