//! A clock that moves only on request: timers that become due in between fire in order.

use serde_json::{Value, json};

use crate::net_support::{Server, soon};

fn wish(client: &str, lease_ms: u64, wait_ms: u64) -> String {
    json!({"client_id": client, "lease_duration_ms": lease_ms, "wait_ms": wait_ms}).to_string()
}

/// One advance by ten seconds over three instants. Without the stops the wait of `b` would be over when the lease ends.
#[tokio::test]
async fn one_advance_plays_what_falls_due_in_between() {
    let server = Server::start().await;
    let held = server
        .post("/v1/locks/x/acquire", &wish("a", 1_000, 0))
        .await;
    assert_eq!(held.status, 200, "{}", held.body);
    let (b, c) = (wish("b", 2_000, 5_000), wish("c", 2_000, 5_000));
    let first = server.post("/v1/locks/x/acquire", &b);
    let second = async {
        server.waiters(1).await;
        server.post("/v1/locks/x/acquire", &c).await
    };
    let passes = async {
        server.waiters(2).await;
        server.advance(10_000).await;
    };
    let (first, second, ()) = soon(async { tokio::join!(first, second, passes) }).await;
    for (answer, waited) in [(&first, 1_000), (&second, 3_000)] {
        assert_eq!(answer.status, 200, "{}", answer.body);
        assert_eq!(answer.json()["waited_ms"], json!(waited));
    }
    // And the last one is over, too.
    let shown = server.get("/v1/locks/x").await.json();
    assert_eq!(shown["holder"], Value::Null);
}

/// The lease ends at the last instant of the wait.
#[tokio::test]
async fn a_wait_that_ends_with_the_lease_is_granted() {
    let server = Server::start().await;
    server
        .post("/v1/locks/x/acquire", &wish("a", 1_000, 0))
        .await;
    let waits = wish("b", 1_000, 1_000);
    let waits = server.post("/v1/locks/x/acquire", &waits);
    let passes = async {
        server.waiters(1).await;
        server.advance(1_000).await;
    };
    let (told, ()) = soon(async { tokio::join!(waits, passes) }).await;
    assert_eq!(told.status, 200, "{}", told.body);
}

/// A renewal answers the duration that is in force, a wrong number is named, and nobody who waits is called the holder.
#[tokio::test]
async fn messages_say_what_is_true() {
    let server = Server::start().await;
    let held = server
        .post("/v1/locks/x/acquire", &wish("a", 60_000, 0))
        .await;
    let key = held.json()["lock_token"].clone();
    let shorter = json!({"lock_token": key, "lease_duration_ms": 1_000}).to_string();
    let renewed = server.post("/v1/locks/x/renew", &shorter).await.json();
    assert_eq!(
        (&renewed["lease_duration_ms"], &renewed["remaining_ms"]),
        (&json!(60_000), &json!(60_000))
    );
    let wrong = json!({"lock_token": key, "fencing_token": 99}).to_string();
    let wrong = server.post("/v1/locks/x/renew", &wrong).await;
    assert_eq!(wrong.code(), "not_held", "{}", wrong.body);
    assert!(
        wrong.body.contains("with fencing token or grant id 1"),
        "{}",
        wrong.body
    );
    // A set waits for `x`, and `y` is kept for it.
    let set = json!({
        "client_id": "set", "lease_duration_ms": 1_000, "wait_ms": 5_000, "also": ["y"],
    });
    let set = set.to_string();
    let waits = server.post("/v1/locks/x/acquire", &set);
    let looks = async {
        server.waiters(2).await;
        let denied = server
            .post("/v1/locks/y/acquire", &wish("z", 1_000, 0))
            .await;
        server.advance(5_000).await;
        denied
    };
    let (_, denied) = soon(async { tokio::join!(waits, looks) }).await;
    assert_eq!(denied.status, 409);
    assert_eq!(denied.json()["holder"], Value::Null, "{}", denied.body);
    assert!(denied.body.contains("queued behind"), "{}", denied.body);
}
