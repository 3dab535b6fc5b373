//! The state that survives a crash, and the state that need not.

use super::support::{Caller, Gateway, until};
use super::upstream::{Upstream, crashing};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mark_survives_a_kill_with_its_write_in_flight() {
    let (upstream, url) = Upstream::start().await;
    let dir = tempfile::tempdir().unwrap();
    let gateway = Gateway::start(&url, dir.path(), &[]);
    assert_eq!(gateway.started["settling"], false);
    let caller = Caller::of(&gateway.url);
    assert_eq!(caller.put("/accounts/a", 4, "before").await.status, 200);
    let client = tokio::spawn(async move {
        let put = caller.put("/slow/a", 5, "in flight");
        let _ = tokio::time::timeout(std::time::Duration::from_secs(20), put).await;
    });
    until("the slow write", || upstream.has_arrived(1)).await;
    gateway.kill();
    client.abort();
    // The service still has the write of token 5. Until it has settled, no higher token gets in.
    let settings = ["--settle", "600ms", "--wait", "50ms"];
    let gateway = Gateway::start(&url, dir.path(), &settings);
    assert_eq!(gateway.started["settling"], true);
    let caller = Caller::of(&gateway.url);
    assert_eq!(
        caller.put("/accounts/a", 4, "zombie").await.code(),
        (412, "stale".into())
    );
    assert_eq!(
        caller.get("/accounts/a", 6).await.code(),
        (503, "unavailable".into())
    );
    assert_eq!(upstream.value("a").unwrap(), "before");
    upstream.release_writes(1);
    until("the slow write's effect", || {
        upstream.value("a").as_deref() == Some("in flight")
    })
    .await;
    assert_eq!(
        caller.put("/accounts/a", 5, "same holder").await.status,
        200
    );
    let mut read = caller.get("/accounts/a", 6).await;
    while read.status == 503 {
        read = caller.get("/accounts/a", 6).await;
    }
    assert_eq!(read.text(), "same holder");
    assert_eq!(
        caller.put("/accounts/a", 5, "zombie").await.code(),
        (412, "stale".into())
    );
    // A clean stop leaves nothing to settle.
    gateway.stop().await;
    let gateway = Gateway::start(&url, dir.path(), &[]);
    assert_eq!(gateway.started["settling"], false);
    let caller = Caller::of(&gateway.url);
    assert_eq!(
        caller.put("/accounts/a", 5, "zombie").await.code(),
        (412, "stale".into())
    );
    assert_eq!(caller.put("/accounts/a", 7, "next").await.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_hanging_service_is_504_and_higher_tokens_wait_until_it_has_settled() {
    let (upstream, url) = Upstream::start().await;
    let dir = tempfile::tempdir().unwrap();
    let settings = [
        "--answer-timeout",
        "100ms",
        "--settle",
        "600ms",
        "--wait",
        "50ms",
    ];
    let gateway = Gateway::start(&url, dir.path(), &settings);
    let caller = Caller::of(&gateway.url);
    let hung = caller.put("/slow/a", 1, "late").await;
    assert_eq!(hung.code(), (504, "unknown_outcome".into()));
    assert_eq!(
        caller.get("/accounts/a", 2).await.code(),
        (503, "unavailable".into())
    );
    upstream.release_writes(1);
    until("the effect", || upstream.value("a").is_some()).await;
    let mut read = caller.get("/accounts/a", 2).await;
    while read.status == 503 {
        read = caller.get("/accounts/a", 2).await;
    }
    assert_eq!(read.text(), "late");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_broken_connection_is_an_unknown_outcome_and_a_refused_one_is_unavailable() {
    let url = crashing().await;
    let dir = tempfile::tempdir().unwrap();
    let settings = ["--settle", "1h", "--wait", "50ms"];
    let gateway = Gateway::start(&url, dir.path(), &settings);
    let caller = Caller::of(&gateway.url);
    let numbered = [("x-fencing-token", "1"), ("x-fencing-sequence", "1")];
    let broken = caller.call("PUT", "/a", &numbered, "x").await;
    assert_eq!(broken.code(), (502, "unknown_outcome".into()));
    assert_eq!(
        caller.put("/a", 2, "x").await.code(),
        (503, "unavailable".into())
    );
    gateway.kill();
    // Nothing listens on this port.
    let nobody = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let nowhere = format!("http://{}", nobody.local_addr().unwrap());
    drop(nobody);
    let dir = tempfile::tempdir().unwrap();
    let gateway = Gateway::start(&nowhere, dir.path(), &settings);
    let caller = Caller::of(&gateway.url);
    for _ in 0..2 {
        // Nothing was sent, so the same number may be used again, and nothing has to settle.
        let missing = caller.call("PUT", "/a", &numbered, "x").await;
        assert_eq!(missing.code(), (502, "unavailable".into()));
    }
    assert_eq!(
        caller.put("/a", 2, "x").await.code(),
        (502, "unavailable".into())
    );
    gateway.stop().await;
    let gateway = Gateway::start(&nowhere, dir.path(), &settings);
    assert_eq!(gateway.started["settling"], false);
}

/// The outcome of a numbered write is in memory only: after a crash it is not invented.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_numbered_write_is_never_sent_twice_not_even_after_a_kill() {
    let (upstream, url) = Upstream::start().await;
    let dir = tempfile::tempdir().unwrap();
    let numbered = [("x-fencing-token", "5"), ("x-fencing-sequence", "1")];
    let gateway = Gateway::start(&url, dir.path(), &[]);
    let caller = Caller::of(&gateway.url);
    for _ in 0..2 {
        let put = caller.call("PUT", "/accounts/a", &numbered, "once").await;
        assert_eq!(put.status, 200);
    }
    let direct = Caller::of(&url);
    let changed = direct.call("PUT", "/accounts/a", &[], "changed").await;
    assert_eq!(changed.status, 200);
    let again = caller.call("PUT", "/accounts/a", &numbered, "once").await;
    assert_eq!(
        (again.status, again.json()["repeat"].clone()),
        (200, true.into())
    );
    assert_eq!(again.headers["x-fencing-repeat"], "true");
    gateway.kill();
    let gateway = Gateway::start(&url, dir.path(), &["--settle", "1ms"]);
    let caller = Caller::of(&gateway.url);
    let again = caller.call("PUT", "/accounts/a", &numbered, "once").await;
    assert_eq!(again.code(), (504, "unknown_outcome".into()));
    let other = caller.call("PUT", "/accounts/a", &numbered, "other").await;
    assert_eq!(other.code(), (409, "sequence_reused".into()));
    assert_eq!(upstream.value("a").as_deref(), Some("changed"));
}
