//! Readers and writers over real sockets.

use crate::net_support::Server;
use serde_json::{Value, json};

const READ: &str = r#"{"client_id": "CLIENT", "lease_duration_ms": 10000, "mode": "shared"}"#;

async fn read(server: &Server, client: &str) -> Value {
    let body = READ.replace("CLIENT", client);
    let granted = server.post("/v1/locks/x/acquire", &body).await;
    assert_eq!(granted.status, 200, "{:?}", granted.json());
    granted.json()
}

#[tokio::test]
async fn readers_have_one_token_and_are_named_by_their_grant_ids() {
    let server = Server::start().await;
    let (a, b) = (read(&server, "a").await, read(&server, "b").await);
    assert_eq!(
        (&a["fencing_token"], &a["grant_id"]),
        (&json!(1), &json!(1))
    );
    assert_eq!(
        (&b["fencing_token"], &b["grant_id"]),
        (&json!(1), &json!(2))
    );
    let write = r#"{"client_id": "w", "lease_duration_ms": 10000, "mode": "exclusive"}"#;
    let denied = server.post("/v1/locks/x/acquire", write).await;
    assert_eq!(
        (denied.status, &denied.json()["holder"]["client_id"]),
        (409, &json!("a"))
    );

    let mut shown = server.get("/v1/locks/x").await.json();
    for at in ["holder", "/readers/0", "/readers/1"] {
        let pointer = format!("/{}/acquired_at", at.trim_start_matches('/'));
        shown.pointer_mut(&pointer).unwrap().take();
    }
    let holder = |client: &str, id: u64| json!({"client_id": client, "fencing_token": 1, "grant_id": id, "remaining_ms": 10000, "acquired_at": null});
    let oldest =
        json!({"client_id": "a", "fencing_token": 1, "remaining_ms": 10000, "acquired_at": null});
    let shape = json!({
        "resource_id": "x", "revision": 2, "holder": oldest, "reader_count": 2, "waiters": 0,
        "readers": [holder("a", 1), holder("b", 2)]
    });
    assert_eq!(shown, shape);
    let listed = &server.get("/v1/locks").await.json()["locks"][0];
    assert_eq!(
        (&listed["reader_count"], &listed["readers"]),
        (&json!(2), &Value::Null)
    );

    let named = |grant: &Value, number: &str| {
        let (key, number) = (&grant["lock_token"], &grant[number]);
        format!(r#"{{"lock_token": {key}, "fencing_token": {number}}}"#)
    };
    // The phase's token names the first reader and nobody else.
    let wrong = server
        .post("/v1/locks/x/release", &named(&b, "fencing_token"))
        .await;
    assert_eq!(wrong.status, 409, "{:?}", wrong.json());
    let renewed = server
        .post("/v1/locks/x/renew", &named(&b, "grant_id"))
        .await;
    assert_eq!(
        (renewed.status, &renewed.json()["fencing_token"]),
        (200, &json!(1))
    );
    let broken = server
        .post(
            "/v1/locks/x/break",
            r#"{"fencing_token": 2, "reason": "stuck"}"#,
        )
        .await;
    assert_eq!(broken.status, 200);
    let released = server
        .post("/v1/locks/x/release", &named(&a, "grant_id"))
        .await;
    assert_eq!(released.status, 200);
    assert_eq!(
        server.get("/v1/locks/x").await.json()["holder"],
        Value::Null
    );
}

#[tokio::test]
async fn a_writer_becomes_a_reader_and_a_reader_no_writer() {
    let server = Server::start().await;
    let (key, _) = server.lock("x", "a").await;
    let under =
        |mode: &str| format!(r#"{{"client_id": "a", "lock_token": "{key}", "mode": "{mode}"}}"#);
    let reader = server
        .post("/v1/locks/x/acquire", &under("shared"))
        .await
        .json();
    assert_eq!(
        (&reader["fencing_token"], &reader["grant_id"]),
        (&json!(2), &json!(2))
    );
    let refused = server
        .post("/v1/locks/x/acquire", &under("exclusive"))
        .await;
    let message = refused.json()["error"]["message"].to_string();
    assert_eq!(refused.status, 400);
    assert!(
        message.contains("a reader cannot become a writer"),
        "{message}"
    );
    assert_eq!(
        read(&server, "b").await["fencing_token"],
        2,
        "nothing changed"
    );
}

#[tokio::test]
async fn a_mode_that_is_none_is_refused_by_name() {
    let server = Server::start().await;
    for (mode, given) in [
        (r#""sharde""#, r#"string \"sharde\""#),
        ("1", "integer `1`"),
        ("true", "boolean `true`"),
    ] {
        let body = READ.replace("\"shared\"", mode);
        let refused = server.post("/v1/locks/x/acquire", &body).await;
        let message = refused.json()["error"]["message"].to_string();
        assert_eq!(refused.status, 400);
        let says = format!(
            r#"mode must be \"exclusive\", \"shared\", \"update\", \"upgrade\" or \"permits\", not {given}"#
        );
        assert!(message.contains(&says), "{message}");
    }
    assert_eq!(
        server.get("/v1/locks/x").await.json()["holder"],
        Value::Null
    );
}
