//! The paused holder, in front of a service without a fence.
//!
//! real time: these tests also pass beside busy loops (`cargo xtask test --loaded`).

use super::support::{Caller, Gateway, until};
use super::upstream::Upstream;

const ROUTE: [&str; 4] = [
    "--route",
    "/accounts/{id}=account:{id}",
    "--route",
    "/slow/{id}=account:{id}",
];

/// Two holders add one each; the first is paused between its read and its write. Returns the final values.
async fn two_holders(caller: &Caller, account: &str, first: u64) -> (u64, u64) {
    let path = format!("/accounts/{account}");
    let (old, new) = (first, first + 1);
    let number = |text: String| text.parse::<u64>().unwrap();
    let read_by_old = number(caller.get(&path, old).await.text());
    let read_by_new = number(caller.get(&path, new).await.text());
    let late = caller.put(&path, old, read_by_old + 1).await.status == 200;
    let written = caller.put(&path, new, read_by_new + 1).await.status == 200;
    let acknowledged = read_by_old + u64::from(late) + u64::from(written);
    (acknowledged, number(caller.observe(&path).await.text()))
}

async fn zero(upstream: &str, account: &str) {
    let direct = Caller::of(upstream);
    let reply = direct
        .call("PUT", &format!("/accounts/{account}"), &[], "0")
        .await;
    assert_eq!(reply.status, 200);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_late_write_corrupts_the_bare_service_but_not_one_behind_the_gateway() {
    let (_upstream, url) = Upstream::start().await;
    let dir = tempfile::tempdir().unwrap();
    let gateway = Gateway::start(&url, dir.path(), &ROUTE);
    zero(&url, "bare").await;
    zero(&url, "fenced").await;
    let (acknowledged, there) = two_holders(&Caller::of(&url), "bare", 33).await;
    assert_eq!(
        (acknowledged, there),
        (2, 1),
        "the control arm loses an update"
    );
    let caller = Caller::of(&gateway.url);
    let (acknowledged, there) = two_holders(&caller, "fenced", 33).await;
    assert_eq!((acknowledged, there), (1, 1));
    let late = caller.put("/accounts/fenced", 33, "zombie").await;
    assert_eq!(late.code(), (412, "stale".into()));
    assert_eq!(late.json()["error"]["highest"], 34);
    // The operator sees the rejections.
    let admin = Caller::of(&gateway.admin);
    let metrics = admin.observe("/metrics").await.text();
    assert!(
        metrics.contains("palisade_gateway_rejected_total{reason=\"stale\"} 2"),
        "{metrics}"
    );
    let fence = admin.observe("/v1/fences/account:fenced").await.json();
    assert_eq!(fence["highest"], 34);
    let all = admin.observe("/v1/fences?prefix=account").await.json();
    assert_eq!(all["fences"].as_array().unwrap().len(), 1, "{all}");
    assert_eq!(admin.observe("/healthz").await.status, 200);
    assert_eq!(
        admin.observe("/v1/fences/nobody").await.code(),
        (404, "not_found".into())
    );
    assert_eq!(
        admin.observe("/v1/fences?limit=0").await.code(),
        (400, "invalid".into())
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn forced_late_writes_lose_updates_with_the_textbook_fence_only() {
    let (_upstream, url) = Upstream::start().await;
    for (fence, expected) in [("textbook", 1_000), ("claim", 0)] {
        let dir = tempfile::tempdir().unwrap();
        let settings = [&ROUTE[..], &["--fence", fence]].concat();
        let gateway = Gateway::start(&url, dir.path(), &settings);
        let caller = Caller::of(&gateway.url);
        zero(&url, fence).await;
        let mut lost = 0;
        for round in 0..1_000 {
            let (acknowledged, there) = two_holders(&caller, fence, 2 * round + 1).await;
            lost += acknowledged - there;
        }
        assert_eq!(lost, expected, "{fence}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_newer_claim_waits_for_the_older_write_at_the_service() {
    let (upstream, url) = Upstream::start().await;
    let dir = tempfile::tempdir().unwrap();
    let gateway = Gateway::start(&url, dir.path(), &ROUTE);
    let caller = Caller::of(&gateway.url);
    let older = tokio::spawn({
        let caller = caller.clone();
        async move { caller.put("/slow/a", 1, "old").await.status }
    });
    until("the slow write", || upstream.has_arrived(1)).await;
    let newer = tokio::spawn({
        let (caller, upstream) = (caller.clone(), upstream.clone());
        async move {
            let read = caller.get("/accounts/a", 2).await;
            (read.text(), upstream.value("a"))
        }
    });
    // The control: meanwhile claims that came later are answered where no write is in progress, one after the other.
    for number in 0..5 {
        let path = format!("/accounts/beside-{number}");
        assert_eq!(caller.put(&path, 2, "new").await.status, 200);
    }
    assert!(!newer.is_finished());
    assert_eq!(upstream.value("a"), None);
    upstream.release_writes(1);
    assert_eq!(older.await.unwrap(), 200);
    let (read, seen) = newer.await.unwrap();
    assert_eq!((read.as_str(), seen.as_deref()), ("old", Some("old")));
}
