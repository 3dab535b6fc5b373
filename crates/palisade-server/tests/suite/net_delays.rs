//! Lock-delay and at-least-for over real sockets.

use crate::net_support::grpc::{client, error, granted, said};
use crate::net_support::{Response, Server, soon};
use crate::net_watch::Events;
use palisade_proto::v1::acquire_option::Option as Wanted;
use palisade_proto::v1::event::Change;
use palisade_proto::v1::{self, reply::Outcome};
use serde_json::json;

async fn ask(server: &Server, client: &str, more: &str) -> Response {
    let body = format!(r#"{{"client_id": "{client}", "lease_duration_ms": 10000{more}}}"#);
    server.post("/v1/locks/x/acquire", &body).await
}

#[tokio::test]
async fn a_revoked_lock_is_delayed_and_shown_so() {
    let server = Server::start().await;
    let first = ask(&server, "a", r#", "lock_delay_ms": 60000"#).await;
    assert_eq!(first.status, 200);
    let broken = server
        .post("/v1/locks/x/break", r#"{"fencing_token": 1}"#)
        .await;
    assert_eq!(broken.status, 200, "{:?}", broken.json());
    let denied = ask(&server, "a", "").await;
    assert_eq!((denied.status, denied.code()), (409, "delayed".into()));
    let denied = denied.json();
    assert_eq!(denied["error"]["highest"], 1);
    let rest = denied["error"]["retry_after_ms"].as_u64().unwrap();
    assert!((1..=60_000).contains(&rest), "{rest}");
    assert!(denied.get("holder").is_none());
    for path in ["/v1/locks/x", "/v1/locks"] {
        let mut shown = server.get(path).await.json();
        if let Some(listed) = shown.get_mut("locks") {
            shown = listed[0].take();
        }
        let rest = shown["delayed_ms"].as_u64().unwrap();
        assert!((1..=60_000).contains(&rest), "{path}: {rest}");
        assert_eq!(
            (&shown["holder"], &shown["waiters"]),
            (&json!(null), &json!(0))
        );
    }
}

#[tokio::test]
async fn a_release_says_how_long_the_lock_stays_closed() {
    let server = Server::start().await;
    let first = ask(&server, "a", r#", "at_least_for_ms": 86400000"#).await;
    let key = first.json()["lock_token"].as_str().unwrap().to_owned();
    let body = format!(r#"{{"lock_token": "{key}"}}"#);
    let released = server.post("/v1/locks/x/release", &body).await.json();
    let rest = released["delayed_ms"].as_u64().unwrap();
    assert!((1..=86_400_000).contains(&rest), "{rest}");
    assert_eq!(ask(&server, "b", "").await.code(), "delayed");
    let free = server
        .post(
            "/v1/locks/y/acquire",
            r#"{"client_id": "a", "lease_duration_ms": 10000}"#,
        )
        .await
        .json();
    let key = free["lock_token"].as_str().unwrap();
    let released = server
        .post(
            "/v1/locks/y/release",
            &format!(r#"{{"lock_token": "{key}"}}"#),
        )
        .await;
    assert!(released.json().get("delayed_ms").is_none());
}

#[tokio::test]
async fn a_delay_out_of_range_or_for_readers_is_refused_and_changes_nothing() {
    let server = Server::start().await;
    for (more, says) in [
        (
            r#", "lock_delay_ms": 60001"#,
            "lock_delay_ms: a lock delay of 60001 ms is outside 0 ..= 60000 ms",
        ),
        (
            r#", "at_least_for_ms": 86400001"#,
            "at_least_for_ms: at least for 86400001 ms is outside 0 ..= 86400000 ms",
        ),
        (
            r#", "lock_delay_ms": "5s""#,
            "lock_delay_ms must be an integer in 0 ..= 60000, not string \"5s\"",
        ),
        (
            r#", "lock_delay_ms": 1, "mode": "shared""#,
            "lock-delay and at-least-for belong to exclusive grants",
        ),
    ] {
        let refused = ask(&server, "a", more).await;
        assert_eq!((refused.status, refused.code()), (400, "invalid".into()));
        let message = refused.json()["error"]["message"].to_string();
        assert!(
            message.replace('\\', "").contains(says),
            "{message} instead of {says}"
        );
    }
    assert_eq!(ask(&server, "b", "").await.json()["fencing_token"], 1);
}

#[tokio::test]
async fn grpc_has_delays_as_an_option() {
    let server = Server::start().await;
    let mut client = client(&server).await;
    let option = |lock_delay_ms, at_least_for_ms| v1::AcquireOption {
        option: Some(Wanted::Delays(v1::Delays {
            lock_delay_ms,
            at_least_for_ms,
        })),
    };
    let ask = |options| v1::AcquireRequest {
        lock: "x".into(),
        client_id: "a".into(),
        lease_duration_ms: 10_000,
        options,
        ..v1::AcquireRequest::default()
    };
    let twice = client.acquire(ask(vec![option(1, 0), option(1, 0)])).await;
    assert!(twice.unwrap_err().message().contains("given twice"));
    let beyond = client.acquire(ask(vec![option(60_001, 0)])).await;
    assert!(beyond.unwrap_err().message().contains("0 ..= 60000 ms"));
    let first = granted(said(client.acquire(ask(vec![option(0, 60_000)])).await));
    let release = v1::ReleaseRequest {
        lock: "x".into(),
        lock_token: first.lock_token,
        fencing_token: 0,
    };
    let Some(Outcome::Released(released)) = said(client.release(release).await) else {
        panic!("not released");
    };
    assert!((1..=60_000).contains(&released.delayed_ms));
    let denied = error(said(client.acquire(ask(Vec::new())).await));
    assert_eq!((denied.code.as_str(), denied.highest), ("delayed", 1));
    assert!((1..=60_000).contains(&denied.retry_after_ms));
}

/// The control is a break, which does not open the lock.
#[tokio::test]
async fn an_operator_opens_a_closed_lock_at_every_interface() {
    for over_http in [true, false] {
        let server = Server::start().await;
        let mut client = client(&server).await;
        let mut events = Events::open(&server, "/v1/watch?prefix=x", "").await;
        let watch = v1::WatchRequest {
            prefix: "x".to_owned(),
            ..v1::WatchRequest::default()
        };
        let mut over_grpc = client.watch(watch).await.unwrap().into_inner();
        let mut open = async || {
            if over_http {
                let body = r#"{"reason": "the job failed"}"#;
                server.post("/v1/locks/x/open", body).await.code()
            } else {
                let open = v1::OpenRequest {
                    lock: "x".to_owned(),
                    reason: "the job failed".to_owned(),
                };
                match said(client.open(open).await) {
                    Some(Outcome::Done(_)) => String::new(),
                    other => error(other).code,
                }
            }
        };
        assert_eq!(open().await, "not_held", "it is free");
        let first = ask(&server, "a", r#", "at_least_for_ms": 86400000"#).await;
        assert_eq!(open().await, "not_held", "it is held");
        let key = first.json()["lock_token"].as_str().unwrap().to_owned();
        let body = format!(r#"{{"lock_token": "{key}"}}"#);
        server.post("/v1/locks/x/release", &body).await;
        let broken = server
            .post("/v1/locks/x/break", r#"{"fencing_token": 1}"#)
            .await;
        assert_eq!((broken.status, broken.code()), (409, "not_held".into()));
        assert_eq!(ask(&server, "b", "").await.code(), "delayed");
        assert_eq!(open().await, "");
        assert_eq!(ask(&server, "b", "").await.status, 200);
        // Watchers get the operator's reason, and the grant as always.
        let mut told = Vec::new();
        for _ in 0..4 {
            let (name, _, mut data) = events.next().await;
            if name == "opened" {
                let time = data.as_object_mut().unwrap().remove("time").unwrap();
                assert!(time.as_str().unwrap().ends_with('Z'), "{time}");
                let expected = json!({
                    "revision": 3, "resource_id": "x", "fencing_token": 1, "reason": "the job failed",
                });
                assert_eq!(data, expected);
            }
            told.push(name);
            let event = soon(over_grpc.message()).await.unwrap().unwrap();
            if let Some(Change::Opened(_)) = event.change {
                let about = (event.revision, event.fencing_token, &*event.client_id);
                assert_eq!(about, (3, 1, ""));
                assert_eq!(event.reason, "the job failed");
                told.push("opened, over gRPC".to_owned());
            }
        }
        let expected = [
            "granted",
            "released",
            "opened",
            "opened, over gRPC",
            "granted",
        ];
        assert_eq!(told, expected);
    }
}
