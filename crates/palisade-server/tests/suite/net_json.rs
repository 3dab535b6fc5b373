//! The exact input and output of the HTTP interface: times in grants, giving a request up, numbers,
//! bodies and parameters.

use crate::net_support::{Response, Server};
use serde_json::{Value, json};

const NAMED: &str = "000102030405060708090a0b0c0d0e0f";

fn acquire(client: &str, more: &str) -> String {
    format!(r#"{{"client_id": "{client}", "lease_duration_ms": 10000{more}}}"#)
}

fn refused(answer: &Response, says: &str) {
    let seen = (answer.status, answer.code());
    assert_eq!(seen, (400, "invalid".to_owned()), "{}", answer.body);
    assert!(answer.message().contains(says), "{}", answer.message());
}

fn times(grant: &Value) -> [u64; 3] {
    ["valid_for_ms", "waited_ms", "remaining_ms"].map(|name| grant[name].as_u64().unwrap())
}

#[tokio::test]
async fn a_grant_that_waited_longer_than_its_lease_says_from_when_it_counts() {
    let server = Server::start().await;
    let path = "/v1/locks/x/acquire";
    let first = server.post(path, &acquire("a", "")).await.json();
    assert_eq!(times(&first), [10_000, 0, 10_000]);
    let key = first["lock_token"].as_str().unwrap();
    let body = acquire(
        "b",
        &format!(r#", "wait_ms": 60000, "request_id": "{NAMED}""#),
    );
    let keeps = format!(r#"{{"lock_token": "{key}"}}"#);
    let (granted, ()) = tokio::join!(server.post(path, &body), async {
        server.waiters(1).await;
        for _ in 0..2 {
            server.advance(8_000).await;
            let renewed = server.post("/v1/locks/x/renew", &keeps).await.json();
            assert_eq!(renewed["valid_for_ms"], 10_000);
        }
        server.post("/v1/locks/x/release", &keeps).await;
    });
    // Counted from when it was taken in, 16 s ago: the sending of the request plus this is the deadline.
    assert_eq!(times(&granted.json()), [26_000, 16_000, 10_000]);
    server.advance(3_000).await;
    // A repeat was sent later and has not waited: it gets the time that is left.
    let again = server.post(path, &body).await.json();
    assert_eq!(times(&again), [7_000, 0, 7_000]);
    assert_eq!(again["fencing_token"], granted.json()["fencing_token"]);
}

#[tokio::test]
async fn a_request_is_given_up_as_often_as_one_likes() {
    let server = Server::start().await;
    let (path, abandon) = (
        "/v1/locks/x/acquire",
        format!("/v1/requests/{NAMED}/abandon"),
    );
    let body = acquire("a", &format!(r#", "request_id": "{NAMED}""#));
    assert_eq!(server.post(path, &body).await.status, 200);
    for body in ["", "{}", "{}"] {
        let answer = server.post(&abandon, body).await;
        let shape = json!({"request_id": NAMED, "abandoned": true});
        assert_eq!((answer.status, answer.json()), (200, shape));
    }
    assert_eq!(
        server.get("/v1/locks/x").await.json()["holder"],
        Value::Null
    );
    let late = server.post(path, &body).await;
    assert_eq!((late.status, late.code().as_str()), (409, "abandoned"));
    let uuid = "/v1/requests/00010203-0405-0607-0809-0A0B0C0D0E0F/abandon";
    assert_eq!(server.post(uuid, "").await.json()["request_id"], NAMED);

    // One that waits is taken from the queue, and its caller told.
    server.lock("y", "a").await;
    let other = "ff".repeat(16);
    let body = acquire(
        "b",
        &format!(r#", "wait_ms": 60000, "request_id": "{other}""#),
    );
    let (denied, ()) = tokio::join!(server.post("/v1/locks/y/acquire", &body), async {
        server.waiters(1).await;
        let gone = server
            .post(&format!("/v1/requests/{other}/abandon"), "")
            .await;
        assert_eq!(gone.status, 200);
        server.waiters(0).await;
    });
    assert_eq!((denied.status, denied.code().as_str()), (409, "abandoned"));

    let must = "request_id must be a string of 32 hexadecimal digits, or a UUID";
    for id in ["x", "00", "%zz", &"g".repeat(32), &"0".repeat(33)] {
        let answer = server.post(&format!("/v1/requests/{id}/abandon"), "").await;
        refused(
            &answer,
            if id == "%zz" {
                "write a % as %25"
            } else {
                must
            },
        );
    }
    refused(
        &server.post(&abandon, r#"{"why": 1}"#).await,
        "unknown field `why`",
    );
    let got = server.get(&abandon).await;
    assert_eq!(
        (got.status, got.code().as_str()),
        (405, "method_not_allowed")
    );
}

#[tokio::test]
async fn an_integer_may_be_written_as_any_number_that_is_one() {
    let server = Server::start().await;
    for number in ["10000", "10000.0", "1e4", "1.0E+4", "100000e-1"] {
        let body = format!(r#"{{"client_id": "a", "lease_duration_ms": {number}}}"#);
        let granted = server.post("/v1/locks/x/acquire", &body).await;
        assert_eq!(granted.status, 200, "{number}: {}", granted.body);
        assert_eq!(granted.json()["lease_duration_ms"], 10_000, "{number}");
    }
    let token = server.get("/v1/locks/x").await.json()["holder"]["fencing_token"].clone();
    let broken = format!(r#"{{"fencing_token": {token}.0}}"#);
    assert_eq!(server.post("/v1/locks/x/break", &broken).await.status, 200);
    let must = "lease_duration_ms must be an integer in 100 ..= 86400000, not ";
    for number in ["10000.5", "1e-1", "-1.0", "9007199254740992.0", "1e30"] {
        let body = format!(r#"{{"client_id": "a", "lease_duration_ms": {number}}}"#);
        refused(&server.post("/v1/locks/x/acquire", &body).await, must);
    }
    // The largest token, to the digit: a reader that rounds would take it for another one.
    let largest = r#"{"fencing_token": 9007199254740991.0}"#;
    let free = server.post("/v1/locks/x/break", largest).await;
    assert_eq!(
        (free.status, free.code().as_str()),
        (409, "not_held"),
        "{}",
        free.body
    );
}

#[tokio::test]
async fn a_body_is_an_object_with_each_member_once() {
    let server = Server::start().await;
    let before = server.changes().await;
    let path = "/v1/locks/x/acquire";
    for (body, says) in [
        (r#"["a", 10000]"#, "expected a JSON object"),
        ("[]", "expected a JSON object"),
        ("\"a\"", "expected a JSON object"),
        ("7", "expected a JSON object"),
        ("null", "expected a JSON object"),
        ("", "the body is empty"),
        (r#"{"client_id": "a""#, "the body is not JSON"),
        (
            &acquire("a", r#", "client_id": "b""#),
            "duplicate field `client_id`",
        ),
        (
            &acquire("a", r#", "client\u005fid": "b""#),
            "duplicate field `client_id`",
        ),
        (&acquire("a", r#", "ttl": 3"#), "unknown field `ttl`"),
        (&(acquire("a", "") + "{}"), "trailing characters"),
    ] {
        refused(&server.post(path, body).await, says);
    }
    for path in ["/v1/locks/x/renew", "/v1/locks/x/release"] {
        let answer = server.post(path, &format!(r#"["{NAMED}"]"#)).await;
        refused(&answer, "expected a JSON object");
    }
    refused(
        &server.post("/v1/locks/x/break", "[1]").await,
        "expected a JSON object",
    );
    refused(
        &server.post("/v1/clock/advance", "[1]").await,
        "expected a JSON object",
    );
    assert_eq!(server.changes().await, before);
}

#[tokio::test]
async fn an_escape_that_is_none_is_no_name() {
    let server = Server::start().await;
    let before = server.changes().await;
    for name in ["%zz", "a%", "%4", "%%", "x%2", "%g0"] {
        let says = "write a % as %25";
        let answer = server
            .post(&format!("/v1/locks/{name}/acquire"), &acquire("a", ""))
            .await;
        refused(&answer, says);
        refused(&server.get(&format!("/v1/locks/{name}")).await, says);
        refused(&server.get(&format!("/v1/locks?prefix={name}")).await, says);
        refused(&server.get(&format!("/v1/watch?prefix={name}")).await, says);
    }
    assert_eq!(server.changes().await, before);
    let percent = server
        .post("/v1/locks/100%25/acquire", &acquire("a", ""))
        .await;
    assert_eq!(percent.json()["resource_id"], "100%", "control");
}

#[tokio::test]
async fn a_parameter_is_one_that_the_path_knows_and_comes_once() {
    let server = Server::start().await;
    server.lock("x", "a").await;
    let before = server.changes().await;
    let known = "unknown parameter `x`, expected one of `prefix`, `limit`, `cursor`";
    refused(&server.get("/v1/locks?x=1").await, known);
    let doubled = "duplicate parameter `limit`";
    refused(&server.get("/v1/locks?limit=1&limit=1").await, doubled);
    let none = "unknown parameter `wait_ms`, this path takes no parameters";
    for path in [
        "/v1/locks/x",
        "/v1/status",
        "/healthz",
        "/metrics",
        "/openapi.json",
    ] {
        refused(&server.get(&format!("{path}?wait_ms=1")).await, none);
        assert_eq!(server.get(&format!("{path}?")).await.status, 200, "control");
    }
    for action in ["acquire", "renew", "release", "break"] {
        let path = format!("/v1/locks/x/{action}?wait_ms=1");
        refused(&server.post(&path, &acquire("b", "")).await, none);
    }
    refused(
        &server
            .post("/v1/clock/advance?wait_ms=1", r#"{"ms": 1}"#)
            .await,
        none,
    );
    assert_eq!(server.changes().await, before);
}
