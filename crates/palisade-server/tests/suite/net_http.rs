//! The HTTP/JSON interface over real sockets: every endpoint.

use crate::net_support::{Server, Wish, soon};
use palisade_core::Limits;
use serde_json::json;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

const ACQUIRE: &str = r#"{"client_id": "a", "lease_duration_ms": 10000, "wait_ms": 0}"#;

#[tokio::test]
async fn an_acquire_answers_as_the_contract_prints_it() {
    let server = Server::start().await;
    let granted = server
        .post("/v1/locks/storage:customer-orders-bucket/acquire", ACQUIRE)
        .await;
    assert_eq!(granted.status, 200);
    assert_eq!(granted.header("content-type"), Some("application/json"));
    let granted = granted.json();
    assert_eq!(granted["resource_id"], "storage:customer-orders-bucket");
    assert_eq!(granted["lock_acquired"], true);
    assert_eq!(granted["fencing_token"], 1);
    assert_eq!(granted["lease_duration_ms"], 10_000);
    assert_eq!(granted["remaining_ms"], 10_000);
    assert_eq!(granted["authority"], "test-authority");
    let key = granted["lock_token"].as_str().unwrap();
    assert!(
        key.len() == 32 && key.bytes().all(|byte| byte.is_ascii_hexdigit()),
        "{key}"
    );
    let at = granted["acquired_at"].as_str().unwrap();
    assert!(
        at.len() == 24 && at.ends_with('Z') && at.as_bytes()[19] == b'.',
        "{at}"
    );
}

#[tokio::test]
async fn a_denied_acquire_names_the_holder_and_when_to_retry() {
    let server = Server::start().await;
    server.lock("x", "b").await;
    server.advance(5_790).await;
    let denied = server.post("/v1/locks/x/acquire", ACQUIRE).await;
    assert_eq!(denied.status, 409);
    assert_eq!(denied.header("retry-after"), Some("5"));
    let mut denied = denied.json();
    denied["error"]["message"].take();
    let shape = json!({
        "resource_id": "x", "lock_acquired": false,
        "error": {"code": "held", "message": null, "retry_after_ms": 4210},
        "holder": {"client_id": "b", "fencing_token": 1, "remaining_ms": 4210}
    });
    assert_eq!(denied, shape);
}

#[tokio::test]
async fn renew_release_and_release_again() {
    let server = Server::start().await;
    let (key, _) = server.lock("x", "a").await;
    server.advance(4_000).await;
    let body = format!(r#"{{"lock_token": "{key}"}}"#);
    let renewed = server.post("/v1/locks/x/renew", &body).await;
    let shape = json!({"resource_id": "x", "fencing_token": 1, "authority": "test-authority", "lease_duration_ms": 10000, "valid_for_ms": 10000, "remaining_ms": 10000, "waiters": 0});
    assert_eq!((renewed.status, renewed.json()), (200, shape));

    let longer =
        format!(r#"{{"lock_token": "{key}", "fencing_token": 1, "lease_duration_ms": 20000}}"#);
    let renewed = server.post("/v1/locks/x/renew", &longer).await.json();
    assert_eq!(
        (&renewed["lease_duration_ms"], &renewed["remaining_ms"]),
        (&json!(20_000), &json!(20_000))
    );

    for again in [false, true] {
        let released = server.post("/v1/locks/x/release", &body).await;
        let shape = json!({"resource_id": "x", "released": true, "already_released": again, "fencing_token": 1, "authority": "test-authority"});
        assert_eq!((released.status, released.json()), (200, shape));
    }
    let late = server.post("/v1/locks/x/renew", &body).await;
    assert_eq!((late.status, late.code().as_str()), (409, "not_held"));
}

#[tokio::test]
async fn a_lease_that_ran_out_is_expired_and_never_revived() {
    let server = Server::start().await;
    let (key, _) = server.lock("x", "a").await;
    server.advance(10_000).await;
    let body = format!(r#"{{"lock_token": "{key}"}}"#);
    for action in ["renew", "release"] {
        let late = server.post(&format!("/v1/locks/x/{action}"), &body).await;
        assert_eq!(
            (late.status, late.code().as_str()),
            (410, "expired"),
            "{action}"
        );
        assert_eq!(late.json()["error"]["fencing_token"], 1);
    }
    assert_eq!(server.lock("x", "b").await.1, 2);
}

#[tokio::test]
async fn a_restarted_client_supersedes_its_former_life() {
    let server = Server::start().await;
    let (key, _) = server.lock("x", "a").await;
    assert_eq!(server.lock("x", "a").await.1, 2);
    let late = server
        .post(
            "/v1/locks/x/renew",
            &format!(r#"{{"lock_token": "{key}"}}"#),
        )
        .await;
    assert_eq!((late.status, late.code().as_str()), (410, "superseded"));
}

#[tokio::test]
async fn an_operator_breaks_a_lock_with_the_token_it_is_held_with() {
    let server = Server::start().await;
    let (key, _) = server.lock("w", "a").await;
    let (_, _) = server.lock("x", "a").await;
    let wrong = server
        .post(
            "/v1/locks/x/break",
            r#"{"fencing_token": 1, "reason": "stuck"}"#,
        )
        .await;
    assert_eq!((wrong.status, wrong.code().as_str()), (412, "stale"));
    assert_eq!(wrong.json()["error"]["highest"], 2);
    let broken = server
        .post(
            "/v1/locks/w/break",
            r#"{"fencing_token": 1, "reason": "stuck"}"#,
        )
        .await;
    let shape = json!({"resource_id": "w", "revoked": true, "fencing_token": 1});
    assert_eq!((broken.status, broken.json()), (200, shape));
    let late = server
        .post(
            "/v1/locks/w/renew",
            &format!(r#"{{"lock_token": "{key}"}}"#),
        )
        .await;
    assert_eq!((late.status, late.code().as_str()), (410, "revoked"));
    let free = server
        .post("/v1/locks/w/break", r#"{"fencing_token": 1}"#)
        .await;
    assert_eq!((free.status, free.code().as_str()), (409, "not_held"));
    assert_eq!(free.message(), "nobody holds this lock");
}

#[tokio::test]
async fn one_lease_carries_many_locks_and_a_retry_gets_the_first_answer() {
    let server = Server::start().await;
    let (key, _) = server.lock("x", "a").await;
    let under = format!(r#"{{"client_id": "a", "lock_token": "{key}"}}"#);
    let second = server.post("/v1/locks/y/acquire", &under).await.json();
    assert_eq!(
        (&second["lock_token"], &second["fencing_token"]),
        (&json!(key), &json!(2))
    );

    let named = r#"{"client_id": "a", "lease_duration_ms": 10000, "metadata": "m", "request_id": "00010203-0405-0607-0809-0a0b0c0d0e0f"}"#;
    let first = server.post("/v1/locks/z/acquire", named).await.json();
    server.advance(1_000).await;
    let plain = named.replace(
        "00010203-0405-0607-0809-0a0b0c0d0e0f",
        "000102030405060708090A0B0C0D0E0F",
    );
    let again = server.post("/v1/locks/z/acquire", &plain).await.json();
    for field in [
        "lock_token",
        "fencing_token",
        "acquired_at",
        "lease_duration_ms",
    ] {
        assert_eq!(first[field], again[field], "{field}");
    }
    assert_eq!(again["remaining_ms"], 9_000, "a repeat gets what is left");
}

#[tokio::test]
async fn show_tells_holder_and_waiters_and_free_is_null() {
    let server = Server::start().await;
    let free = json!({"resource_id": "x", "revision": 0, "holder": null, "waiters": 0});
    assert_eq!(server.get("/v1/locks/x").await.json(), free);
    let body = r#"{"client_id": "a", "lease_duration_ms": 10000, "metadata": "host 7"}"#;
    let granted = server.post("/v1/locks/x/acquire", body).await.json();
    server.advance(1_000).await;
    let held = json!({
        "resource_id": "x", "revision": 1, "waiters": 0,
        "holder": {"client_id": "a", "fencing_token": 1, "remaining_ms": 9000,
                   "acquired_at": granted["acquired_at"], "metadata": "host 7"}
    });
    assert_eq!(server.get("/v1/locks/x").await.json(), held);
}

#[tokio::test]
async fn names_in_paths_are_any_printable_ascii_when_encoded() {
    let server = Server::start().await;
    let all: String = (b' '..=b'~').map(char::from).collect();
    let names = [
        "a/b",
        "a b",
        "100%",
        "a+b",
        "..",
        "acquire",
        "?x=1#y",
        all.as_str(),
    ];
    for name in names {
        let path: String = name.bytes().map(|byte| format!("%{byte:02x}")).collect();
        let granted = server
            .post(&format!("/v1/locks/{path}/acquire"), ACQUIRE)
            .await;
        assert_eq!(granted.status, 200, "{name}: {}", granted.body);
        assert_eq!(granted.json()["resource_id"], name);
        assert_eq!(
            server.get(&format!("/v1/locks/{path}")).await.json()["resource_id"],
            name
        );
    }
    assert_eq!(
        server.get("/v1/locks/a+b").await.json()["holder"]["client_id"],
        "a",
        "+ is a plus"
    );
}

#[tokio::test]
async fn a_listing_goes_page_by_page_through_a_prefix() {
    let server = Server::start().await;
    for n in 0..25 {
        server.lock(&format!("a%2F{n:02}"), "c").await;
        server.lock(&format!("b{n:02}"), "c").await;
    }
    let mut seen = Vec::new();
    let mut path = "/v1/locks?prefix=a%2F&limit=10".to_owned();
    loop {
        let page = server.get(&path).await.json();
        let locks = page["locks"].as_array().unwrap();
        assert!(locks.len() <= 10);
        seen.extend(
            locks
                .iter()
                .map(|lock| lock["resource_id"].as_str().unwrap().to_owned()),
        );
        let Some(cursor) = page["next_cursor"].as_str() else {
            break;
        };
        path = format!("/v1/locks?prefix=a%2F&limit=10&cursor={cursor}");
    }
    seen.sort();
    assert_eq!(
        seen,
        (0..25).map(|n| format!("a/{n:02}")).collect::<Vec<_>>()
    );
    let all = server.get("/v1/locks").await.json();
    assert_eq!(all["locks"].as_array().unwrap().len(), 50);
    assert_eq!(all["locks"][0]["holder"]["client_id"], "c");
}

#[tokio::test]
async fn curl_needs_no_content_type() {
    let server = Server::start().await;
    let form = "Content-Type: application/x-www-form-urlencoded\r\n";
    for (lock, headers) in [("x", form), ("y", "")] {
        let path = format!("/v1/locks/{lock}/acquire");
        assert_eq!(
            server.send("POST", &path, headers, ACQUIRE).await.status,
            200
        );
    }
}

#[tokio::test]
async fn a_wait_is_a_long_poll_that_ends_with_the_grant_or_the_deadline() {
    let server = Server::start().await;
    let (key, _) = server.lock("x", "a").await;
    let wait = |client: &str| {
        format!(r#"{{"client_id": "{client}", "lease_duration_ms": 10000, "wait_ms": 60000}}"#)
    };
    let short = r#"{"client_id": "c", "lease_duration_ms": 10000, "wait_ms": 2000}"#;
    let (b, second) = (wait("b"), "/v1/locks/x/acquire");
    let (granted, denied, ()) =
        tokio::join!(server.post(second, &b), server.post(second, short), async {
            server.waiters(2).await;
            assert_eq!(server.get("/v1/locks/x").await.json()["waiters"], 2);
            server.advance(2_000).await;
            server.waiters(1).await;
            server
                .post(
                    "/v1/locks/x/release",
                    &format!(r#"{{"lock_token": "{key}"}}"#),
                )
                .await;
        });
    assert_eq!((denied.status, denied.code().as_str()), (409, "held"));
    let granted = granted.json();
    assert_eq!(
        (&granted["fencing_token"], &granted["remaining_ms"]),
        (&json!(2), &json!(10_000))
    );
}

#[tokio::test]
async fn a_waiting_client_that_hangs_up_leaves_the_queue() {
    let server = Server::start().await;
    server.lock("x", "a").await;
    let waiting = server.waiting().await;
    server.waiters(1).await;
    drop(waiting);
    server.waiters(0).await;
}

#[tokio::test]
async fn full_queues_and_too_many_locks_say_so() {
    let limits = Limits {
        waiters_per_lock: 1,
        waiters_per_client: 1,
        locks: 2,
        ..Limits::DEFAULT
    };
    let server = Server::with(Wish {
        limits,
        ..Wish::default()
    })
    .await;
    server.lock("x", "a").await;
    server.lock("y", "a").await;
    let many = server.post("/v1/locks/z/acquire", ACQUIRE).await;
    assert_eq!((many.status, many.code().as_str()), (429, "too_many_locks"));
    let wait = |client: &str| {
        format!(r#"{{"client_id": "{client}", "lease_duration_ms": 10000, "wait_ms": 60000}}"#)
    };
    let mut waiting = server.connect().await;
    let body = wait("b");
    let head = format!(
        "POST /v1/locks/x/acquire HTTP/1.1\r\nHost: t\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    waiting.write_all((head + &body).as_bytes()).await.unwrap();
    server.waiters(1).await;
    for full in [
        server.post("/v1/locks/x/acquire", &wait("c")).await,
        server.post("/v1/locks/y/acquire", &wait("b")).await,
    ] {
        assert_eq!(
            (full.status, full.code().as_str()),
            (429, "queue_full"),
            "{}",
            full.body
        );
        assert_eq!(
            (
                full.header("retry-after"),
                &full.json()["error"]["retry_after_ms"]
            ),
            (Some("1"), &json!(1_000))
        );
        assert_eq!(full.json()["lock_acquired"], false);
    }
}

#[tokio::test]
async fn status_health_metrics_and_the_clock() {
    let server = Server::start().await;
    server.lock("x", "a").await;
    let status = json!({
        "authority": "test-authority", "incarnation": "first", "next_token": 2, "locks": 1, "leases": 1,
        "waiters": 0, "version": env!("CARGO_PKG_VERSION"), "manual_clock": true, "log_full": false,
        "counts": {"granted": 1, "renewed": 0, "expired": 0, "revoked": 0, "graces": 0}
    });
    let mut said = server.get("/v1/status").await.json();
    let since = said["counts"].as_object_mut().unwrap().remove("since");
    let since = since.unwrap();
    assert!(since.as_str().unwrap().ends_with('Z'), "{since}");
    assert_eq!(said, status);
    let health = server.get("/healthz").await;
    assert_eq!(
        (health.status, health.json()),
        (200, json!({"status": "serving", "log_full": false}))
    );
    let moved = server.post("/v1/clock/advance", r#"{"ms": 1500}"#).await;
    assert_eq!((moved.status, moved.json()), (200, json!({"now_ms": 1500})));

    let metrics = server.get("/metrics").await;
    assert_eq!(metrics.status, 200);
    for line in [
        "palisade_granted_total 1",
        "# TYPE palisade_granted_total counter",
        "# HELP palisade_granted_total Grants issued",
        "palisade_locks 1",
        "palisade_next_token 2",
        "palisade_connections_accepted_total",
    ] {
        assert!(
            metrics.body.contains(line),
            "{line} is not in\n{}",
            metrics.body
        );
    }
}

#[tokio::test]
async fn a_running_clock_is_not_moved_and_the_answer_names_the_flag() {
    let server = Server::with(Wish {
        manual_clock: false,
        ..Wish::default()
    })
    .await;
    let refused = server.post("/v1/clock/advance", r#"{"ms": 1}"#).await;
    assert_eq!((refused.status, refused.code().as_str()), (409, "refused"));
    assert!(
        refused.message().contains("--clock manual"),
        "{}",
        refused.body
    );
}

#[tokio::test]
async fn the_description_lists_every_path_with_its_errors() {
    let server = Server::start().await;
    let document = server.get("/openapi.json").await.json();
    let paths = document["paths"].as_object().unwrap();
    let mut operations: Vec<String> = paths
        .iter()
        .flat_map(|(path, item)| {
            item.as_object()
                .unwrap()
                .keys()
                .map(move |method| format!("{method} {path}"))
        })
        .collect();
    operations.sort();
    let expected = [
        "get /.well-known/jwks.json",
        "get /healthz",
        "get /metrics",
        "get /openapi.json",
        "get /readyz",
        "get /v1/cluster",
        "get /v1/history",
        "get /v1/locks",
        "get /v1/locks/{resource_id}",
        "get /v1/ranking",
        "get /v1/status",
        "get /v1/watch",
        "get /v1/whoami",
        "post /v1/clock/advance",
        "post /v1/cluster/add",
        "post /v1/cluster/promote",
        "post /v1/cluster/remove",
        "post /v1/cluster/transfer",
        "post /v1/listen",
        "post /v1/locks/{resource_id}/acquire",
        "post /v1/locks/{resource_id}/break",
        "post /v1/locks/{resource_id}/open",
        "post /v1/locks/{resource_id}/permits",
        "post /v1/locks/{resource_id}/proclaim",
        "post /v1/locks/{resource_id}/rejections",
        "post /v1/locks/{resource_id}/release",
        "post /v1/locks/{resource_id}/renew",
        "post /v1/locks/{resource_id}/sequencer",
        "post /v1/requests/{request_id}/abandon",
    ];
    assert_eq!(operations, expected);
    let acquire = &document["paths"]["/v1/locks/{resource_id}/acquire"]["post"]["responses"];
    for status in [
        "200", "400", "405", "408", "409", "410", "413", "415", "429", "503", "504", "507",
    ] {
        assert!(
            acquire[status]["content"]["application/json"]["schema"].is_object(),
            "{status}: {acquire}"
        );
    }
    assert!(
        document["components"]["schemas"]["AcquireBody"]["properties"]["client_id"].is_object()
    );
    assert_eq!(
        document["components"]["schemas"]["AcquireBody"]["additionalProperties"],
        false
    );
}

#[tokio::test]
async fn connections_are_kept_and_requests_follow_each_other() {
    let server = Server::start().await;
    let mut stream = server.connect().await;
    for _ in 0..3 {
        stream
            .write_all(b"GET /healthz HTTP/1.1\r\nHost: t\r\n\r\n")
            .await
            .unwrap();
        let mut seen = Vec::new();
        while !seen.ends_with(b"}") {
            let mut chunk = [0; 512];
            let read = soon(stream.read(&mut chunk)).await.unwrap();
            assert!(read > 0, "closed");
            seen.extend_from_slice(&chunk[..read]);
        }
        assert!(seen.starts_with(b"HTTP/1.1 200"));
    }
}
