//! Every bad input gets the documented status and code over HTTP, and changes nothing.

use crate::net_support::Server;

/// Sends each body to a path and expects a refusal with a message that says so; nothing may change.
async fn refused(server: &Server, path: &str, cases: &[(&str, u16, &str, &str)]) {
    let before = server.changes().await;
    for (body, status, code, says) in cases {
        let answer = server.post(path, body).await;
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (*status, *code),
            "{path} {body}: {}",
            answer.body
        );
        assert!(
            answer.message().contains(says),
            "{path} {body}: {}",
            answer.message()
        );
        assert_eq!(answer.header("content-type"), Some("application/json"));
    }
    assert_eq!(
        server.changes().await,
        before,
        "{path}: a refused request changed something"
    );
}

#[tokio::test]
async fn names_that_are_empty_overlong_or_not_ascii() {
    let server = Server::start().await;
    let before = server.changes().await;
    let long = "x".repeat(256);
    let body = r#"{"client_id": "a", "lease_duration_ms": 10000}"#;
    for (name, says) in [
        ("", "resource_id: lock name is empty; 1 ..= 255 bytes"),
        (
            &*long,
            "resource_id: lock name has 256 bytes; 1 ..= 255 are allowed",
        ),
        ("%C3%BC", "not printable ASCII"),
        ("a%0Ab", "not printable ASCII"),
        ("%00", "not printable ASCII"),
        ("%FF%FE", "not printable ASCII"),
    ] {
        for action in ["acquire", "renew", "release", "break"] {
            let answer = server
                .post(&format!("/v1/locks/{name}/{action}"), body)
                .await;
            assert_eq!(
                (answer.status, answer.code().as_str()),
                (400, "invalid"),
                "{name}/{action}"
            );
            assert!(
                answer.message().contains(says),
                "{name}: {}",
                answer.message()
            );
        }
        let shown = server.get(&format!("/v1/locks/{name}")).await;
        assert_eq!(
            (shown.status, shown.code().as_str()),
            (400, "invalid"),
            "{name}"
        );
    }
    assert_eq!(
        server
            .post(&format!("/v1/locks/{}/acquire", &long[1..]), body)
            .await
            .status,
        200
    );
    assert_eq!(server.changes().await, before + 1);
}

#[tokio::test]
async fn an_acquire_with_a_bad_body() {
    let server = Server::start().await;
    server.lock("held", "holder").await;
    let ttl = |ttl: &str| format!(r#"{{"client_id": "a", "lease_duration_ms": {ttl}}}"#);
    let wait = |wait: &str| {
        format!(r#"{{"client_id": "a", "lease_duration_ms": 10000, "wait_ms": {wait}}}"#)
    };
    let with =
        |field: &str| format!(r#"{{"client_id": "a", "lease_duration_ms": 10000, {field}}}"#);
    let client = |client: &str| format!(r#"{{"client_id": {client}, "lease_duration_ms": 10000}}"#);
    let huge = "1".to_owned() + &"0".repeat(30);
    let long = "x".repeat(257);
    let range = "lease_duration_ms must be an integer in 100 ..= 86400000";
    let wait_range = "wait_ms must be an integer in 0 ..= 86400000";
    let cases = [
        (
            ttl("0"),
            "lease_duration_ms: a lease of 0 ms is outside 100 ms ..= 86400000 ms",
        ),
        (ttl("99"), "outside 100 ms ..= 86400000 ms"),
        (ttl("86400001"), "outside 100 ms ..= 86400000 ms"),
        (ttl("-1"), range),
        (ttl("\"10s\""), range),
        (ttl("1.5"), range),
        (ttl("1e-3"), range),
        (ttl(&huge), range),
        (ttl("true"), range),
        (ttl("{}"), range),
        (ttl("null"), "lease_duration_ms is missing"),
        (
            r#"{"client_id": "a"}"#.into(),
            "lease_duration_ms is missing",
        ),
        (wait("-1"), wait_range),
        (wait("\"1\""), wait_range),
        (wait(&huge), wait_range),
        (
            wait("86400001"),
            "wait_ms: a wait of 86400001 ms is outside 0 ..= 86400000 ms",
        ),
        (client("\"\""), "client_id: client id is empty"),
        (client("7"), "client_id must be a string of 1 ..= 255 bytes"),
        (
            client("null"),
            "client_id must be a string of 1 ..= 255 bytes",
        ),
        (
            client("\"\u{fc}\""),
            "client_id: client id has a byte at offset 0",
        ),
        (
            client(&format!("\"{long}\"")),
            "client_id: client id has 257 bytes",
        ),
        (
            r#"{"lease_duration_ms": 10000}"#.into(),
            "missing field `client_id`",
        ),
        (with(r#""ttl": 5"#), "unknown field `ttl`"),
        (
            with(r#""lock_token": "abc""#),
            "lock_token must be 32 hexadecimal digits",
        ),
        (
            with(r#""lock_token": 5"#),
            "lock_token must be a string of 32 hexadecimal digits",
        ),
        (
            with(r#""request_id": "abc""#),
            "request_id must be a string of 32 hexadecimal digits, or a UUID",
        ),
        (
            with(&format!(r#""metadata": "{long}""#)),
            "metadata has 257 bytes; at most 256",
        ),
        (with(r#""client_id": "b""#), "duplicate field `client_id`"),
        (String::new(), "the body is empty"),
        ("null".into(), "expected a JSON object"),
        ("[]".into(), "expected a JSON object"),
        ("{".into(), "the body is not JSON"),
        ("client_id=a".into(), "the body is not JSON"),
        (
            format!("{} x", with(r#""wait_ms": 0"#)),
            "the body is not JSON",
        ),
    ];
    let cases: Vec<_> = cases
        .iter()
        .map(|(body, says)| (body.as_str(), 400, "invalid", *says))
        .collect();
    refused(&server, "/v1/locks/x/acquire", &cases).await;
    refused(&server, "/v1/locks/held/acquire", &cases).await;
}

#[tokio::test]
async fn lock_tokens_and_fencing_tokens_that_do_not_fit() {
    let server = Server::start().await;
    let (key, _) = server.lock("x", "a").await;
    let unknown = "ab".repeat(16);
    let body = |key: &str, rest: &str| format!(r#"{{"lock_token": "{key}"{rest}}}"#);
    let token = |token: &str| body(&key, &format!(r#", "fencing_token": {token}"#));
    let range = "fencing_token: fencing token";
    let must = "fencing_token must be an integer in 1 ..= 9007199254740991";
    let cases = [
        (body(&unknown, ""), 409, "not_held", "does not hold"),
        (
            body("", ""),
            400,
            "invalid",
            "lock_token must be 32 hexadecimal digits",
        ),
        (
            body(&key[1..], ""),
            400,
            "invalid",
            "lock_token must be 32 hexadecimal digits",
        ),
        (
            body(&"zz".repeat(16), ""),
            400,
            "invalid",
            "lock_token must be 32 hexadecimal digits",
        ),
        ("{}".into(), 400, "invalid", "missing field `lock_token`"),
        (token("0"), 400, "invalid", range),
        (token("9007199254740992"), 400, "invalid", range),
        (token("-1"), 400, "invalid", must),
        (token("1.5"), 400, "invalid", must),
        (token("\"1\""), 400, "invalid", must),
        (
            body(&key, r#", "token": 1"#),
            400,
            "invalid",
            "unknown field `token`",
        ),
    ];
    let cases: Vec<_> = cases
        .iter()
        .map(|(b, s, c, m)| (b.as_str(), *s, *c, *m))
        .collect();
    refused(&server, "/v1/locks/x/renew", &cases).await;
    refused(&server, "/v1/locks/x/release", &cases).await;
    let ttl = body(&key, r#", "lease_duration_ms": 0"#);
    refused(
        &server,
        "/v1/locks/x/renew",
        &[(&ttl, 400, "invalid", "a lease of 0 ms")],
    )
    .await;
    refused(
        &server,
        "/v1/locks/y/release",
        &[(&body(&key, ""), 409, "not_held", "does not hold")],
    )
    .await;
}

#[tokio::test]
async fn an_unknown_lease_to_acquire_under() {
    let server = Server::start().await;
    let body = format!(
        r#"{{"client_id": "a", "lock_token": "{}"}}"#,
        "ab".repeat(16)
    );
    let before = server.sight().await;
    let answer = server.post("/v1/locks/x/acquire", &body).await;
    assert_eq!(
        (answer.status, answer.code().as_str()),
        (409, "not_held"),
        "{}",
        answer.body
    );
    assert_eq!(answer.json()["lock_acquired"], false);
    // The answer is remembered for a retry, so the log grows; nothing that anybody can see changes.
    assert_eq!(server.sight().await, before);
}

#[tokio::test]
async fn a_break_with_a_bad_token_or_reason() {
    let server = Server::start().await;
    server.lock("x", "a").await;
    let reason = format!(r#"{{"fencing_token": 1, "reason": "{}"}}"#, "x".repeat(257));
    let cases = [
        (
            r#"{"fencing_token": 0}"#,
            400,
            "invalid",
            "fencing token 0 is outside 1 ..= 9007199254740991",
        ),
        (
            r#"{"fencing_token": 9007199254740992}"#,
            400,
            "invalid",
            "outside 1 ..= 9007199254740991",
        ),
        (
            r#"{"fencing_token": "1"}"#,
            400,
            "invalid",
            "fencing_token must be an integer",
        ),
        (
            r#"{"reason": "x"}"#,
            400,
            "invalid",
            "missing field `fencing_token`",
        ),
        (
            r#"{"fencing_token": 1, "why": "x"}"#,
            400,
            "invalid",
            "unknown field `why`",
        ),
        (
            reason.as_str(),
            400,
            "invalid",
            "reason has 257 bytes; at most 256",
        ),
        (
            r#"{"fencing_token": 2}"#,
            412,
            "stale",
            "the lock is held with fencing token 1, not with 2: look at it again",
        ),
    ];
    refused(&server, "/v1/locks/x/break", &cases).await;
}

#[tokio::test]
async fn a_clock_that_is_moved_badly() {
    let server = Server::start().await;
    let range = "ms must be an integer in 1 ..= 31536000000";
    let cases = [
        (r#"{"ms": 0}"#, 400, "invalid", range),
        (r#"{"ms": -5}"#, 400, "invalid", range),
        (r#"{"ms": "5"}"#, 400, "invalid", range),
        (r#"{"ms": 31536000001}"#, 400, "invalid", range),
        (r#"{"ms": 1, "s": 1}"#, 400, "invalid", "unknown field `s`"),
        ("{}", 400, "invalid", "missing field `ms`"),
    ];
    refused(&server, "/v1/clock/advance", &cases).await;
}

#[tokio::test]
async fn parameters_that_do_not_fit() {
    let server = Server::start().await;
    let before = server.changes().await;
    for (query, says) in [
        ("limit=0", "limit must be an integer in 1 ..= 1000"),
        ("limit=1001", "limit must be an integer in 1 ..= 1000"),
        ("limit=-1", "limit must be an integer"),
        ("limit=ten", "limit must be an integer"),
        ("cursor=7", "cursor must be a next_cursor"),
        ("prefix=%C3%BC", "prefix: "),
        ("prefix=%FF", "prefix: "),
        ("pre=x", "unknown parameter `pre`"),
        ("limit=1&limit=2", "duplicate parameter `limit`"),
    ] {
        let answer = server.get(&format!("/v1/locks?{query}")).await;
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (400, "invalid"),
            "{query}: {}",
            answer.body
        );
        assert!(
            answer.message().contains(says),
            "{query}: {}",
            answer.message()
        );
    }
    for query in ["after_revision=x", "prefix=%C3%BC", "since=1"] {
        let answer = server.get(&format!("/v1/watch?{query}")).await;
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (400, "invalid"),
            "{query}"
        );
    }
    assert_eq!(server.changes().await, before);
}

#[tokio::test]
async fn wrong_methods_and_paths() {
    let server = Server::start().await;
    let before = server.changes().await;
    for (method, path, allow) in [
        ("GET", "/v1/locks/x/acquire", "post"),
        ("DELETE", "/v1/locks/x", "get,head"),
        ("PUT", "/v1/locks/x/renew", "post"),
        ("POST", "/v1/locks", "get,head"),
        ("POST", "/v1/watch", "get,head"),
        ("POST", "/metrics", "get,head"),
    ] {
        let answer = server.send(method, path, "", "").await;
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (405, "method_not_allowed"),
            "{method} {path}"
        );
        assert_eq!(answer.header("allow"), Some(allow), "{method} {path}");
    }
    for path in [
        "/page",
        "/v1",
        "/v1/lock/x",
        "/v1/locks/a/b",
        "/v1/locks/a/b/acquire",
        "/v1/locks/x/acquire/",
        "/v2/locks",
    ] {
        let answer = server.post(path, "{}").await;
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (404, "not_found"),
            "{path}"
        );
    }
    let hint = server.post("/v1/locks/a/b/acquire", "{}").await.message();
    assert!(hint.contains("%2F"), "{hint}");
    assert_eq!(server.changes().await, before);
}

#[tokio::test]
async fn bodies_that_are_huge_or_declared_as_something_else() {
    let server = Server::start().await;
    let before = server.changes().await;
    let fits = format!(
        r#"{{"client_id": "a", "lease_duration_ms": 0{}}}"#,
        " ".repeat(65_000)
    );
    assert_eq!(
        server.post("/v1/locks/x/acquire", &fits).await.code(),
        "invalid"
    );
    let huge = format!(
        r#"{{"client_id": "a", "lease_duration_ms": 10000{}}}"#,
        " ".repeat(70_000)
    );
    let answer = server.post("/v1/locks/x/acquire", &huge).await;
    assert_eq!(
        (answer.status, answer.code().as_str()),
        (413, "too_large"),
        "{}",
        answer.body
    );

    let chunk = format!("{:x}\r\n{huge}\r\n0\r\n\r\n", huge.len());
    let head = "POST /v1/locks/x/acquire HTTP/1.1\r\nHost: t\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n";
    let answer = server.raw((head.to_owned() + &chunk).as_bytes()).await;
    assert_eq!(
        (answer.status, answer.code().as_str()),
        (413, "too_large"),
        "{}",
        answer.body
    );

    let body = r#"{"client_id": "a", "lease_duration_ms": 10000}"#;
    for headers in ["Content-Type: text/xml\r\n", "Origin: http://test\r\n"] {
        let answer = server
            .send("POST", "/v1/locks/x/acquire", headers, body)
            .await;
        assert_eq!(
            (answer.status, answer.code().as_str()),
            (415, "unsupported_media_type"),
            "{headers}"
        );
    }
    assert_eq!(server.changes().await, before);
}

#[tokio::test]
async fn a_head_that_is_too_large_or_no_http_at_all() {
    let server = Server::start().await;
    let before = server.changes().await;
    let large = format!(
        "GET /healthz HTTP/1.1\r\nHost: t\r\nX: {}\r\n\r\n",
        "x".repeat(10_000)
    );
    assert_eq!(server.raw(large.as_bytes()).await.status, 431);
    assert_eq!(server.raw(b"nonsense\r\n\r\n").await.status, 400);
    assert_eq!(server.changes().await, before);
}
