//! Elections over real sockets: a leader's value, and the observers that receive it.

use crate::net_support::grpc::{client, error, said};
use crate::net_support::{Server, soon};
use palisade_proto::v1::{self, event::Change, reply::Outcome};
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

async fn campaign(server: &Server, value: &str) -> Value {
    let body =
        json!({"client_id": "a", "lease_duration_ms": 10_000, "metadata": value}).to_string();
    let granted = server.post("/v1/locks/primary/acquire", &body).await;
    assert_eq!(granted.status, 200);
    granted.json()
}

fn proclaiming(granted: &Value, value: &str) -> String {
    json!({"lock_token": granted["lock_token"], "fencing_token": granted["fencing_token"], "value": value})
        .to_string()
}

/// Reads until this has arrived, and returns everything that arrived.
async fn until(stream: &mut tokio::net::TcpStream, end: &str) -> String {
    let mut seen = Vec::new();
    while !seen.ends_with(end.as_bytes()) {
        seen.push(soon(stream.read_u8()).await.unwrap());
    }
    String::from_utf8(seen).unwrap()
}

const PROCLAIM: &str = "/v1/locks/primary/proclaim";

#[tokio::test]
async fn a_leader_changes_its_value_and_every_answer_knows_when() {
    let server = Server::start().await;
    let granted = campaign(&server, "one").await;
    let shown = server.get("/v1/locks/primary").await.json();
    assert_eq!(shown["holder"]["metadata"], "one");
    let said = server.post(PROCLAIM, &proclaiming(&granted, "two")).await;
    assert_eq!(
        (said.status, said.json()),
        (
            200,
            json!({"resource_id": "primary", "fencing_token": 1, "revision": 2})
        )
    );
    let shown = server.get("/v1/locks/primary").await.json();
    assert_eq!(
        (&shown["holder"]["metadata"], &shown["revision"]),
        (&json!("two"), &json!(2))
    );
    let cleared = server.post(PROCLAIM, &proclaiming(&granted, "")).await;
    assert_eq!(cleared.status, 200);
    let shown = server.get("/v1/locks/primary").await.json();
    assert_eq!(shown["holder"].get("metadata"), None);
    let never = server.get("/v1/locks/nobody").await.json();
    assert_eq!(never["revision"], 3);
}

#[tokio::test]
async fn what_is_wrong_is_refused_and_changes_nothing() {
    let server = Server::start().await;
    let granted = campaign(&server, "one").await;
    let long = proclaiming(&granted, &"x".repeat(257));
    let mut stale: Value = serde_json::from_str(&proclaiming(&granted, "two")).unwrap();
    stale["fencing_token"] = json!(7);
    let mut stranger = stale.clone();
    stranger["lock_token"] = json!("0".repeat(32));
    let missing = json!({"lock_token": granted["lock_token"]}).to_string();
    for (body, status, code) in [
        (long, 400, "invalid"),
        (missing, 400, "invalid"),
        (stale.to_string(), 409, "not_held"),
        (stranger.to_string(), 409, "not_held"),
    ] {
        let refused = server.post(PROCLAIM, &body).await;
        assert_eq!(
            (refused.status, refused.code()),
            (status, code.into()),
            "{body}"
        );
    }
    let reader = r#"{"client_id": "r", "lease_duration_ms": 10000, "mode": "shared"}"#;
    let reader = server.post("/v1/locks/read/acquire", reader).await.json();
    let body = json!({"lock_token": reader["lock_token"], "value": "mine"}).to_string();
    let refused = server.post("/v1/locks/read/proclaim", &body).await;
    assert_eq!((refused.status, refused.code()), (400, "invalid".into()));
    let shown = server.get("/v1/locks/primary").await.json();
    assert_eq!(
        (&shown["holder"]["metadata"], &shown["revision"]),
        (&json!("one"), &json!(2))
    );
}

#[tokio::test]
async fn a_watcher_is_told_over_both_protocols() {
    let server = Server::start().await;
    let mut grpc = client(&server).await;
    let mut events = grpc
        .watch(v1::WatchRequest {
            prefix: "primary".into(),
            ..v1::WatchRequest::default()
        })
        .await
        .unwrap()
        .into_inner();
    let mut stream = server.connect().await;
    let request = b"GET /v1/watch?prefix=primary HTTP/1.1\r\nHost: t\r\n\r\n";
    stream.write_all(request).await.unwrap();
    until(&mut stream, "\r\n\r\n").await;
    let granted = campaign(&server, "one").await;
    let key = granted["lock_token"].as_str().unwrap();
    let key: Vec<u8> = (0..16)
        .map(|at| u8::from_str_radix(&key[2 * at..2 * at + 2], 16).unwrap())
        .collect();
    let message = |value: &str, lock_token: Vec<u8>| v1::ProclaimRequest {
        lock: "primary".into(),
        lock_token,
        fencing_token: 1,
        value: value.into(),
    };
    match said(grpc.proclaim(message("two", key)).await) {
        Some(Outcome::Proclaimed(said)) => assert_eq!((said.fencing_token, said.revision), (1, 2)),
        other => panic!("{other:?}"),
    }
    let refused = error(said(grpc.proclaim(message("two", vec![9; 16])).await));
    assert_eq!(refused.code, "not_held");
    let first = events.message().await.unwrap().unwrap();
    assert!(matches!(first.change, Some(Change::GrantedMs(10_000))));
    let second = events.message().await.unwrap().unwrap();
    assert_eq!(
        (second.change, second.revision),
        (Some(Change::Proclaimed(v1::Done {})), 2)
    );
    let seen = until(&mut stream, "event: proclaimed\n").await;
    assert!(seen.contains("event: granted\n"), "{seen}");
    until(&mut stream, "data: ").await;
    let mut data: Value = serde_json::from_str(&until(&mut stream, "\n").await).unwrap();
    data.as_object_mut().unwrap().remove("time").unwrap();
    let expected =
        json!({"revision": 2, "resource_id": "primary", "client_id": "a", "fencing_token": 1});
    assert_eq!(data, expected);
}
