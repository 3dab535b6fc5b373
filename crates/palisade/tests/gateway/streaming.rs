//! Bodies go through piece by piece, headers of the hop stay behind, errors of the service pass.

use std::time::Duration;

use axum::body::{Body, Bytes};
use http_body_util::BodyExt;

use crate::support::{Caller, Gateway};
use crate::upstream::{MIB, Upstream, channel, pieces};

const TOKEN: [(&str, &str); 1] = [("x-fencing-token", "1")];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hundred_mib_either_way_take_little_memory() {
    let (_upstream, url) = Upstream::start().await;
    let dir = tempfile::tempdir().unwrap();
    let gateway = Gateway::start(&url, dir.path(), &[]);
    let caller = Caller::of(&gateway.url);
    assert_eq!(
        caller.call("POST", "/count", &TOKEN, "five!").await.text(),
        "5"
    );
    let before = gateway.peak_kib();
    let counted = caller.call("POST", "/count", &TOKEN, pieces(100)).await;
    assert_eq!(counted.text(), (100 * MIB).to_string());
    let mut body = caller
        .request("GET", "/big/100", &[], Body::empty())
        .await
        .into_body();
    let mut bytes = 0;
    while let Some(frame) = body.frame().await {
        bytes += frame.unwrap().into_data().unwrap().len();
    }
    assert_eq!(bytes, 100 * MIB);
    let grown = gateway.peak_kib() - before;
    assert!(grown < 24 << 10, "{grown} KiB more than before");
}

/// Each piece comes back before the next is sent: nothing waits for an end.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pieces_come_back_before_the_next_is_sent() {
    let (_upstream, url) = Upstream::start().await;
    let dir = tempfile::tempdir().unwrap();
    let gateway = Gateway::start(&url, dir.path(), &[]);
    let caller = Caller::of(&gateway.url);
    let (send, receive) = tokio::sync::mpsc::channel(1);
    send.send(Bytes::from_static(b"0")).await.unwrap();
    let response = caller
        .request("POST", "/echo", &TOKEN, channel(receive))
        .await;
    let mut body = response.into_body();
    for expected in 0..100_u32 {
        let frame = tokio::time::timeout(Duration::from_secs(20), body.frame()).await;
        let piece = frame.unwrap().unwrap().unwrap().into_data().unwrap();
        assert_eq!(piece, expected.to_string());
        send.send(Bytes::from((expected + 1).to_string()))
            .await
            .unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_body_that_stalls_is_given_up() {
    let (_upstream, url) = Upstream::start().await;
    let dir = tempfile::tempdir().unwrap();
    let settings = ["--idle-timeout", "100ms", "--wait", "50ms"];
    let gateway = Gateway::start(&url, dir.path(), &settings);
    let caller = Caller::of(&gateway.url);
    let (send, receive) = tokio::sync::mpsc::channel(1);
    send.send(Bytes::from_static(b"begun")).await.unwrap();
    let stalled = caller
        .call("POST", "/count", &TOKEN, channel(receive))
        .await;
    assert_eq!(stalled.code(), (502, "unknown_outcome".into()));
    drop(send);
    assert_eq!(
        caller.put("/x", 2, "").await.code(),
        (503, "unavailable".into())
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn headers_and_errors_pass_as_they_should() {
    let (_upstream, url) = Upstream::start().await;
    let dir = tempfile::tempdir().unwrap();
    let gateway = Gateway::start(&url, dir.path(), &[]);
    let caller = Caller::of(&gateway.url);
    let headers = [
        ("x-fencing-token", "7"),
        ("connection", "x-mine"),
        ("x-mine", "1"),
        ("te", "trailers"),
        ("x-yours", "2"),
    ];
    let reply = caller.call("POST", "/headers", &headers, "").await;
    let seen = reply.text();
    for line in [
        "x-fencing-token: 7",
        "x-yours: 2",
        "via: 1.1 palisade",
        "x-forwarded-host: 127.0.0.1:",
    ] {
        assert!(seen.contains(line), "{line} in {seen}");
    }
    assert!(seen.contains(&format!("host: {}", &url[7..])), "{seen}");
    for line in ["x-mine", "connection", "te:", "transfer-encoding"] {
        assert!(!seen.contains(line), "{line} in {seen}");
    }
    assert_eq!(reply.headers["x-upstream"], "yes");
    assert!(!reply.headers.contains_key("keep-alive"));
    let pot = caller.put("/teapot", 7, "").await;
    assert_eq!((pot.status, pot.text().as_str()), (418, "short and stout"));
    assert_eq!(caller.put("/nowhere", 7, "").await.status, 404);
    let base = Gateway::start(
        &format!("{url}/accounts/"),
        dir.path().join("b").as_path(),
        &[],
    );
    assert_eq!(
        Caller::of(&base.url).put("/z", 7, "based").await.status,
        200
    );
    assert_eq!(caller.observe("/accounts/z").await.text(), "based");
}
