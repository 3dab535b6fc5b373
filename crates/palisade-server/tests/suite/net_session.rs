//! The session stream over real sockets: the fast path.

use crate::net_support::grpc::{acquire, client, error, granted, release, said};
use crate::net_support::{Server, Wish, soon};
use palisade_pipeline::Leading;
use palisade_proto::frames;
use palisade_proto::v1::reply::Outcome;
use palisade_proto::v1::request::Operation;
use palisade_proto::v1::{self, Replies, Reply, Request, Requests};
use palisade_server::net::Settings;
use prost::Message as _;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tonic::Streaming;

/// The two ways to speak a session.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Dress {
    Grpc,
    Plain,
}

/// Runs each test in both.
macro_rules! in_both_dresses {
    ($($test:ident)*) => {
        mod grpc {
            $(#[tokio::test]
            async fn $test() {
                super::$test(super::Dress::Grpc).await;
            })*
        }
        mod plain {
            $(#[tokio::test]
            async fn $test() {
                super::$test(super::Dress::Plain).await;
            })*
        }
    };
}

in_both_dresses! {
    a_session_carries_many_operations_and_answers_each_by_its_id
    a_waiter_is_answered_when_it_is_granted_and_blocks_nobody
    malformed_operations_are_refused_one_by_one_and_the_stream_goes_on
    a_session_that_hangs_up_leaves_its_queues
    a_session_reads_no_further_while_too_much_is_in_flight
    a_frame_that_is_too_large_ends_the_session_with_a_word
    a_frame_of_too_many_operations_is_refused_before_it_is_decoded
    a_listing_is_made_when_the_one_before_it_was_read
    who_borrows_all_the_memory_there_is_stops_nobody_who_needs_little
    a_server_that_stops_answers_what_is_in_flight_and_says_why_it_ends
    a_node_that_does_not_lead_names_the_leader_and_keeps_the_session
}

/// A session from a client's side.
pub(crate) struct Session {
    wire: Wire,
    ready: std::collections::VecDeque<Reply>,
}

enum Wire {
    Grpc {
        requests: Option<mpsc::Sender<Requests>>,
        replies: Streaming<Replies>,
    },
    Plain {
        stream: TcpStream,
        inbound: Vec<u8>,
    },
}

impl Session {
    pub(crate) async fn open(server: &Server, dress: Dress) -> Session {
        let wire = match dress {
            Dress::Grpc => {
                let (requests, frames) = mpsc::channel(16);
                let mut locks = client(server).await;
                let replies = soon(locks.session(ReceiverStream::new(frames)));
                Wire::Grpc {
                    requests: Some(requests),
                    replies: replies.await.unwrap().into_inner(),
                }
            }
            Dress::Plain => {
                let mut stream = TcpStream::connect(server.addr).await.unwrap();
                stream.write_all(&frames::PREFACE).await.unwrap();
                let inbound = Vec::new();
                Wire::Plain { stream, inbound }
            }
        };
        Session {
            wire,
            ready: [].into(),
        }
    }

    /// Sends one frame.
    pub(crate) async fn send(&mut self, operations: impl IntoIterator<Item = (u64, Operation)>) {
        let requests = operations.into_iter().map(|(id, operation)| Request {
            id,
            operation: Some(operation),
        });
        self.send_frame(requests.collect()).await;
    }

    async fn send_frame(&mut self, requests: Vec<Request>) {
        match &mut self.wire {
            Wire::Grpc { requests: to, .. } => {
                let to = to.as_ref().unwrap();
                to.send(Requests { requests }).await.unwrap();
            }
            Wire::Plain { stream, .. } => {
                stream.write_all(&plain_frame(&requests)).await.unwrap();
            }
        }
    }

    /// Says that nothing more is sent.
    async fn hang_up(&mut self) {
        match &mut self.wire {
            Wire::Grpc { requests, .. } => drop(requests.take()),
            Wire::Plain { stream, .. } => stream.shutdown().await.unwrap(),
        }
    }

    /// The next reply, or the code with which the session ended; `None` if it ended well.
    pub(crate) async fn next(&mut self) -> Result<Option<Reply>, String> {
        while self.ready.is_empty() {
            let Some(replies) = soon(self.wire.frame()).await? else {
                return Ok(None);
            };
            self.ready.extend(replies);
        }
        let reply = self.ready.pop_front();
        match reply {
            Some(Reply { id: 0, outcome }) if matches!(self.wire, Wire::Plain { .. }) => {
                Err(error(outcome).code)
            }
            reply => Ok(reply),
        }
    }

    async fn reply(&mut self) -> Reply {
        self.next().await.unwrap().expect("the session ended")
    }

    pub(crate) async fn expect(&mut self, id: u64) -> Option<Outcome> {
        let reply = self.reply().await;
        assert_eq!(reply.id, id);
        reply.outcome
    }
}

impl Wire {
    async fn frame(&mut self) -> Result<Option<Vec<Reply>>, String> {
        match self {
            Wire::Grpc { replies, .. } => match replies.message().await {
                Ok(frame) => Ok(frame.map(|frame| frame.replies)),
                Err(status) => Err(match status.code() {
                    tonic::Code::Unavailable => "unavailable".into(),
                    tonic::Code::OutOfRange | tonic::Code::InvalidArgument => "invalid".into(),
                    other => format!("{other:?}"),
                }),
            },
            Wire::Plain { stream, inbound } => loop {
                if let Some(frame) = frames::first(inbound, usize::MAX).unwrap() {
                    let (replies, length) = (Replies::decode(frame).unwrap(), frame.len());
                    inbound.drain(..frames::HEADER + length);
                    return Ok(Some(replies.replies));
                }
                if stream.read_buf(inbound).await.unwrap() == 0 {
                    assert!(inbound.is_empty(), "it ended in a frame");
                    return Ok(None);
                }
            },
        }
    }
}

pub(crate) fn plain_frame(requests: &[Request]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let frame = frames::FrameBuilder::at_end(&mut bytes);
    for request in requests {
        frame.put(&mut bytes, request);
    }
    frame.close(&mut bytes);
    bytes
}

async fn a_session_carries_many_operations_and_answers_each_by_its_id(dress: Dress) {
    let server = Server::start().await;
    let mut session = Session::open(&server, dress).await;
    let wanted = 20_000_u64;
    for frame in 0..20 {
        let ids = frame * 1_000 + 1..=(frame + 1) * 1_000;
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
        let reply = session.reply().await;
        tokens.insert(reply.id, granted(reply.outcome).fencing_token);
    }
    assert!(
        tokens.iter().all(|(id, token)| id == token),
        "order of asking is order of granting"
    );
    assert_eq!(tokens.len() as u64, wanted);
    session.hang_up().await;
    assert_eq!(session.next().await, Ok(None), "a closed session ends well");
    assert_eq!(
        server.status().await.locks as u64,
        wanted,
        "grants stay when their session ends"
    );
}

async fn a_waiter_is_answered_when_it_is_granted_and_blocks_nobody(dress: Dress) {
    let server = Server::start().await;
    let mut session = Session::open(&server, dress).await;
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
        let reply = session.reply().await;
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

async fn malformed_operations_are_refused_one_by_one_and_the_stream_goes_on(dress: Dress) {
    let server = Server::start().await;
    let mut session = Session::open(&server, dress).await;
    let frame = vec![
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
    ];
    session.send_frame(frame).await;
    let mut replies = std::collections::BTreeMap::new();
    for _ in 0..5 {
        let reply = session.reply().await;
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

async fn a_session_that_hangs_up_leaves_its_queues(dress: Dress) {
    let server = Server::start().await;
    let mut locks = client(&server).await;
    granted(said(locks.acquire(acquire("x", "a", 0)).await));
    let mut session = Session::open(&server, dress).await;
    session
        .send((1..=10).map(|id| {
            (
                id,
                Operation::Acquire(acquire("x", &format!("w{id}"), 60_000)),
            )
        }))
        .await;
    server.waiters(10).await;
    drop(session);
    server.waiters(0).await;

    let mut half = Session::open(&server, dress).await;
    half.send([(1, Operation::Acquire(acquire("x", "b", 60_000)))])
        .await;
    server.waiters(1).await;
    half.hang_up().await;
    assert_eq!(half.next().await, Ok(None));
    server.waiters(0).await;
}

async fn a_session_reads_no_further_while_too_much_is_in_flight(dress: Dress) {
    let server = Server::with(Wish::net(Settings {
        session_operations: 10,
        ..Settings::default()
    }))
    .await;
    let mut locks = client(&server).await;
    let key = granted(said(locks.acquire(acquire("x", "a", 0)).await)).lock_token;
    let mut session = Session::open(&server, dress).await;
    session
        .send((1..=10).map(|id| {
            (
                id,
                Operation::Acquire(acquire("x", &format!("w{id}"), 60_000)),
            )
        }))
        .await;
    session
        .send([(11, Operation::Show(v1::ShowRequest { lock: "x".into() }))])
        .await;
    server.waiters(10).await;
    said(locks.release(release("x", &key)).await);
    granted(session.expect(1).await);
    let Some(Outcome::Lock(shown)) = session.expect(11).await else {
        panic!()
    };
    assert_eq!(
        (shown.waiters, shown.holder.unwrap().client_id.as_str()),
        (9, "w1"),
        "it was read after the grant"
    );
}

async fn a_frame_that_is_too_large_ends_the_session_with_a_word(dress: Dress) {
    let server = Server::with(Wish::net(Settings {
        frame_bytes: 1_024,
        ..Settings::default()
    }))
    .await;
    let mut session = Session::open(&server, dress).await;
    session
        .send((1..=100).map(|id| (id, Operation::Acquire(acquire("x", "a", 0)))))
        .await;
    assert_eq!(session.next().await, Err("invalid".into()));
    assert_eq!(server.status().await.locks, 0);
}

async fn a_frame_of_too_many_operations_is_refused_before_it_is_decoded(dress: Dress) {
    let server = Server::with(Wish::net(Settings {
        frame_operations: 100,
        ..Settings::default()
    }))
    .await;
    let operations = |count| {
        (1..=count).map(|id| {
            let lock = format!("lock-{id}");
            (id, Operation::Acquire(acquire(&lock, "a", 0)))
        })
    };
    // The control: as many as may be.
    let mut session = Session::open(&server, dress).await;
    session.send(operations(100)).await;
    for _ in 0..100 {
        granted(session.reply().await.outcome);
    }
    assert_eq!(server.status().await.locks, 100);
    let mut session = Session::open(&server, dress).await;
    session.send(operations(101)).await;
    assert_eq!(session.next().await, Err("invalid".into()));
    // Two bytes each: 200 KB on the wire, and many times as much in memory.
    let mut session = Session::open(&server, dress).await;
    session.send_frame(vec![Request::default(); 100_000]).await;
    assert_eq!(session.next().await, Err("invalid".into()));
    assert_eq!(server.status().await.locks, 100);
}

fn list() -> Operation {
    Operation::List(v1::ListRequest {
        limit: 1_000,
        ..v1::ListRequest::default()
    })
}

async fn a_listing_is_made_when_the_one_before_it_was_read(dress: Dress) {
    let server = Server::start().await;
    let mut filling = Session::open(&server, dress).await;
    // One page of all of them is more than half a megabyte.
    for frame in 0..2 {
        let ids = frame * 500 + 1..=(frame + 1) * 500;
        let operations = ids.map(|id| {
            let wish = v1::AcquireRequest {
                metadata: "m".repeat(256),
                ..acquire(&format!("{id:0>255}"), &"c".repeat(255), 0)
            };
            (id, Operation::Acquire(wish))
        });
        filling.send(operations).await;
    }
    for _ in 0..1_000 {
        granted(filling.reply().await.outcome);
    }
    let before = server.handle.stats().operations.get();
    let mut greedy = Session::open(&server, dress).await;
    greedy.send((1..=200).map(|id| (id, list()))).await;
    // Others are served meanwhile, page by page, and the one that does not read has had its time.
    for id in 2_001..=2_020 {
        filling.send([(id, list())]).await;
        assert!(matches!(filling.expect(id).await, Some(Outcome::Page(_))));
    }
    let made = server.handle.stats().operations.get() - before - 20;
    assert!(
        made < 60,
        "{made} of 200 pages were made for a client that reads none"
    );
    for _ in 0..200 {
        assert!(matches!(
            greedy.reply().await.outcome,
            Some(Outcome::Page(_))
        ));
    }
}

async fn who_borrows_all_the_memory_there_is_stops_nobody_who_needs_little(dress: Dress) {
    let server = Server::with(Wish::net(Settings {
        frame_operations: 1_000,
        session_bytes: 2 << 20,
        sessions_bytes: (2 << 20) + (1_000 << 10),
        // All callers have one address.
        waits_per_address: Some(3_000),
        ..Settings::default()
    }))
    .await;
    for lock in ["x0", "x1", "x2"] {
        server.lock(lock, "holder").await;
    }
    let mut greedy = Session::open(&server, dress).await;
    for frame in 0..3_u64 {
        let operations = (1..=1_000).map(|id| {
            let wish = acquire(&format!("x{frame}"), &format!("w{frame}-{id}"), 60_000);
            (frame * 1_000 + id, Operation::Acquire(wish))
        });
        greedy.send(operations).await;
    }
    server.waiters(3_000).await;
    let show = |id| (id, Operation::Show(v1::ShowRequest { lock: "x0".into() }));
    let mut modest = Session::open(&server, dress).await;
    modest.send((1..=30).map(show)).await;
    for _ in 0..30 {
        assert!(matches!(
            modest.reply().await.outcome,
            Some(Outcome::Lock(_))
        ));
    }
    // More than its own part: left unread until the other gives back.
    let before = server.handle.stats().operations.get();
    modest.send((1..=900).map(show)).await;
    let mut third = Session::open(&server, dress).await;
    for id in 1..=50 {
        third.send([show(id)]).await;
        third.expect(id).await;
    }
    let status = server.handle.stats().operations.get() - before - 50;
    assert!(status < 900, "there was no memory for them");
    // Its waits are over.
    server.advance(60_000).await;
    for _ in 0..900 {
        assert!(matches!(
            modest.reply().await.outcome,
            Some(Outcome::Lock(_))
        ));
    }
}

async fn a_server_that_stops_answers_what_is_in_flight_and_says_why_it_ends(dress: Dress) {
    let mut server = Server::start().await;
    let mut session = Session::open(&server, dress).await;
    session
        .send([
            (1, Operation::Acquire(acquire("x", "a", 0))),
            (2, Operation::Acquire(acquire("y", "a", 0))),
        ])
        .await;
    granted(session.expect(1).await);
    server.ask_to_stop();
    granted(session.expect(2).await);
    assert_eq!(session.next().await, Err("unavailable".into()));
    drop(session);
    server.ended().await.unwrap();
}

/// A session over plain bytes, for input that no client library produces.
async fn plain(server: &Server, bytes: &[u8]) -> Session {
    let mut session = Session::open(server, Dress::Plain).await;
    let Wire::Plain { stream, .. } = &mut session.wire else {
        panic!()
    };
    stream.write_all(bytes).await.unwrap();
    session
}

/// One session runs on the pipeline's thread, and the other one on a thread of the network.
#[tokio::test]
async fn sessions_on_both_kinds_of_threads_hand_a_lock_over() {
    let server = Server::with(Wish::net(Settings {
        sessions_near: 1,
        ..Settings::default()
    }))
    .await;
    let mut sessions = [
        Session::open(&server, Dress::Plain).await,
        Session::open(&server, Dress::Plain).await,
    ];
    let ask = |client| Operation::Acquire(acquire("x", client, 60_000));
    sessions[0].send([(1, ask("a"))]).await;
    let mut held = granted(sessions[0].expect(1).await);
    for turn in 2..8 {
        let (holder, next) = (turn as usize % 2, (turn as usize + 1) % 2);
        sessions[next].send([(turn, ask(["a", "b"][next]))]).await;
        server.waiters(1).await;
        let give = Operation::Release(release("x", &held.lock_token));
        sessions[holder].send([(100 + turn, give)]).await;
        sessions[holder].expect(100 + turn).await;
        let before = held.fencing_token;
        held = granted(sessions[next].expect(turn).await);
        assert!(held.fencing_token > before);
    }
}

#[tokio::test]
async fn a_plain_session_takes_frames_in_any_pieces_and_answers_an_empty_one_by_an_empty_one() {
    let server = Server::start().await;
    let mut session = Session::open(&server, Dress::Plain).await;
    let show = Operation::Show(v1::ShowRequest { lock: "x".into() });
    let request = |id| Request {
        id,
        operation: Some(show.clone()),
    };
    let mut bytes = plain_frame(&[request(1)]);
    frames::put_empty(&mut bytes);
    bytes.extend(plain_frame(&[request(2)]));
    let Wire::Plain { stream, .. } = &mut session.wire else {
        panic!()
    };
    stream.set_nodelay(true).unwrap();
    for byte in &bytes {
        stream.write_all(std::slice::from_ref(byte)).await.unwrap();
        tokio::task::yield_now().await;
    }
    let (mut shown, mut empty) = (Vec::new(), 0);
    while shown.len() < 2 {
        let replies = soon(session.wire.frame()).await.unwrap().unwrap();
        empty += usize::from(replies.is_empty());
        shown.extend(replies.iter().map(|reply| reply.id));
    }
    assert_eq!((shown, empty), (vec![1, 2], 1));
}

#[tokio::test]
async fn bytes_that_are_no_frames_end_a_plain_session_with_a_word_and_change_nothing() {
    let server = Server::start().await;
    let before = server.changes().await;
    for bytes in [
        &[0, 0, 0, 2, 0xff, 0xff][..],
        &u32::MAX.to_be_bytes(),
        &plain_frame(&[Request::default(), Request::default()]),
        b"GET / HTTP/1.1\r\n\r\n",
    ] {
        let mut session = plain(&server, bytes).await;
        assert_eq!(session.next().await, Err("invalid".into()), "{bytes:?}");
        assert_eq!(session.next().await, Ok(None), "{bytes:?}");
    }
    let mut stream = TcpStream::connect(server.addr).await.unwrap();
    stream.write_all(b"\0PLSDE3\n").await.unwrap();
    let mut said = Vec::new();
    soon(stream.read_to_end(&mut said)).await.unwrap();
    assert!(String::from_utf8_lossy(&said).contains("versions 1 and 2"));
    assert_eq!(server.changes().await, before);
}

async fn a_node_that_does_not_lead_names_the_leader_and_keeps_the_session(dress: Dress) {
    let server = Server::start().await;
    let mut session = Session::open(&server, dress).await;
    let acquire = |id| [(id, Operation::Acquire(acquire("orders", "a", 0)))];
    for (leading, leader) in [
        (
            Leading::At("http://10.0.0.2:7420".into()),
            "http://10.0.0.2:7420",
        ),
        (Leading::Nowhere, ""),
    ] {
        server.handle.set_leader(leading);
        session.send(acquire(1)).await;
        let refused = error(session.expect(1).await);
        assert_eq!((&*refused.code, &*refused.leader), ("not_leader", leader));
        session
            .send([(2, Operation::List(v1::ListRequest::default()))])
            .await;
        assert_eq!(error(session.expect(2).await).code, "not_leader");
    }
    server.handle.set_leader(Leading::Here);
    session.send(acquire(3)).await;
    assert_eq!(granted(session.expect(3).await).fencing_token, 1);
}
