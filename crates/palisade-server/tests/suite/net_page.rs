//! The page's files, and the ranking that it shows. The program's tests show them in a browser.

use crate::net_support::Server;
use serde_json::json;
use tokio::io::AsyncWriteExt as _;

#[tokio::test]
async fn the_page_may_ask_this_server_only_and_is_asked_for_again_after_an_upgrade() {
    let server = Server::start().await;
    for (path, kind) in [
        ("/", "text/html"),
        ("/page.css", "text/css"),
        ("/page.js", "text/javascript"),
        ("/draw.js", "text/javascript"),
        ("/ask.js", "text/javascript"),
        ("/health.js", "text/javascript"),
    ] {
        let file = server.get(path).await;
        assert_eq!(file.status, 200, "{path}");
        assert!(file.header("content-type").unwrap().starts_with(kind));
        let policy = file.header("content-security-policy").unwrap();
        for part in [
            "default-src 'none'",
            "connect-src 'self'",
            "frame-ancestors 'none'",
        ] {
            assert!(policy.contains(part), "{path}: {policy}");
        }
        assert!(!policy.contains("unsafe"), "{policy}");
        assert_eq!(file.header("x-content-type-options"), Some("nosniff"));
        assert_eq!(file.header("cache-control"), Some("no-cache"));
        let tag = file.header("etag").unwrap();
        let again = server
            .send("GET", path, &format!("If-None-Match: {tag}\r\n"), "")
            .await;
        assert_eq!((again.status, again.body.len()), (304, 0), "{path}");
        let other = server
            .send("GET", path, "If-None-Match: \"0\"\r\n", "")
            .await;
        assert_eq!(other.status, 200, "{path}");
    }
    assert_eq!(server.post("/", "{}").await.status, 405);
}

#[tokio::test]
async fn the_ranking_has_the_longest_queues_and_the_oldest_grants_first() {
    let server = Server::start().await;
    // More than one page of the listing, and more than are shown.
    for at in 0..1_100 {
        server.lock(&format!("lock-{at}"), "a").await;
    }
    let mut waiting = Vec::new();
    for (lock, count) in [("lock-3", 1), ("lock-1099", 3), ("lock-500", 2)] {
        for at in 0..count {
            let body = json!({"client_id": format!("w{at}"), "lease_duration_ms": 10_000, "wait_ms": 60_000});
            let body = body.to_string();
            let head =
                format!("POST /v1/locks/{lock}/acquire HTTP/1.1\r\nHost: t\r\nContent-Length: ");
            let request = format!("{head}{}\r\n\r\n{body}", body.len());
            let mut stream = server.connect().await;
            stream.write_all(request.as_bytes()).await.unwrap();
            waiting.push(stream);
        }
        server.waiters(waiting.len()).await;
        server.advance(1_000).await;
    }
    let ranking = server.get("/v1/ranking").await.json();
    assert_eq!(ranking["held"], 1_100);
    let contended: Vec<_> = ranking["contended"]
        .as_array()
        .unwrap()
        .iter()
        .map(|lock| json!([lock["resource_id"], lock["waiters"]]))
        .collect();
    assert_eq!(
        contended,
        [
            json!(["lock-1099", 3]),
            json!(["lock-500", 2]),
            json!(["lock-3", 1])
        ]
    );
    // The shortest queue has waited longest.
    let longest = &ranking["longest_wait"];
    assert_eq!(longest["resource_id"], "lock-3");
    let waited = |lock: &serde_json::Value| lock["waited_ms"].as_u64();
    assert_eq!(waited(longest), Some(3_000));
    assert_eq!(waited(&ranking["contended"][0]), Some(2_000));
    assert_eq!(waited(&ranking["contended"][1]), Some(1_000));
    let oldest = ranking["oldest"].as_array().unwrap();
    let tokens: Vec<_> = oldest
        .iter()
        .map(|lock| lock["holder"]["fencing_token"].as_u64().unwrap())
        .collect();
    assert_eq!(tokens, (1..=50).collect::<Vec<_>>());
    // It takes no parameters, so a wrong one is not ignored.
    assert_eq!(server.get("/v1/ranking?limit=3").await.status, 400);
}
