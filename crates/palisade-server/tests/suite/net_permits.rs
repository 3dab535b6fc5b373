//! Semaphores over real sockets.

use crate::net_support::grpc::{client, error, granted, said};
use crate::net_support::{Response, Server};
use palisade_proto::v1::acquire_option::Option as Wanted;
use palisade_proto::v1::{self, reply::Outcome};
use serde_json::{Value, json};

async fn ask(server: &Server, client: &str, more: &str) -> Response {
    let body = format!(r#"{{"client_id": "{client}", "lease_duration_ms": 10000, {more}}}"#);
    server.post("/v1/locks/gpu/acquire", &body).await
}

async fn permits(server: &Server, client: &str, count: u32, of: u32) -> Response {
    let wanted = format!(r#""permits": {{"count": {count}, "of": {of}}}"#);
    ask(server, client, &wanted).await
}

/// The lock as the server shows it, without times.
async fn shown(server: &Server) -> Value {
    let mut shown = server.get("/v1/locks/gpu").await.json();
    let mut holders: Vec<&mut Value> = Vec::new();
    let parts = shown.as_object_mut().unwrap().iter_mut();
    for (name, part) in parts {
        match part {
            Value::Array(list) => holders.extend(list),
            part if name == "holder" && part.is_object() => holders.push(part),
            _ => {}
        }
    }
    for holder in holders {
        holder.as_object_mut().unwrap().remove("acquired_at");
    }
    shown
}

#[tokio::test]
async fn permits_are_slots_with_a_token_for_each_grant() {
    let server = Server::start().await;
    let a = permits(&server, "a", 2, 3).await.json();
    let b = permits(&server, "b", 1, 3).await.json();
    assert_eq!(
        (&a["slots"], &a["fencing_token"], &a["grant_id"]),
        (&json!([1, 2]), &json!(1), &Value::Null)
    );
    assert_eq!((&b["slots"], &b["fencing_token"]), (&json!([3]), &json!(2)));
    let full = permits(&server, "c", 1, 3).await;
    assert_eq!((full.status, full.code()), (409, "held".into()));
    let holder = |client: &str, token: u64, slots: Value| json!({"client_id": client, "fencing_token": token, "grant_id": token, "slots": slots, "remaining_ms": 10000});
    let shape = json!({
        "resource_id": "gpu", "revision": 2, "permits": 3, "reader_count": 2, "waiters": 0,
        "holder": {"client_id": "a", "fencing_token": 1, "remaining_ms": 10000},
        "readers": [holder("a", 1, json!([1, 2])), holder("b", 2, json!([3]))]
    });
    assert_eq!(shown(&server).await, shape);
    let broken = r#"{"fencing_token": 1, "reason": "stuck"}"#;
    let broken = server.post("/v1/locks/gpu/break", broken).await;
    assert_eq!(broken.status, 200, "{:?}", broken.json());
    let next = permits(&server, "c", 1, 3).await.json();
    assert_eq!(
        (&next["slots"], &next["fencing_token"]),
        (&json!([1]), &json!(3))
    );
}

#[tokio::test]
async fn a_request_for_permits_that_is_wrong_is_refused_by_name_and_changes_nothing() {
    let server = Server::start().await;
    assert_eq!(permits(&server, "a", 1, 3).await.status, 200);
    let (before, changes) = (shown(&server).await, server.changes().await);
    let of = "a semaphore has 1 ..= 64 permits, and a request wants at least one and at most all of them";
    for (more, says) in [
        (r#""permits": {"count": 4, "of": 3}"#, of),
        (r#""permits": {"count": 0, "of": 3}"#, of),
        (r#""permits": {"count": 0, "of": 0}"#, of),
        (r#""permits": {"count": 1, "of": 65}"#, of),
        (r#""permits": {"count": 4294967297, "of": 4294967299}"#, of),
        (
            r#""permits": {"count": -1, "of": 3}"#,
            "count must be an integer in 1 ..= 64, not integer `-1`",
        ),
        (r#""permits": {"count": 1}"#, "missing field `of`"),
        (
            r#""permits": {"count": 1, "of": null}"#,
            "of must be an integer in 1 ..= 64, not null",
        ),
        (
            r#""permits": {"count": 1, "of": 3, "off": 3}"#,
            "unknown field `off`",
        ),
        (r#""permits": 2"#, "permits must be an object such as"),
        (r#""permits": [1, 3]"#, "permits must be an object such as"),
        (r#""mode": "permits""#, "does not say how many"),
        (
            r#""mode": "shared", "permits": {"count": 1, "of": 3}"#,
            "mode and permits are both given",
        ),
        (
            r#""mode": "exclusive", "permits": {"count": 1, "of": 3}"#,
            "mode and permits are both given",
        ),
        (
            r#""permits": {"count": 1, "of": 4}"#,
            "the request says 4 permits, and the lock has 3",
        ),
        (
            r#""mode": "shared""#,
            "the lock is a semaphore of 3 permits",
        ),
        (
            r#""mode": "exclusive""#,
            "the lock is a semaphore of 3 permits",
        ),
    ] {
        let refused = ask(&server, "b", more).await;
        let message = refused.message();
        assert_eq!(
            (refused.status, refused.code()),
            (400, "invalid".into()),
            "{more}: {message}"
        );
        assert!(message.contains(says), "{more}: {message}");
    }
    assert_eq!(shown(&server).await, before);
    assert_eq!(server.changes().await, changes);
    // A plain lock in use has no permits.
    server.lock("plain", "a").await;
    let body =
        r#"{"client_id": "b", "lease_duration_ms": 10000, "permits": {"count": 1, "of": 2}}"#;
    let refused = server.post("/v1/locks/plain/acquire", body).await;
    assert!(
        refused.message().contains("in use without permits"),
        "{}",
        refused.message()
    );
}

#[tokio::test]
async fn a_request_id_is_one_request_whatever_kind_it_asks_for_later() {
    let server = Server::start().await;
    let id = r#""request_id": "000102030405060708090a0b0c0d0e0f""#;
    let first = format!(r#"{id}, "permits": {{"count": 1, "of": 3}}"#);
    let granted = ask(&server, "a", &first).await.json();
    let changes = server.changes().await;
    for other in [
        r#""mode": "shared""#,
        r#""mode": "exclusive""#,
        r#""permits": {"count": 2, "of": 3}"#,
    ] {
        let answer = ask(&server, "a", &format!("{id}, {other}")).await;
        // The first answer, or a refusal: never a second grant.
        if answer.status == 200 {
            assert_eq!(answer.json()["fencing_token"], granted["fencing_token"]);
            assert_eq!(answer.json()["slots"], granted["slots"]);
        } else {
            assert_eq!(answer.code(), "invalid", "{:?}", answer.json());
        }
    }
    assert_eq!(server.changes().await, changes);
}

#[tokio::test]
async fn an_operator_changes_the_number_and_nobody_loses_a_slot() {
    let server = Server::start().await;
    let path = "/v1/locks/gpu/permits";
    let free = server.post(path, r#"{"of": 2}"#).await;
    assert_eq!((free.status, free.code()), (409, "not_held".into()));
    assert!(
        free.message().contains("nobody uses this lock"),
        "{}",
        free.message()
    );
    assert_eq!(permits(&server, "a", 2, 2).await.status, 200);
    for (body, says) in [
        (r#"{"of": 0}"#, "1 ..= 64"),
        (r#"{"of": 65}"#, "1 ..= 64"),
        ("{}", "missing field `of`"),
    ] {
        let refused = server.post(path, body).await;
        assert_eq!(
            (refused.status, refused.code()),
            (400, "invalid".into()),
            "{body}"
        );
        assert!(refused.message().contains(says), "{}", refused.message());
    }
    let lower = server.post(path, r#"{"of": 1}"#).await;
    assert_eq!(
        (lower.status, lower.json()),
        (200, json!({"resource_id": "gpu", "permits": 1}))
    );
    let kept = shown(&server).await;
    assert_eq!(
        (&kept["permits"], &kept["readers"][0]["slots"]),
        (&json!(1), &json!([1, 2]))
    );
    let former = permits(&server, "b", 1, 2).await;
    assert!(
        former
            .message()
            .contains("the request says 2 permits, and the lock has 1"),
        "{}",
        former.message()
    );
    assert_eq!(permits(&server, "b", 1, 1).await.code(), "held");
    server.lock("plain", "a").await;
    let plain = server.post("/v1/locks/plain/permits", r#"{"of": 2}"#).await;
    assert_eq!(plain.status, 400);
    assert!(
        plain.message().contains("in use without permits"),
        "{}",
        plain.message()
    );
}

#[tokio::test]
async fn permits_are_an_option_over_grpc() {
    let server = Server::start().await;
    let mut locks = client(&server).await;
    let acquire = |client: &str, options: Vec<Wanted>| v1::AcquireRequest {
        options: options
            .into_iter()
            .map(|option| v1::AcquireOption {
                option: Some(option),
            })
            .collect(),
        ..crate::net_support::grpc::acquire("gpu", client, 0)
    };
    let wanted = |count, of| Wanted::Permits(v1::Permits { count, of });
    let two = granted(said(locks.acquire(acquire("a", vec![wanted(2, 3)])).await));
    assert_eq!((two.slots, two.grant_id), (vec![1, 2], 0));
    for (options, says) in [
        (vec![wanted(4, 3)], "4 of 3 permits"),
        (vec![wanted(0, 0)], "0 of 0 permits"),
        (
            vec![Wanted::Mode(3)],
            "mode permits (3) does not say how many",
        ),
        (
            vec![Wanted::Mode(2), wanted(1, 3)],
            "the option mode is given twice, or together with permits",
        ),
        (
            vec![wanted(1, 3), wanted(1, 3)],
            "the option mode is given twice, or together with permits",
        ),
    ] {
        let refused = locks.acquire(acquire("b", options)).await.unwrap_err();
        assert_eq!(refused.code(), tonic::Code::InvalidArgument);
        assert!(refused.message().contains(says), "{}", refused.message());
    }
    let resize = |permits| v1::ResizeRequest {
        lock: "gpu".into(),
        permits,
    };
    assert!(matches!(
        said(locks.resize(resize(5)).await),
        Some(Outcome::Done(_))
    ));
    let show = v1::ShowRequest { lock: "gpu".into() };
    let Some(Outcome::Lock(view)) = said(locks.show(show).await) else {
        panic!("not shown")
    };
    assert_eq!((view.permits, &view.readers[0].slots), (5, &vec![1, 2]));
    let nobody = v1::ResizeRequest {
        lock: "free".into(),
        permits: 2,
    };
    assert_eq!(error(said(locks.resize(nobody).await)).code, "not_held");
}
