//! A paused holder delays nobody (rule F12): its client is stopped in the middle of an answer or a request, in front of
//! a real service.

use palisade_testbed::LenientUpstream;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

use super::support::{Caller, Gateway, Reply, connect, until_async, writes};
use super::upstream::Upstream;

const ROUTE: [&str; 4] = [
    "--route",
    "/accounts/{id:uint}=account:{id}",
    "--wait",
    "50ms",
];

async fn claim(caller: &Caller, token: u64) -> Reply {
    let token = token.to_string();
    let headers = [
        ("x-fencing-token", token.as_str()),
        ("x-fencing-operation", "claim"),
    ];
    caller.call("POST", "/accounts/7", &headers, "").await
}

/// A client that writes, reads the first byte of an answer of 32 MiB, and is stopped.
async fn stopped_client(gateway: &Gateway) -> TcpStream {
    let mut client = connect(&gateway.url).await;
    let put = b"PUT /accounts/7/big HTTP/1.1\r\nHost: x\r\nX-Fencing-Token: 1\r\nContent-Length: 1\r\n\r\nx";
    client.write_all(put).await.unwrap();
    assert_eq!(client.read_u8().await.unwrap(), b'H');
    client
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_does_not_read_its_answer_delays_no_claim() {
    let upstream = LenientUpstream::start("urlparse");
    // Only the end of the service's answer can let the claim in.
    let hour = [&ROUTE[..], &["--write-timeout", "1h", "--settle", "1h"]].concat();
    let dir = tempfile::tempdir().unwrap();
    let gateway = Gateway::start(&upstream.url(), &dir.path().join("a"), &hour);
    let mut client = stopped_client(&gateway).await;
    let caller = Caller::of(&gateway.url);
    until_async("the next claim", async || {
        claim(&caller, 2).await.status == 200
    })
    .await;
    // When the client continues, it gets its whole answer.
    let mut rest = Vec::new();
    while rest.len() < 32 << 20 {
        assert!(
            client.read_buf(&mut rest).await.unwrap() > 0,
            "{}",
            rest.len()
        );
    }
    // Control: the buffer for an answer is bounded, and the rest waits for the client.
    let little = [&hour[..], &["--answer-bytes", "65536"]].concat();
    let gateway = Gateway::start(&upstream.url(), &dir.path().join("b"), &little);
    let mut client = stopped_client(&gateway).await;
    let caller = Caller::of(&gateway.url);
    for _ in 0..10 {
        assert_eq!(claim(&caller, 2).await.code(), (503, "unavailable".into()));
    }
    let reading =
        tokio::spawn(async move { tokio::io::copy(&mut client, &mut tokio::io::sink()).await });
    until_async("the claim when the client goes on", async || {
        claim(&caller, 2).await.status == 200
    })
    .await;
    reading.abort();
    // The bound for the whole write then ends it.
    let settings = [
        "--answer-bytes",
        "65536",
        "--write-timeout",
        "300ms",
        "--settle",
        "50ms",
    ];
    let bounded = [&ROUTE[..], &settings].concat();
    let gateway = Gateway::start(&upstream.url(), &dir.path().join("c"), &bounded);
    let _client = stopped_client(&gateway).await;
    let caller = Caller::of(&gateway.url);
    until_async("the claim after the bound", async || {
        claim(&caller, 2).await.status == 200
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_that_sends_slowly_delays_no_claim() {
    let upstream = LenientUpstream::start("urlparse");
    let dir = tempfile::tempdir().unwrap();
    let hour = [
        "--request-timeout",
        "1h",
        "--write-timeout",
        "1h",
        "--settle",
        "1h",
    ];
    let gateway = Gateway::start(&upstream.url(), dir.path(), &[&ROUTE[..], &hour].concat());
    let caller = Caller::of(&gateway.url);
    assert_eq!(claim(&caller, 1).await.status, 200);
    let mut slow = connect(&gateway.url).await;
    let begun = b"PUT /accounts/7 HTTP/1.1\r\nHost: x\r\nX-Fencing-Token: 1\r\nContent-Length: 5\r\nConnection: close\r\n\r\nst";
    slow.write_all(begun).await.unwrap();
    assert_eq!(claim(&caller, 2).await.status, 200);
    slow.write_all(b"ale").await.unwrap();
    let mut answer = String::new();
    slow.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 412 "), "{answer}");
    assert!(writes(&upstream.url()).await.is_empty());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_request_is_bounded_in_bytes_and_in_time() {
    let (upstream, url) = Upstream::start().await;
    let dir = tempfile::tempdir().unwrap();
    let settings = [
        "--request-timeout",
        "100ms",
        "--request-bytes",
        "1000",
        "--held-bytes",
        "5000",
        "--answer-bytes",
        "1",
    ];
    let gateway = Gateway::start(&url, dir.path(), &[&ROUTE[..], &settings].concat());
    let caller = Caller::of(&gateway.url);
    let put = async |size: usize| caller.put("/accounts/7", 1, "x".repeat(size)).await;
    assert_eq!(put(1_001).await.code(), (413, "too_large".into()));
    assert_eq!(put(1_000).await.status, 200);
    let (send, receive) = tokio::sync::mpsc::channel(1);
    send.send(axum::body::Bytes::from_static(b"begun"))
        .await
        .unwrap();
    let body = super::upstream::channel(receive);
    let stalled = caller
        .call("PUT", "/accounts/7", &[("x-fencing-token", "1")], body)
        .await;
    assert_eq!(stalled.code(), (408, "request_timeout".into()));
    drop(send);
    assert_eq!(upstream.value("7").unwrap().len(), 1_000);
}

/// A proxy in front of the service answers 503 while the service still executes the write: the newer holder reads,
/// and then the older write lands.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_503_from_a_proxy_does_not_end_a_write() {
    let (upstream, url) = Upstream::start().await;
    let dir = tempfile::tempdir().unwrap();
    let routes = ["--route", "/proxied/{status}/{id:uint}=account:{id}"];
    let settings = [&ROUTE[..], &routes, &["--settle", "1h"]].concat();
    for (at, status) in [408, 499, 502, 503, 504, 520, 524, 530]
        .into_iter()
        .enumerate()
    {
        let gateway = Gateway::start(&url, &dir.path().join(status.to_string()), &settings);
        let caller = Caller::of(&gateway.url);
        let proxied = caller.put(&format!("/proxied/{status}/7"), 1, status).await;
        assert_eq!(proxied.status, status);
        assert_eq!(
            claim(&caller, 2).await.code(),
            (503, "unavailable".into()),
            "{status}"
        );
        upstream.release_writes(1);
        until_async("the late write", async || {
            upstream.value("7") == Some(status.to_string())
        })
        .await;
        assert!(upstream.has_arrived(at + 1));
    }
    // Control: configured without a proxy, the gateway lets the newer holder read before the write lands.
    let alone = [&settings[..], &["--upstream-answers-for-itself"]].concat();
    let gateway = Gateway::start(&url, &dir.path().join("alone"), &alone);
    let caller = Caller::of(&gateway.url);
    assert_eq!(caller.put("/proxied/503/7", 1, "late").await.status, 503);
    assert_eq!(caller.get("/accounts/7", 2).await.text(), "530");
    upstream.release_writes(1);
    until_async("the late write", async || {
        upstream.value("7").as_deref() == Some("late")
    })
    .await;
    // These statuses do end a write.
    for status in [400, 404, 409, 429, 500, 501] {
        let gateway = Gateway::start(&url, &dir.path().join(status.to_string()), &settings);
        let caller = Caller::of(&gateway.url);
        assert_eq!(
            caller
                .put(&format!("/proxied/{status}/7"), 1, "x")
                .await
                .status,
            status
        );
        assert_eq!(claim(&caller, 2).await.status, 200, "{status}");
        upstream.release_writes(1);
    }
}
