//! Two servers, one of which believes that the other leads: the requests that it forwards, and those that it does not.
//!
//! real time: these tests also pass beside busy loops (`cargo xtask test --loaded`).

use std::net::SocketAddr;
use std::sync::Arc;

use palisade_pipeline::Leading;
use palisade_proto::v1;
use palisade_proto::v1::reply::Outcome;
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;

use crate::net_support::grpc::{acquire, channel, client, granted, release, said};
use crate::net_support::{Response, Server, exchange, soon};

const ACQUIRE: &str = r#"{"client_id": "a", "lease_duration_ms": 10000}"#;
const WAIT: &str = r#"{"client_id": "b", "lease_duration_ms": 10000, "wait_ms": 86400000}"#;

fn url(at: SocketAddr) -> Arc<str> {
    format!("http://{at}").into()
}

/// A leader, and a node that knows it.
async fn pair() -> (Server, Server) {
    let (leader, follower) = (Server::start().await, Server::start().await);
    follower.handle.set_leader(Leading::At(url(leader.addr)));
    (leader, follower)
}

/// A node whose leader is at that address.
async fn follower_of(leader: SocketAddr) -> Server {
    let follower = Server::start().await;
    follower.handle.set_leader(Leading::At(url(leader)));
    follower
}

/// An address where nobody listens.
async fn nobody() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    listener.local_addr().unwrap()
}

/// A wire to a server, which breaks when it is aborted.
async fn wire_to(server: SocketAddr) -> (SocketAddr, JoinHandle<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let wire = tokio::spawn(async move {
        let mut open = tokio::task::JoinSet::new();
        while let Ok((mut near, _)) = listener.accept().await {
            open.spawn(async move {
                let mut far = TcpStream::connect(server).await.unwrap();
                let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
            });
        }
    });
    (address, wire)
}

fn leader_in(response: &Response) -> Option<String> {
    let leader = &response.json()["error"]["leader"];
    leader.as_str().map(str::to_owned)
}

#[tokio::test]
async fn every_json_request_is_answered_by_the_leader() {
    let (leader, follower) = pair().await;
    let (key, token) = follower.lock("orders", "a").await;
    assert_eq!((token, leader.status().await.locks), (1, 1));
    let shown = follower.get("/v1/locks/orders").await;
    assert_eq!(shown.json()["holder"]["client_id"], "a");
    let listed = follower.get("/v1/locks?prefix=ord&limit=5").await;
    assert_eq!(listed.json()["locks"][0]["resource_id"], "orders");
    assert_eq!(follower.get("/v1/status").await.json()["locks"], 1);
    let by = format!(r#"{{"lock_token": "{key}"}}"#);
    let renewed = follower.post("/v1/locks/orders/renew", &by).await;
    assert_eq!(renewed.json()["fencing_token"], 1);
    let at_once = WAIT.replace("86400000", "0");
    let denied = follower.post("/v1/locks/orders/acquire", &at_once).await;
    assert_eq!((denied.status, denied.code().as_str()), (409, "held"));
    let released = follower.post("/v1/locks/orders/release", &by).await;
    assert_eq!(released.json()["released"], true);
    let (_, token) = follower.lock("a%2Fb", "a").await;
    let named = format!(r#"{{"fencing_token": {token}}}"#);
    let broken = follower.post("/v1/locks/a%2Fb/break", &named).await;
    assert_eq!(broken.json()["resource_id"], "a/b");
    let id = "0".repeat(32);
    let abandoned = follower
        .post(&format!("/v1/requests/{id}/abandon"), "")
        .await;
    assert_eq!(abandoned.json()["abandoned"], true);
    follower.advance(60_000).await;
    assert_eq!(leader.status().await.locks, 0, "the leader's clock moved");
}

#[tokio::test]
async fn every_grpc_call_is_answered_by_the_leader() {
    let (leader, follower) = pair().await;
    let mut locks = client(&follower).await;
    let won = granted(said(locks.acquire(acquire("orders", "a", 0)).await));
    assert_eq!((won.fencing_token, leader.status().await.locks), (1, 1));
    let renewed = locks
        .renew(v1::RenewRequest {
            lock: "orders".into(),
            lock_token: won.lock_token.clone(),
            ..v1::RenewRequest::default()
        })
        .await;
    assert!(matches!(said(renewed), Some(Outcome::Renewed(_))));
    let lock = "orders".to_owned();
    let shown = locks.show(v1::ShowRequest { lock: lock.clone() }).await;
    assert!(matches!(said(shown), Some(Outcome::Lock(lock)) if lock.holder.is_some()));
    let listed = locks.list(v1::ListRequest::default()).await;
    assert!(matches!(said(listed), Some(Outcome::Page(page)) if page.locks.len() == 1));
    let status = locks.status(v1::StatusRequest {}).await;
    assert!(matches!(said(status), Some(Outcome::Status(status)) if status.locks == 1));
    let held = locks.acquire(acquire("orders", "b", 0)).await;
    assert!(matches!(said(held), Some(Outcome::Held(_))), "a denial");
    let released = locks.release(release("orders", &won.lock_token)).await;
    assert!(matches!(said(released), Some(Outcome::Released(_))));
    let won = granted(said(locks.acquire(acquire("orders", "a", 0)).await));
    let broken = v1::BreakRequest {
        lock,
        fencing_token: won.fencing_token,
        reason: String::new(),
    };
    assert!(matches!(
        said(locks.r#break(broken).await),
        Some(Outcome::Ended(_))
    ));
    let request_id = vec![7; 16];
    let abandoned = locks.abandon(v1::AbandonRequest { request_id }).await;
    assert!(matches!(said(abandoned), Some(Outcome::Done(_))));
    // A refusal by the leader's gRPC library arrives as it is.
    let refused = locks.acquire(acquire("", "a", 0)).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument);
    assert_eq!(refused.metadata().get("palisade-code").unwrap(), "invalid");
}

#[tokio::test]
async fn what_every_node_answers_needs_no_leader() {
    let follower = follower_of(nobody().await).await;
    for path in ["/healthz", "/metrics", "/openapi.json"] {
        assert_eq!(follower.get(path).await.status, 200, "{path}");
    }
    let mut watch = follower.connect().await;
    let request = b"GET /v1/watch HTTP/1.1\r\nHost: t\r\n\r\n";
    watch.write_all(request).await.unwrap();
    let mut head = [0; 12];
    soon(tokio::io::AsyncReadExt::read_exact(&mut watch, &mut head))
        .await
        .unwrap();
    assert_eq!(&head, b"HTTP/1.1 200");
    let mut locks = client(&follower).await;
    soon(locks.watch(v1::WatchRequest::default()))
        .await
        .unwrap();
    // A watcher that comes from another node may be ahead of this one; it has not made a mistake.
    let ahead = v1::WatchRequest {
        after_revision: Some(7),
        ..v1::WatchRequest::default()
    };
    let refused = soon(locks.watch(ahead.clone())).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::Unavailable);
    follower.handle.set_leader(Leading::Here);
    let refused = soon(locks.watch(ahead)).await.unwrap_err();
    assert_eq!(refused.code(), tonic::Code::InvalidArgument);
}

#[tokio::test]
async fn a_request_is_forwarded_once() {
    let (one, other) = (Server::start().await, Server::start().await);
    // Each believes that the other leads.
    one.handle.set_leader(Leading::At(url(other.addr)));
    other.handle.set_leader(Leading::At(url(one.addr)));
    let refused = one.post("/v1/locks/x/acquire", ACQUIRE).await;
    assert_eq!(
        (refused.status, refused.code().as_str()),
        (503, "not_leader")
    );
    assert_eq!(leader_in(&refused).unwrap(), *url(one.addr), "{refused:?}");
    let mut locks = client(&one).await;
    let failed = soon(locks.acquire(acquire("x", "a", 0))).await.unwrap_err();
    assert_eq!(failed.code(), tonic::Code::Unavailable);
    let metadata = failed.metadata();
    assert_eq!(metadata.get("palisade-code").unwrap(), "not_leader");
    assert_eq!(*metadata.get("palisade-leader").unwrap(), *url(one.addr));
}

#[tokio::test]
async fn a_stranger_who_sets_the_header_gets_no_more_than_the_leaders_address() {
    let (leader, follower) = pair().await;
    let header = "x-palisade-forwarded: me\r\n";
    let refused = follower
        .send("POST", "/v1/locks/x/acquire", header, ACQUIRE)
        .await;
    assert_eq!(
        (refused.status, refused.code().as_str()),
        (503, "not_leader")
    );
    assert_eq!(leader_in(&refused).unwrap(), *url(leader.addr));
    let taken = leader
        .send("POST", "/v1/locks/x/acquire", header, ACQUIRE)
        .await;
    assert_eq!(taken.status, 200, "a leader does not look at it");
}

/// The answer to an acquire that arrives before this leader is known. The request is in one piece, so the node has
/// looked for a leader once by the time that its metrics count the request.
async fn acquired_before(follower: &Server, leader: Leading) -> Response {
    let known = follower.requests().await;
    let elected = async {
        follower.arrival(known).await;
        follower.handle.set_leader(leader);
    };
    let asked = follower.post("/v1/locks/x/acquire", ACQUIRE);
    tokio::join!(asked, elected).0
}

#[tokio::test]
async fn a_request_waits_for_a_leader_and_then_goes_there() {
    let leader = Server::start().await;
    let follower = Server::start().await;
    follower.handle.set_leader(Leading::Nowhere);
    let answer = acquired_before(&follower, Leading::At(url(leader.addr))).await;
    assert_eq!((answer.status, leader.status().await.locks), (200, 1));

    follower.handle.set_leader(Leading::Nowhere);
    let answer = acquired_before(&follower, Leading::Here).await;
    assert_eq!((answer.status, follower.status().await.locks), (200, 1));
}

#[tokio::test]
async fn without_a_leader_a_request_is_refused_after_a_while() {
    let follower = Server::start().await;
    follower.handle.set_leader(Leading::Nowhere);
    let refused = follower.post("/v1/locks/x/acquire", ACQUIRE).await;
    assert_eq!(
        (refused.status, refused.code().as_str()),
        (503, "not_leader")
    );
    assert_eq!(
        (leader_in(&refused), refused.header("retry-after")),
        (None, Some("1"))
    );
    let mut locks = client(&follower).await;
    let failed = soon(locks.show(v1::ShowRequest { lock: "x".into() }))
        .await
        .unwrap_err();
    assert_eq!(
        failed.metadata().get("palisade-code").unwrap(),
        "not_leader"
    );
    assert!(failed.metadata().get("palisade-leader").is_none());
}

#[tokio::test]
async fn a_leader_that_cannot_be_reached_got_nothing_and_the_next_one_gets_it() {
    let dead = nobody().await;
    let follower = follower_of(dead).await;
    let refused = follower.post("/v1/locks/x/acquire", ACQUIRE).await;
    assert_eq!(
        (refused.status, refused.code().as_str()),
        (503, "not_leader")
    );
    assert_eq!(leader_in(&refused).unwrap(), *url(dead));
    let next = Server::start().await;
    let answer = acquired_before(&follower, Leading::At(url(next.addr))).await;
    assert_eq!((answer.status, next.status().await.locks), (200, 1));
}

#[tokio::test]
async fn a_leader_that_dies_under_a_change_leaves_its_outcome_unknown() {
    let leader = Server::start().await;
    leader.lock("x", "a").await;
    let (address, wire) = wire_to(leader.addr).await;
    let follower = follower_of(address).await;
    let cut = async {
        leader.waiters(1).await;
        wire.abort();
    };
    let (lost, ()) = tokio::join!(follower.post("/v1/locks/x/acquire", WAIT), cut);
    assert_eq!(
        (lost.status, lost.code().as_str()),
        (504, "unknown_outcome")
    );
    leader.waiters(0).await;

    let (address, wire) = wire_to(leader.addr).await;
    follower.handle.set_leader(Leading::At(url(address)));
    let mut locks = client(&follower).await;
    let cut = async {
        leader.waiters(1).await;
        wire.abort();
    };
    let (lost, ()) = tokio::join!(locks.acquire(acquire("x", "b", 86_400_000)), cut);
    let lost = lost.unwrap_err();
    assert_eq!(lost.code(), tonic::Code::Unknown);
    assert_eq!(
        lost.metadata().get("palisade-code").unwrap(),
        "unknown_outcome"
    );
}

#[tokio::test]
async fn a_leader_that_dies_under_a_question_is_asked_no_more_and_the_next_one_is() {
    // It takes the request and says nothing.
    let silent = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let follower = follower_of(silent.local_addr().unwrap()).await;
    let next = Server::start().await;
    next.lock("x", "a").await;
    let change = async {
        let (taken, _) = silent.accept().await.unwrap();
        follower.handle.set_leader(Leading::At(url(next.addr)));
        taken
    };
    let (shown, _taken) = tokio::join!(follower.get("/v1/locks/x"), change);
    assert_eq!(shown.json()["holder"]["client_id"], "a");
}

#[tokio::test]
async fn a_wait_at_a_former_leader_is_cut_and_its_place_given_up() {
    let (leader, follower) = pair().await;
    leader.lock("x", "a").await;
    let deposed = async {
        leader.waiters(1).await;
        follower.handle.set_leader(Leading::Nowhere);
    };
    let (cut, ()) = tokio::join!(follower.post("/v1/locks/x/acquire", WAIT), deposed);
    assert_eq!((cut.status, cut.code().as_str()), (504, "unknown_outcome"));
    leader.waiters(0).await;
}

#[tokio::test]
async fn a_caller_that_leaves_takes_its_request_out_of_the_leaders_queue() {
    let (leader, follower) = pair().await;
    leader.lock("x", "a").await;
    let waiting = follower.waiting().await;
    leader.waiters(1).await;
    drop(waiting);
    leader.waiters(0).await;

    let mut locks = client(&follower).await;
    let call = tokio::spawn(async move { locks.acquire(acquire("x", "b", 86_400_000)).await });
    leader.waiters(1).await;
    call.abort();
    leader.waiters(0).await;
}

#[tokio::test]
async fn a_node_that_stops_ends_the_waits_that_it_forwarded() {
    let (leader, mut follower) = pair().await;
    leader.lock("x", "a").await;
    let mut waiting = follower.waiting().await;
    leader.waiters(1).await;
    follower.ask_to_stop();
    let mut answer = Vec::new();
    let read = tokio::io::AsyncReadExt::read_to_end(&mut waiting, &mut answer);
    soon(read).await.unwrap();
    let answer = String::from_utf8(answer).unwrap();
    assert!(answer.contains("unknown_outcome"), "{answer}");
    leader.waiters(0).await;
    follower.ended().await.unwrap();
}

/// A request for `x` that waits, with an id unless that is empty.
fn waits(at: SocketAddr, client: &str, id: &str) -> JoinHandle<Response> {
    let name = match id {
        "" => String::new(),
        id => format!(r#", "request_id": "{id:0>32}""#),
    };
    let body = format!(
        r#"{{"client_id": "{client}", "lease_duration_ms": 10000, "wait_ms": 86400000{name}}}"#
    );
    let length = body.len();
    let request = format!(
        "POST /v1/locks/x/acquire HTTP/1.1\r\nHost: t\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
    );
    tokio::spawn(async move { exchange(at, request.as_bytes()).await })
}

/// The way between the two breaks, as when the node dies that has sent `b` on, or is cut off. `b` comes back directly, and
/// has its place; in the other arms, the control, it comes too late, or had no id to come back with.
#[tokio::test]
async fn a_wait_keeps_its_place_for_two_seconds_when_the_way_to_its_caller_breaks() {
    for (id, away, order) in [
        ("1", 1_999, ["b", "c"]),
        ("1", 2_000, ["c", "b"]),
        ("", 1, ["c", "b"]),
    ] {
        let leader = Server::start().await;
        let (wire, between) = wire_to(leader.addr).await;
        let follower = follower_of(wire).await;
        let (key, _) = leader.lock("x", "a").await;
        let first = waits(follower.addr, "b", id);
        leader.waiters(1).await;
        let c = waits(leader.addr, "c", "2");
        leader.waiters(2).await;
        let before = leader.changes().await;
        between.abort();
        assert_eq!(first.await.unwrap().code(), "unknown_outcome");
        while leader.changes().await == before {
            tokio::task::yield_now().await;
        }
        leader.advance(away).await;
        leader.waiters(if order[0] == "b" { 2 } else { 1 }).await;
        let b = waits(leader.addr, "b", "1");
        leader.waiters(2).await;
        let mut served = Vec::new();
        let (mut b, mut c) = (Some(b), Some(c));
        let mut key = key;
        for _ in 0..2 {
            let body = format!(r#"{{"lock_token": "{key}"}}"#);
            assert_eq!(leader.post("/v1/locks/x/release", &body).await.status, 200);
            // While `b` is on its way, the lock is kept for it.
            let client = soon(async {
                loop {
                    let shown = leader.get("/v1/locks/x").await.json();
                    if let Some(client) = shown["holder"]["client_id"].as_str() {
                        return client.to_owned();
                    }
                }
            })
            .await;
            let waiting = if client == "b" { b.take() } else { c.take() };
            let granted = soon(waiting.unwrap()).await.unwrap().json();
            key = granted["lock_token"].as_str().unwrap().to_owned();
            served.push(client);
        }
        assert_eq!(served, order, "{id:?} after {away} ms");
    }
}

#[tokio::test]
async fn bounds_hold_before_anything_is_forwarded() {
    let (_leader, follower) = pair().await;
    let large = format!(r#"{{"metadata": "{}"}}"#, "x".repeat(70_000));
    let refused = follower.post("/v1/locks/x/acquire", &large).await;
    assert_eq!(
        (refused.status, refused.code().as_str()),
        (413, "too_large")
    );
    // Without a declared length.
    let body = large.len();
    let chunked = format!(
        "POST /v1/locks/x/acquire HTTP/1.1\r\nHost: t\r\nConnection: close\r\nTransfer-Encoding: chunked\r\n\r\n\
         {body:x}\r\n{large}\r\n0\r\n\r\n"
    );
    assert_eq!(follower.raw(chunked.as_bytes()).await.code(), "too_large");
    let mut locks = client(&follower).await;
    let long = v1::AcquireRequest {
        metadata: "x".repeat(70_000),
        ..acquire("x", "a", 0)
    };
    let refused = soon(locks.acquire(long)).await.unwrap_err();
    assert_eq!(
        refused.metadata().get("palisade-code").unwrap(),
        "too_large"
    );
}

#[tokio::test]
async fn a_page_of_this_node_may_change_something_at_the_leader() {
    let (leader, follower) = pair().await;
    let page = "Content-Type: application/json\r\nOrigin: http://test\r\n";
    let taken = follower
        .send("POST", "/v1/locks/x/acquire", page, ACQUIRE)
        .await;
    assert_eq!((taken.status, leader.status().await.locks), (200, 1));
}

#[tokio::test]
async fn two_hundred_waits_leave_the_way_open_for_a_release() {
    let (leader, follower) = pair().await;
    let (key, _) = follower.lock("x", "a").await;
    let channel = channel(&follower).await;
    let mut waits = tokio::task::JoinSet::new();
    for client in 0..200 {
        let mut locks = v1::locks_client::LocksClient::new(channel.clone());
        let wish = acquire("x", &format!("client-{client}"), 86_400_000);
        waits.spawn(async move { locks.acquire(wish).await });
    }
    leader.waiters(200).await;
    let by = format!(r#"{{"lock_token": "{key}"}}"#);
    assert_eq!(follower.post("/v1/locks/x/release", &by).await.status, 200);
    granted(said(soon(waits.join_next()).await.unwrap().unwrap()));
    waits.abort_all();
    leader.waiters(0).await;
}
