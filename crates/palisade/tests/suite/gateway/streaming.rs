//! Reads are streamed, hop-by-hop headers are removed, errors of the service pass through.

use std::time::Duration;

use axum::body::Body;
use http_body_util::BodyExt;

use super::support::{Caller, Gateway};
use super::upstream::{MIB, Upstream};

const TOKEN: [(&str, &str); 1] = [("x-fencing-token", "1")];

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_read_of_a_hundred_mib_takes_little_memory() {
    let (_upstream, url) = Upstream::start().await;
    let dir = tempfile::tempdir().unwrap();
    let gateway = Gateway::start(&url, dir.path(), &[]);
    let caller = Caller::of(&gateway.url);
    assert_eq!(
        caller.call("POST", "/count", &TOKEN, "five!").await.text(),
        "5"
    );
    let before = gateway.peak_kib();
    let mut body = caller
        .request("GET", "/big/100", &TOKEN, Body::empty())
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

/// Each piece of an answer arrives before the next is made.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_piece_of_an_answer_arrives_before_the_next_is_made() {
    for method in ["GET", "POST"] {
        let (upstream, url) = Upstream::start().await;
        let dir = tempfile::tempdir().unwrap();
        let gateway = Gateway::start(&url, dir.path(), &[]);
        let caller = Caller::of(&gateway.url);
        let response = caller
            .request(method, "/ticks", &TOKEN, Body::empty())
            .await;
        let mut body = response.into_body();
        for _ in 0..100 {
            upstream.release_writes(1);
            let frame = tokio::time::timeout(Duration::from_secs(20), body.frame()).await;
            let piece = frame.unwrap().unwrap().unwrap().into_data().unwrap();
            assert_eq!(piece, "tick");
        }
    }
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
