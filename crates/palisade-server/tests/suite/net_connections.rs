//! Connections: time-outs, the cap, and how a server goes down.
//!
//! real time: these tests also pass beside busy loops (`cargo xtask test --loaded`).

use std::time::Duration;

use crate::net_support::{Server, Wish, soon};
use palisade_core::Span;
use palisade_pipeline::Request;
use palisade_proto::v1;
use palisade_proto::v1::locks_client::LocksClient;
use palisade_server::shell::Settings;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Endpoint;

/// The bytes that the peer sends until it closes.
async fn rest(stream: &mut TcpStream) -> String {
    let mut bytes = Vec::new();
    // A reset is an end, too.
    let _ = soon(stream.read_to_end(&mut bytes)).await;
    String::from_utf8_lossy(&bytes).into_owned()
}

#[tokio::test]
async fn a_head_that_does_not_arrive_in_time_costs_the_connection() {
    let server = Server::with(Wish::shell(Settings {
        head_timeout: Duration::from_millis(100),
        ..Settings::default()
    }))
    .await;
    for start in [
        "",
        "GET /healthz HT",
        "PRI * HT",
        "GET /healthz HTTP/1.1\r\nHost: t\r\n",
    ] {
        let mut stream = server.connect().await;
        stream.write_all(start.as_bytes()).await.unwrap();
        // Ends, and long before the idle time-out of five minutes.
        rest(&mut stream).await;
    }
    assert_eq!(server.get("/healthz").await.status, 200);
}

#[tokio::test]
async fn a_second_head_on_a_kept_connection_has_its_time_too() {
    let server = Server::with(Wish::shell(Settings {
        head_timeout: Duration::from_millis(100),
        ..Settings::default()
    }))
    .await;
    let mut stream = server.connect().await;
    stream
        .write_all(b"GET /healthz HTTP/1.1\r\nHost: t\r\n\r\n")
        .await
        .unwrap();
    let mut first = [0; 15];
    soon(stream.read_exact(&mut first)).await.unwrap();
    stream.write_all(b"GET /heal").await.unwrap();
    assert!(!rest(&mut stream).await.contains("HTTP/1.1"));
}

#[tokio::test]
async fn an_idle_connection_is_closed_and_a_long_poll_is_not_idle() {
    let tenth = Duration::from_millis(100);
    let server = Server::with(Wish::shell(Settings {
        head_timeout: tenth,
        idle_timeout: 2 * tenth,
        ..Settings::default()
    }))
    .await;
    let (key, _) = server.lock("x", "a").await;
    let mut waiting = server.waiting().await;
    server.waiters(1).await;

    // An idle connection opened after the long poll is closed before it.
    let mut idle = server.connect().await;
    idle.write_all(b"GET /healthz HTTP/1.1\r\nHost: t\r\n\r\n")
        .await
        .unwrap();
    assert!(rest(&mut idle).await.starts_with("HTTP/1.1 200 OK"));
    server.waiters(1).await;
    server
        .post(
            "/v1/locks/x/release",
            &format!(r#"{{"lock_token": "{key}"}}"#),
        )
        .await;
    assert!(rest(&mut waiting).await.contains(r#""fencing_token":2"#));
}

#[tokio::test]
async fn a_body_that_does_not_arrive_in_time_is_told_so() {
    let server = Server::with(Wish::shell(Settings {
        body_timeout: Duration::from_millis(50),
        ..Settings::default()
    }))
    .await;
    let before = server.changes().await;
    let head = "POST /v1/locks/x/acquire HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: 50\r\n\r\n{\"cli";
    let answer = server.raw(head.as_bytes()).await;
    assert_eq!(
        (answer.status, answer.code().as_str()),
        (408, "request_timeout")
    );
    assert_eq!(server.changes().await, before);
}

#[tokio::test]
async fn one_connection_too_many_is_closed_at_once() {
    let server = Server::with(Wish::shell(Settings {
        connections: 2,
        connections_per_address: Some(2),
        ..Settings::default()
    }))
    .await;
    let mut kept = Vec::new();
    for _ in 0..2 {
        let mut stream = server.connect().await;
        stream
            .write_all(b"GET /healthz HTTP/1.1\r\nHost: t\r\n\r\n")
            .await
            .unwrap();
        let mut first = [0; 15];
        soon(stream.read_exact(&mut first)).await.unwrap();
        assert_eq!(&first, b"HTTP/1.1 200 OK");
        kept.push(stream);
    }
    let mut refused = server.connect().await;
    let _ = refused
        .write_all(b"GET /healthz HTTP/1.1\r\nHost: t\r\n\r\n")
        .await;
    assert_eq!(rest(&mut refused).await, "");
    drop(kept.pop());
    // The place is free as soon as the server has noticed.
    soon(async {
        while server.get("/healthz").await.status != 200 {
            tokio::task::yield_now().await;
        }
    })
    .await;
}

#[tokio::test]
async fn a_server_that_goes_down_ends_waits_watches_and_sessions_and_frees_its_port() {
    let mut server = Server::start().await;
    server.lock("x", "a").await;
    let mut watching = server.connect().await;
    watching
        .write_all(b"GET /v1/watch HTTP/1.1\r\nHost: t\r\n\r\n")
        .await
        .unwrap();
    let mut first = [0; 15];
    soon(watching.read_exact(&mut first)).await.unwrap();

    let channel = Endpoint::from_shared(format!("http://{}", server.addr))
        .unwrap()
        .connect()
        .await
        .unwrap();
    let (requests, frames) = mpsc::channel(1);
    let mut replies = LocksClient::new(channel)
        .session(ReceiverStream::new(frames))
        .await
        .unwrap()
        .into_inner();
    let acquire = v1::AcquireRequest {
        lock: "x".into(),
        client_id: "c".into(),
        lease_duration_ms: 10_000,
        wait_ms: 60_000,
        ..v1::AcquireRequest::default()
    };
    let operation = Some(v1::request::Operation::Acquire(acquire));
    requests
        .send(v1::Requests {
            requests: vec![v1::Request { id: 1, operation }],
        })
        .await
        .unwrap();

    let mut waiting = server.waiting().await;
    server.waiters(2).await;

    server.ask_to_stop();
    server.ended().await.unwrap();
    let answer = rest(&mut waiting).await;
    assert!(
        answer.starts_with("HTTP/1.1 503") && answer.contains("\"unavailable\""),
        "{answer}"
    );
    assert!(
        rest(&mut watching).await.ends_with("0\r\n\r\n"),
        "the stream of events ends in order"
    );
    assert_eq!(
        soon(replies.message()).await.unwrap_err().code(),
        tonic::Code::Unavailable
    );
    // Their places are reserved for two seconds (R16, R22).
    server.waiters(2).await;
    let window = Span::from_millis(2_001);
    soon(server.handle.call(Request::Advance(window))).await;
    server.waiters(0).await;
    assert!(
        TcpStream::connect(server.addr).await.is_err(),
        "the port is free"
    );
}

#[tokio::test]
async fn a_client_that_does_not_let_go_is_cut() {
    let mut server = Server::with(Wish::shell(Settings {
        drain_timeout: Duration::from_millis(50),
        ..Settings::default()
    }))
    .await;
    let mut stalled = server.connect().await;
    let head = "POST /v1/locks/x/acquire HTTP/1.1\r\nHost: t\r\nContent-Length: 50\r\n\r\n{";
    stalled.write_all(head.as_bytes()).await.unwrap();
    server.get("/healthz").await;
    server.ask_to_stop();
    server.ended().await.unwrap();
    rest(&mut stalled).await;
}

#[tokio::test]
async fn an_http2_client_that_does_not_answer_does_not_delay_the_end() {
    let mut server = Server::with(Wish::shell(Settings {
        // The drain timeout is longer than this test would wait.
        drain_timeout: Duration::from_secs(3_600),
        ..Settings::default()
    }))
    .await;
    let mut deaf = server.connect().await;
    let preface = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
    let settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
    deaf.write_all(&[&preface[..], &settings].concat())
        .await
        .unwrap();
    // The server's own settings: it speaks HTTP/2 to this one now.
    soon(deaf.read_exact(&mut [0; 9])).await.unwrap();
    server.ask_to_stop();
    server.ended().await.unwrap();
    rest(&mut deaf).await;
}

#[tokio::test]
async fn a_server_whose_pipeline_stops_goes_down_with_it() {
    let mut server = Server::start().await;
    server.handle.stop();
    server.ended().await.unwrap();
}
