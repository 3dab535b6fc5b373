//! Several locks at once over real sockets.

use crate::net_access::{acquires, closed_by, rules};
use crate::net_support::grpc::{client, granted, said};
use crate::net_support::{Response, Server};
use palisade_proto::v1::acquire_option::Option as Wanted;
use palisade_proto::v1::{self};
use serde_json::{Value, json};

async fn ask(server: &Server, lock: &str, client: &str, more: &str) -> Response {
    let body = format!(r#"{{"client_id": "{client}", "lease_duration_ms": 10000, {more}}}"#);
    server
        .post(&format!("/v1/locks/{lock}/acquire"), &body)
        .await
}

async fn holder(server: &Server, lock: &str) -> Value {
    let shown = server.get(&format!("/v1/locks/{lock}")).await.json();
    shown["holder"]["fencing_token"].clone()
}

#[tokio::test]
async fn a_set_has_one_token_and_one_lease_and_its_parts_end_by_themselves() {
    let server = Server::start().await;
    // The order of the names means nothing.
    let set = ask(&server, "c", "a", r#""also": ["a", "b"]"#).await;
    assert_eq!(set.status, 200, "{:?}", set.json());
    let set = set.json();
    assert_eq!(
        (&set["resource_id"], &set["fencing_token"]),
        (&json!("c"), &json!(1))
    );
    for lock in ["a", "b", "c"] {
        assert_eq!(holder(&server, lock).await, json!(1), "{lock}");
    }
    let denied = ask(&server, "d", "other", r#""also": ["b"]"#).await;
    assert_eq!((denied.status, denied.code()), (409, "held".into()));
    assert_eq!(holder(&server, "d").await, Value::Null, "half of a set");

    let key = set["lock_token"].as_str().unwrap();
    let named = format!(r#"{{"lock_token": "{key}", "fencing_token": 1}}"#);
    let released = server.post("/v1/locks/b/release", &named).await;
    assert_eq!(released.status, 200);
    let next = ask(&server, "d", "other", r#""also": ["b"]"#).await.json();
    assert_eq!(next["fencing_token"], 2);
    // The rest is renewed by any part of it.
    let renewed = server.post("/v1/locks/a/renew", &named).await;
    assert_eq!(renewed.status, 200, "{:?}", renewed.json());
    assert_eq!(holder(&server, "c").await, json!(1));
}

#[tokio::test]
async fn a_set_that_is_wrong_is_refused_by_name_and_changes_nothing() {
    let server = Server::start().await;
    let gpu = ask(&server, "gpu", "a", r#""permits": {"count": 1, "of": 2}"#).await;
    assert_eq!(gpu.status, 200);
    let before = server.changes().await;
    let many: Vec<String> = (0..64).map(|n| format!("\"n{n}\"")).collect();
    let many = format!(r#""also": [{}]"#, many.join(","));
    for (more, says) in [
        (r#""also": "b""#, "also must be an array of names"),
        (r#""also": [7]"#, "also must be an array of names"),
        (r#""also": [""]"#, "also: lock name is empty"),
        (r#""also": ["b", "b"]"#, "names the lock b twice"),
        (r#""also": ["a"]"#, "names the lock a twice"),
        (&*many, "65"),
        (r#""also": ["b"], "mode": "shared""#, "exclusive"),
        (
            r#""also": ["b"], "permits": {"count": 1, "of": 2}"#,
            "exclusive",
        ),
        (r#""also": ["b"], "lock_delay_ms": 1000"#, "delay"),
        (r#""also": ["gpu"]"#, "semaphore of 2 permits"),
    ] {
        let refused = ask(&server, "a", "b", more).await;
        let message = refused.message();
        assert_eq!(
            (refused.status, refused.code()),
            (400, "invalid".into()),
            "{more}: {message}"
        );
        assert!(message.contains(says), "{more}: {message}");
    }
    assert_eq!(server.changes().await, before);
}

#[tokio::test]
async fn one_request_id_names_one_set() {
    let server = Server::start().await;
    let id = "00112233445566778899aabbccddeeff";
    let with = |also: &str| format!(r#""request_id": "{id}", "also": [{also}]"#);
    let first = ask(&server, "a", "x", &with(r#""b", "c""#)).await.json();
    let again = ask(&server, "a", "x", &with(r#""c", "b""#)).await.json();
    assert_eq!(
        (&first["fencing_token"], &first["lock_token"]),
        (&again["fencing_token"], &again["lock_token"])
    );
    for other in [r#""b""#, r#""b", "c", "d""#, r#""b", "d""#] {
        let other = ask(&server, "a", "x", &with(other)).await;
        assert_eq!((other.status, other.code()), (400, "invalid".into()));
    }
    assert_eq!(holder(&server, "d").await, Value::Null);
}

#[tokio::test]
async fn over_grpc_a_set_is_an_option_of_the_acquire() {
    let server = Server::start().await;
    let mut client = client(&server).await;
    let option = |locks: &[&str]| {
        let locks = locks.iter().map(ToString::to_string).collect();
        v1::AcquireOption {
            option: Some(Wanted::Also(v1::LockNames { locks })),
        }
    };
    let ask = |options: Vec<v1::AcquireOption>| v1::AcquireRequest {
        lock: "a".into(),
        client_id: "x".into(),
        lease_duration_ms: 10_000,
        options,
        ..v1::AcquireRequest::default()
    };
    let reply = client.acquire(ask(vec![option(&["b"])])).await;
    assert_eq!(granted(said(reply)).fencing_token, 1);
    assert_eq!(holder(&server, "b").await, json!(1));
    let twice = client
        .acquire(ask(vec![option(&["b"]), option(&["c"])]))
        .await;
    assert!(twice.unwrap_err().message().contains("also is given twice"));
}

#[tokio::test]
async fn every_lock_of_a_set_needs_the_right_and_the_answer_tells_nothing_of_the_others() {
    let closed = closed_by(&rules()).await;
    let server = &closed.server;
    let [forbidden, free] = ["forbidden", ""].map(|code| [(); 4].map(|()| code.to_owned()));
    // The first of them by name is the one that this caller may hold.
    for locks in [["other/1", "x/1"], ["x/1", "other/1"]] {
        assert_eq!(acquires(server, &locks, 0, "elsewhere").await, forbidden);
    }
    assert_eq!(
        acquires(server, &["other/1", "other/2"], 0, "elsewhere").await,
        free
    );
    assert_eq!(acquires(server, &["x/1", "x/2"], 0, "hold").await, free);
    assert_eq!(
        acquires(server, &["x/1", "x/2"], 0, "observe").await,
        forbidden
    );
}

#[tokio::test]
async fn each_lock_of_a_set_counts_and_a_set_that_does_not_fit_takes_nothing() {
    let quota = "[[auth.quotas]]\nprefix = \"x/\"\nlocks = 2\n";
    let closed = closed_by(&(rules() + quota)).await;
    let server = &closed.server;
    let [over, free] = ["over_quota", ""].map(|code| [(); 4].map(|()| code.to_owned()));
    assert_eq!(
        acquires(server, &["x/1", "x/2", "x/3"], 0, "hold").await,
        over
    );
    assert_eq!(acquires(server, &["x/1", "x/2"], 0, "hold").await, free);
    assert_eq!(acquires(server, &["x/3"], 0, "hold").await, over);
}
