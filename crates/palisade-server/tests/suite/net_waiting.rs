//! Waits over connections that do not last: the time-out of a proxy in between, a broken connection, a client that asks
//! for a sign of life. And the nonce, by which a client knows that an answer is its own.
//!
//! nginx and haproxy themselves are in `clients/holder-suite`; here the connection is dropped as they drop it.

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinHandle;

use crate::net_access::{closed_by, rules, token};
use crate::net_support::{Response, Server, exchange, soon};

/// A request for the lock `x` that waits for a day.
fn wait(client: &str, more: &str) -> String {
    let body = format!(
        r#"{{"client_id": "{client}", "lease_duration_ms": 10000, "wait_ms": 86400000{more}}}"#
    );
    format!(
        "POST /v1/locks/x/acquire HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
        body.len()
    )
}

fn named(number: u8) -> String {
    format!(r#", "request_id": "{number:032x}""#)
}

/// A connection whose request waits.
async fn waits_on(server: &Server, request: &str, waiters: usize) -> TcpStream {
    let mut stream = server.connect().await;
    stream.write_all(request.as_bytes()).await.unwrap();
    server.waiters(waiters).await;
    stream
}

fn asks(server: &Server, request: String) -> JoinHandle<Response> {
    let to = server.addr;
    tokio::spawn(async move { exchange(to, request.as_bytes()).await })
}

async fn release(server: &Server, key: &str) {
    let body = format!(r#"{{"lock_token": "{key}"}}"#);
    let released = server.post("/v1/locks/x/release", &body).await;
    assert_eq!(released.status, 200, "{}", released.body);
}

/// The holder, as soon as there is one.
async fn next_holder(server: &Server) -> String {
    soon(async {
        loop {
            let shown = server.get("/v1/locks/x").await.json();
            if let Some(client) = shown["holder"]["client_id"].as_str() {
                return client.to_owned();
            }
        }
    })
    .await
}

/// The caller with an id comes back in time and is first. In the other arms, the control, it comes too late, had no id,
/// or another request came between, and the one behind it is first.
#[tokio::test]
async fn a_broken_connection_keeps_its_place_for_two_seconds() {
    for (id, away, first) in [
        (named(1), 1_999, "b"),
        (named(1), 2_000, "c"),
        (String::new(), 1, "c"),
    ] {
        let server = Server::start().await;
        let (key, _) = server.lock("x", "a").await;
        let b = waits_on(&server, &wait("b", &id), 1).await;
        let _c = waits_on(&server, &wait("c", &named(2)), 2).await;
        let before = server.changes().await;
        drop(b);
        soon(async { while server.changes().await == before {} }).await;
        server.advance(away).await;
        server.waiters(if first == "b" { 2 } else { 1 }).await;
        let _again = waits_on(&server, &wait("b", &named(1)), 2).await;
        release(&server, &key).await;
        assert_eq!(next_holder(&server).await, first, "{id:?} after {away} ms");
    }
}

#[tokio::test]
async fn a_free_lock_is_kept_for_a_broken_connection_for_its_two_seconds_and_no_longer() {
    let server = Server::start().await;
    let (key, _) = server.lock("x", "a").await;
    let b = waits_on(&server, &wait("b", &named(1)), 1).await;
    let _c = waits_on(&server, &wait("c", &named(2)), 2).await;
    let before = server.changes().await;
    drop(b);
    soon(async { while server.changes().await == before {} }).await;
    release(&server, &key).await;
    server.advance(1_999).await;
    let shown = server.get("/v1/locks/x").await.json();
    assert!(shown["holder"].is_null(), "{shown}");
    server.advance(1).await;
    assert_eq!(next_holder(&server).await, "c");
}

#[tokio::test]
async fn an_abandoned_request_frees_its_place_at_once() {
    let server = Server::start().await;
    let (key, _) = server.lock("x", "a").await;
    let b = waits_on(&server, &wait("b", &named(1)), 1).await;
    let _c = waits_on(&server, &wait("c", &named(2)), 2).await;
    let before = server.changes().await;
    drop(b);
    soon(async { while server.changes().await == before {} }).await;
    let abandon = format!("/v1/requests/{:032x}/abandon", 1);
    assert_eq!(server.post(&abandon, "").await.status, 200);
    release(&server, &key).await;
    assert_eq!(next_holder(&server).await, "c");
}

#[tokio::test]
async fn a_kept_place_counts_as_its_callers_waiter_until_it_comes_back() {
    let rules = format!(
        "{}[[auth.quotas]]\nprincipal = \"hold\"\nwaiters = 1\n",
        rules()
    );
    let closed = closed_by(&rules).await;
    let server = &closed.server;
    let request = |principal: &str, wait_ms: u64, number: u8| {
        let body = format!(
            r#"{{"client_id": "{principal}{number}", "lease_duration_ms": 10000, "wait_ms": {wait_ms}{}}}"#,
            named(number)
        );
        format!(
            "POST /v1/locks/x%2F1/acquire HTTP/1.1\r\nHost: t\r\nConnection: close\r\nAuthorization: Bearer {}\r\nContent-Length: {}\r\n\r\n{body}",
            token(principal),
            body.len()
        )
    };
    let held = server.raw(request("both", 0, 1).as_bytes()).await;
    assert_eq!(held.status, 200, "{}", held.body);
    let first = waits_on(server, &request("hold", 60_000, 2), 1).await;
    let before = server.changes().await;
    drop(first);
    soon(async { while server.changes().await == before {} }).await;
    assert_eq!(server.status().await.waiters, 1, "its place is kept");
    let another = server.raw(request("hold", 60_000, 3).as_bytes()).await;
    assert_eq!(another.code(), "over_quota", "{}", another.body);
    // The same request is not counted twice.
    let _again = waits_on(server, &request("hold", 60_000, 2), 1).await;
    let another = server.raw(request("hold", 60_000, 3).as_bytes()).await;
    assert_eq!(another.code(), "over_quota", "{}", another.body);
}

#[tokio::test]
async fn a_waiter_hears_something_in_time_and_keeps_its_place() {
    let server = Server::start().await;
    let (key, _) = server.lock("x", "a").await;
    let polled = named(1) + r#", "poll_ms": 1000"#;
    // The control waits without `poll_ms` and gets nothing.
    let mut silent = waits_on(&server, &wait("c", &named(2)), 1).await;
    let first = asks(&server, wait("b", &polled));
    server.waiters(2).await;
    let second = soon(first).await.unwrap();
    assert_eq!(second.status, 202, "{}", second.body);
    let told = serde_json::json!({"resource_id": "x", "lock_acquired": false, "waiting": true});
    assert_eq!(second.json(), told);
    assert_eq!(server.status().await.waiters, 2);
    let mut byte = [0];
    let heard = silent.try_read(&mut byte);
    assert!(heard.is_err(), "the control was answered: {heard:?}");
    // Asked again it goes on where it was, behind the one that came before it.
    let again = asks(&server, wait("b", &polled));
    release(&server, &key).await;
    assert_eq!(next_holder(&server).await, "c");
    let mut answer = String::new();
    soon(silent.read_to_string(&mut answer)).await.unwrap();
    let (_, granted) = answer.split_once("\r\n\r\n").unwrap();
    let granted: serde_json::Value = serde_json::from_str(granted).unwrap();
    release(&server, granted["lock_token"].as_str().unwrap()).await;
    let granted = soon(again).await.unwrap();
    assert_eq!(granted.status, 200, "{}", granted.body);
}

#[tokio::test]
async fn a_bad_poll_is_refused_and_changes_nothing() {
    let server = Server::start().await;
    let before = server.changes().await;
    for (more, wanted) in [
        (r#", "poll_ms": 10000"#.to_owned(), "request_id"),
        (named(1) + r#", "poll_ms": 999"#, "1000 ..= 60000"),
        (named(1) + r#", "poll_ms": 60001"#, "1000 ..= 60000"),
        (named(1) + r#", "poll_ms": "1s""#, "1000 ..= 60000"),
    ] {
        let refused = server.raw(wait("b", &more).as_bytes()).await;
        assert_eq!(refused.code(), "invalid", "{more}");
        assert!(refused.message().contains(wanted), "{}", refused.message());
    }
    // Granted at once, nobody has to be heard from.
    let polled = wait("b", &(named(1) + r#", "poll_ms": 1000"#));
    assert_eq!(server.raw(polled.as_bytes()).await.status, 200);
    assert_eq!(server.changes().await, before + 1);
}

#[tokio::test]
async fn every_answer_carries_the_nonce_of_its_request() {
    let server = Server::start().await;
    let granted = r#"{"client_id": "a", "lease_duration_ms": 10000}"#;
    let large = "x".repeat(70_000);
    for (method, path, headers, body, status) in [
        ("GET", "/healthz", "", "", 200),
        ("GET", "/metrics", "", "", 200),
        ("GET", "/nothing", "", "", 404),
        ("PUT", "/v1/locks/x/acquire", "", "", 405),
        ("POST", "/v1/locks/x/acquire", "", granted, 200),
        (
            "POST",
            "/v1/locks/x/acquire",
            "",
            r#"{"client_id": "b", "lease_duration_ms": 10000}"#,
            409,
        ),
        ("POST", "/v1/locks/x/acquire", "", "nonsense", 400),
        ("POST", "/v1/locks/x/acquire", "", &*large, 413),
        (
            "POST",
            "/v1/locks/x/acquire",
            "Content-Type: text/xml\r\n",
            granted,
            415,
        ),
        (
            "POST",
            "/v1/locks/x/acquire",
            "Origin: http://evil.example\r\n",
            granted,
            403,
        ),
        ("GET", "/v1/watch?after_revision=x", "", "", 400),
    ] {
        let with = format!("{headers}Palisade-Nonce: n_{status}-Z\r\n");
        let answer = server.send(method, path, &with, body).await;
        assert_eq!(answer.status, status, "{method} {path}: {}", answer.body);
        let nonce = answer.header("palisade-nonce");
        assert_eq!(nonce, Some(&*format!("n_{status}-z")), "{method} {path}");
        // Without one there is none: headers that the server adds are not its own.
        let answer = server.send(method, path, headers, body).await;
        assert_eq!(answer.header("palisade-nonce"), None, "{method} {path}");
    }
    let before = server.changes().await;
    for bad in ["", "a b", "a;b", &*"x".repeat(65)] {
        let header = format!("Palisade-Nonce: {bad}\r\n");
        let refused = server
            .send("POST", "/v1/locks/y/acquire", &header, granted)
            .await;
        assert_eq!((refused.status, refused.code().as_str()), (400, "invalid"));
        assert_eq!(refused.header("palisade-nonce"), None, "{bad:?}");
        assert!(refused.message().contains("1 to 64"), "{refused:?}");
    }
    assert_eq!(server.changes().await, before);
    // The events of a watch come in an answer, too, and nginx is not to hold them back.
    let mut watch = server.connect().await;
    let request = b"GET /v1/watch HTTP/1.1\r\nHost: t\r\nPalisade-Nonce: w\r\n\r\n";
    watch.write_all(request).await.unwrap();
    let mut head = Vec::new();
    soon(async {
        while !head.ends_with(b"\r\n\r\n") {
            head.push(watch.read_u8().await.unwrap());
        }
    })
    .await;
    let head = String::from_utf8(head).unwrap();
    assert!(head.contains("palisade-nonce: w\r\n"), "{head}");
    assert!(head.contains("x-accel-buffering: no\r\n"), "{head}");
}
