//! Watches and metrics show a caller what it may observe, and nothing else.

use palisade_proto::v1;
use tonic::Streaming;

use crate::net_access::{Closed, call, closed, http_of, rules, token};
use crate::net_support::{grpc, hang_up, soon};
use crate::net_watch::Events;

/// A watch of all locks by one principal, at each interface that has one.
struct Watches {
    sse: Events,
    grpc: Streaming<v1::Event>,
}

impl Watches {
    async fn open(closed: &Closed, principal: &str) -> Watches {
        let token = token(principal);
        let shown = format!("Connection: close\r\nAuthorization: Bearer {token}\r\n");
        let mut client = grpc::client(&closed.server).await;
        let watch = call(v1::WatchRequest::default(), Some(&*token));
        Watches {
            sse: Events::open(&closed.server, "/v1/watch", &shown).await,
            grpc: soon(client.watch(watch)).await.unwrap().into_inner(),
        }
    }

    /// The lock of the next event at both interfaces, or `None` at the end of both.
    async fn next(&mut self) -> Option<String> {
        let sse = self.sse.next_or_end().await;
        let sse = sse.map(|(_, _, data)| data["resource_id"].as_str().unwrap().to_owned());
        let grpc = soon(self.grpc.message()).await.unwrap();
        assert_eq!(sse, grpc.map(|event| event.lock));
        sse
    }
}

async fn acquire(closed: &Closed, principal: &str, lock: &str) {
    let path = format!("/v1/locks/{}/acquire", lock.replace('/', "%2F"));
    let body = r#"{"client_id":"secret-name","lease_duration_ms":10000}"#.to_owned();
    let token = token(principal);
    let code = http_of(&closed.server, ("POST", &path, body), Some(&token)).await;
    assert_eq!(code, "", "{lock} by {principal}");
}

#[tokio::test]
async fn a_watch_shows_the_locks_that_its_caller_may_observe_and_no_others() {
    let closed = closed().await;
    let all = ["x/1", "other/1", "x/2", "other/2", "x/3", "other/3"];
    let (x, other) = (["x/1", "x/2", "x/3"], ["other/1", "other/2", "other/3"]);
    let cases: [(&str, &[&str]); 3] = [("observe", &all), ("both", &x), ("elsewhere", &other)];
    let mut watches = Vec::new();
    for (principal, shown) in cases {
        watches.push((principal, Watches::open(&closed, principal).await, shown));
    }
    for lock in all {
        let principal = if x.contains(&lock) {
            "hold"
        } else {
            "elsewhere"
        };
        acquire(&closed, principal, lock).await;
    }
    for (principal, mut watch, shown) in watches {
        for lock in shown {
            assert_eq!(watch.next().await.as_deref(), Some(*lock), "{principal}");
        }
    }
}

#[tokio::test]
async fn a_watch_ends_before_it_shows_what_new_rules_do_not_grant() {
    let closed = closed().await;
    let mut watch = Watches::open(&closed, "both").await;
    acquire(&closed, "hold", "x/1").await;
    assert_eq!(watch.next().await.as_deref(), Some("x/1"));

    let was = "principal = \"both\"\nprefix = \"x/\"";
    let narrower = rules().replace(was, "principal = \"both\"\nprefix = \"x/1\"");
    assert_ne!(narrower, rules());
    std::fs::write(&closed.file, narrower).unwrap();
    hang_up().await;
    let token = token("both");
    let show = ("GET", "/v1/locks/x%2F2", String::new());
    soon(async {
        while http_of(&closed.server, show.clone(), Some(&token)).await != "forbidden" {}
    })
    .await;

    acquire(&closed, "hold", "x/2").await;
    assert_eq!(watch.next().await, None);
    let mut watch = Watches::open(&closed, "both").await;
    acquire(&closed, "hold", "x/3").await;
    acquire(&closed, "hold", "x/11").await;
    assert_eq!(watch.next().await.as_deref(), Some("x/11"));
}

#[tokio::test]
async fn metrics_name_no_lock_no_client_and_no_principal() {
    let closed = closed().await;
    acquire(&closed, "hold", "x/secret-lock").await;
    let request = format!(
        "GET /metrics HTTP/1.1\r\nHost: t\r\nAuthorization: Bearer {}\r\nConnection: close\r\n\r\n",
        token("observe")
    );
    let metrics = closed.server.raw(request.as_bytes()).await;
    assert_eq!(metrics.status, 200);
    let text = format!("{metrics:?}");
    assert!(text.contains("palisade_locks 1"), "{text}");
    for secret in ["secret-lock", "secret-name", "hold\"", "elsewhere"] {
        assert!(!text.contains(secret), "{secret}: {text}");
    }
}
