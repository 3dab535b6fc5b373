//! The session stream over real sockets: the fast path.
#![cfg(feature = "net")]
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod net_support;

use net_support::grpc::{acquire, client, error, granted, release, said};
use net_support::{Server, Wish, soon};
use palisade_proto::v1::locks_client::LocksClient;
use palisade_proto::v1::reply::Outcome;
use palisade_proto::v1::request::Operation;
use palisade_proto::v1::{self, Replies, Reply, Request, Requests};
use palisade_server::net::Settings;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::transport::Channel;
use tonic::{Code, Streaming};

/// A session from a client's side.
struct Session {
    requests: mpsc::Sender<Requests>,
    replies: Streaming<Replies>,
    ready: std::collections::VecDeque<Reply>,
}

impl Session {
    async fn open(locks: &mut LocksClient<Channel>) -> Session {
        let (requests, frames) = mpsc::channel(16);
        let replies = soon(locks.session(ReceiverStream::new(frames)))
            .await
            .unwrap()
            .into_inner();
        Session {
            requests,
            replies,
            ready: [].into(),
        }
    }

    /// Sends one frame.
    async fn send(&self, operations: impl IntoIterator<Item = (u64, Operation)>) {
        let requests = operations.into_iter().map(|(id, operation)| Request {
            id,
            operation: Some(operation),
        });
        self.requests
            .send(Requests {
                requests: requests.collect(),
            })
            .await
            .unwrap();
    }

    async fn next(&mut self) -> Option<Reply> {
        while self.ready.is_empty() {
            self.ready
                .extend(soon(self.replies.message()).await.unwrap()?.replies);
        }
        self.ready.pop_front()
    }

    async fn expect(&mut self, id: u64) -> Option<Outcome> {
        let reply = self.next().await.expect("the session ended");
        assert_eq!(reply.id, id);
        reply.outcome
    }
}

#[tokio::test]
async fn a_session_carries_many_operations_and_answers_each_by_its_id() {
    let server = Server::start().await;
    let mut session = Session::open(&mut client(&server).await).await;
    let wanted = 20_000_u64;
    for frame in 0..20 {
        let ids = frame * 1_000..(frame + 1) * 1_000;
        session
            .send(ids.map(|id| {
                (
                    id,
                    Operation::Acquire(acquire(&format!("lock-{id}"), "a", 0)),
                )
            }))
            .await;
    }
    let mut tokens = std::collections::BTreeMap::new();
    for _ in 0..wanted {
        let reply = session.next().await.unwrap();
        tokens.insert(reply.id, granted(reply.outcome).fencing_token);
    }
    assert!(
        tokens.iter().all(|(id, token)| id + 1 == *token),
        "order of asking is order of granting"
    );
    assert_eq!(tokens.len() as u64, wanted);
    drop(session.requests);
    assert!(
        soon(session.replies.message()).await.unwrap().is_none(),
        "a closed session ends well"
    );
    assert_eq!(
        server.status().await.locks as u64,
        wanted,
        "grants stay when their session ends"
    );
}

#[tokio::test]
async fn a_waiter_is_answered_when_it_is_granted_and_blocks_nobody() {
    let server = Server::start().await;
    let mut session = Session::open(&mut client(&server).await).await;
    session
        .send([(1, Operation::Acquire(acquire("x", "a", 0)))])
        .await;
    let first = granted(session.expect(1).await);
    session
        .send([
            (2, Operation::Acquire(acquire("x", "b", 60_000))),
            (3, Operation::Acquire(acquire("x", "c", 5_000))),
            (4, Operation::Acquire(acquire("y", "a", 0))),
        ])
        .await;
    assert_eq!(granted(session.expect(4).await).fencing_token, 2);
    server.advance(5_000).await;
    assert!(
        matches!(session.expect(3).await, Some(Outcome::Held(_))),
        "its wait is over"
    );
    session
        .send([(5, Operation::Release(release("x", &first.lock_token)))])
        .await;
    let (mut by_id, mut order) = (std::collections::BTreeMap::new(), Vec::new());
    for _ in 0..2 {
        let reply = session.next().await.unwrap();
        order.push(reply.id);
        by_id.insert(reply.id, reply.outcome);
    }
    let late = granted(by_id.remove(&2).unwrap());
    assert_eq!(
        (late.fencing_token, late.waited_ms, late.valid_for_ms),
        (3, 5_000, 15_000),
        "{order:?}"
    );
}

#[tokio::test]
async fn malformed_operations_are_refused_one_by_one_and_the_stream_goes_on() {
    let server = Server::start().await;
    let mut session = Session::open(&mut client(&server).await).await;
    let frame = Requests {
        requests: vec![
            Request {
                id: 1,
                operation: Some(Operation::Acquire(acquire("", "a", 0))),
            },
            Request {
                id: 2,
                operation: None,
            },
            Request {
                id: 3,
                operation: Some(Operation::Acquire(acquire("x", "a", 0))),
            },
            Request {
                id: 4,
                operation: Some(Operation::Release(release("x", &[1]))),
            },
            Request {
                id: 5,
                operation: Some(Operation::Release(release("x", &[1; 16]))),
            },
        ],
    };
    session.requests.send(frame).await.unwrap();
    let mut replies = std::collections::BTreeMap::new();
    for _ in 0..5 {
        let reply = session.next().await.unwrap();
        replies.insert(reply.id, reply.outcome);
    }
    for id in [1, 2, 4] {
        assert_eq!(error(replies.remove(&id).unwrap()).code, "invalid", "{id}");
    }
    assert_eq!(granted(replies.remove(&3).unwrap()).fencing_token, 1);
    assert_eq!(error(replies.remove(&5).unwrap()).code, "not_held");
    session
        .send([(6, Operation::Status(v1::StatusRequest {}))])
        .await;
    assert!(matches!(session.expect(6).await, Some(Outcome::Status(_))));
}

#[tokio::test]
async fn a_session_that_hangs_up_leaves_its_queues() {
    let server = Server::start().await;
    let mut locks = client(&server).await;
    granted(said(locks.acquire(acquire("x", "a", 0)).await));
    let session = Session::open(&mut client(&server).await).await;
    session
        .send((0..10).map(|id| {
            (
                id,
                Operation::Acquire(acquire("x", &format!("w{id}"), 60_000)),
            )
        }))
        .await;
    server.waiters(10).await;
    drop(session);
    server.waiters(0).await;

    let half = Session::open(&mut locks).await;
    half.send([(1, Operation::Acquire(acquire("x", "b", 60_000)))])
        .await;
    server.waiters(1).await;
    let Session {
        requests,
        mut replies,
        ..
    } = half;
    drop(requests);
    assert!(soon(replies.message()).await.unwrap().is_none());
    server.waiters(0).await;
}

#[tokio::test]
async fn a_session_reads_no_further_while_too_much_is_in_flight() {
    let settings = Settings {
        session_operations: 10,
        ..Settings::default()
    };
    let server = Server::with(Wish {
        settings,
        ..Wish::default()
    })
    .await;
    let mut locks = client(&server).await;
    let key = granted(said(locks.acquire(acquire("x", "a", 0)).await)).lock_token;
    let mut session = Session::open(&mut locks).await;
    session
        .send((0..10).map(|id| {
            (
                id,
                Operation::Acquire(acquire("x", &format!("w{id}"), 60_000)),
            )
        }))
        .await;
    session
        .send([(10, Operation::Show(v1::ShowRequest { lock: "x".into() }))])
        .await;
    server.waiters(10).await;
    said(locks.release(release("x", &key)).await);
    granted(session.expect(0).await);
    let Some(Outcome::Lock(shown)) = session.expect(10).await else {
        panic!()
    };
    assert_eq!(
        (shown.waiters, shown.holder.unwrap().client_id.as_str()),
        (9, "w0"),
        "it was read after the grant"
    );
}

#[tokio::test]
async fn a_frame_that_is_too_large_ends_the_session_with_a_word() {
    let settings = Settings {
        frame_bytes: 1_024,
        ..Settings::default()
    };
    let server = Server::with(Wish {
        settings,
        ..Wish::default()
    })
    .await;
    let mut session = Session::open(&mut client(&server).await).await;
    session
        .send((0..100).map(|id| (id, Operation::Acquire(acquire("x", "a", 0)))))
        .await;
    let status = soon(session.replies.message()).await.unwrap_err();
    assert_eq!(status.code(), Code::OutOfRange, "{status:?}");
    assert_eq!(server.status().await.locks, 0);
}
