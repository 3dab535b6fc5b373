//! The watch over HTTP: server-sent events.
#![cfg(feature = "net")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod net_support;

use net_support::{Server, soon};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines};
use tokio::net::TcpStream;

/// Reads server-sent events.
struct Events(Lines<BufReader<TcpStream>>);

impl Events {
    async fn open(server: &Server, path: &str, headers: &str) -> Events {
        let mut stream = server.connect().await;
        let request = format!("GET {path} HTTP/1.1\r\nHost: t\r\n{headers}\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        let mut lines = BufReader::new(stream).lines();
        assert_eq!(
            soon(lines.next_line()).await.unwrap().unwrap(),
            "HTTP/1.1 200 OK"
        );
        while !soon(lines.next_line()).await.unwrap().unwrap().is_empty() {}
        Events(lines)
    }

    /// The next event: name, id, data.
    async fn next(&mut self) -> (String, String, Value) {
        let (mut name, mut id, mut data) = (String::new(), String::new(), Value::Null);
        loop {
            let line = soon(self.0.next_line())
                .await
                .unwrap()
                .expect("the stream ended");
            if let Some(value) = line.strip_prefix("event: ") {
                name = value.to_owned();
            } else if let Some(value) = line.strip_prefix("id: ") {
                id = value.to_owned();
            } else if let Some(value) = line.strip_prefix("data: ") {
                data = serde_json::from_str(value).unwrap();
            } else if line.is_empty() && !name.is_empty() {
                return (name, id, data);
            }
        }
    }
}

#[tokio::test]
async fn a_watch_names_every_change_in_order() {
    let server = Server::start().await;
    let mut events = Events::open(&server, "/v1/watch?prefix=a%2F", "").await;
    let (key, _) = server.lock("a%2F1", "c").await;
    server.lock("other", "c").await;
    server
        .post(
            "/v1/locks/a%2F1/release",
            &format!(r#"{{"lock_token": "{key}"}}"#),
        )
        .await;
    server.lock("a%2F2", "c").await;
    server.lock("a%2F2", "c").await;
    server
        .post(
            "/v1/locks/a%2F2/break",
            r#"{"fencing_token": 4, "reason": "stuck\n\"job\""}"#,
        )
        .await;
    server.lock("a%2F3", "c").await;
    server.advance(10_000).await;

    let mut told = Vec::new();
    let mut last = 0;
    while told.len() < 8 {
        let (name, id, data) = events.next().await;
        assert_eq!(data["revision"].to_string(), id);
        assert!(data["revision"].as_u64().unwrap() > last);
        last = data["revision"].as_u64().unwrap();
        told.push((
            name,
            data["resource_id"].as_str().unwrap().to_owned(),
            data["fencing_token"].as_u64().unwrap(),
        ));
        if told.len() == 1 {
            let shape = json!({"revision": 1, "resource_id": "a/1", "client_id": "c", "fencing_token": 1, "lease_duration_ms": 10000});
            assert_eq!(data, shape);
        }
        if told.len() == 6 {
            assert_eq!(data["reason"], "stuck\n\"job\"");
        }
    }
    let expected = [
        ("granted", "a/1", 1),
        ("released", "a/1", 1),
        ("granted", "a/2", 3),
        ("superseded", "a/2", 3),
        ("granted", "a/2", 4),
        ("revoked", "a/2", 4),
        ("granted", "a/3", 5),
        ("expired", "a/3", 5),
    ];
    let expected: Vec<_> = expected
        .map(|(name, lock, token)| (name.to_owned(), lock.to_owned(), token))
        .into();
    assert_eq!(told, expected);
}

#[tokio::test]
async fn a_watcher_that_was_away_is_told_how_much_it_missed() {
    let server = Server::start().await;
    for lock in ["a", "b", "c"] {
        server.lock(lock, "c").await;
    }
    let mut events = Events::open(&server, "/v1/watch", "Last-Event-ID: 1\r\n").await;
    server.lock("d", "c").await;
    let (name, id, data) = events.next().await;
    assert_eq!(
        (name.as_str(), id.as_str(), data),
        ("missed", "3", json!({"missed": 2}))
    );
    assert_eq!(events.next().await.0, "granted");
}
