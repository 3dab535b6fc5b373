//! The resources that one client can use up: bytes, time, connections. Each test is an attack
//! that once worked.
//!
//! real time: these tests also pass beside busy loops (`cargo xtask test --loaded`).

use std::time::Duration;

use crate::net_support::{Server, Wish, soon};
use bytes::Bytes;
use http::{Request, Response, StatusCode};
use http_body_util::BodyExt as _;
use http_body_util::channel::{Channel, Sender};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use hyper_util::rt::{TokioExecutor, TokioIo};
use palisade_proto::v1;
use palisade_proto::v1::locks_client::LocksClient;
use palisade_server::shell::{Hosts, Settings};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};
use tonic::Code;
use tonic::transport::Endpoint;
use tonic_health::pb::HealthCheckRequest;
use tonic_health::pb::health_client::HealthClient;

const HOUR: Duration = Duration::from_secs(3_600);

/// A bare HTTP/2 connection, with the stream window given.
async fn http2(server: &Server, window: u32) -> SendRequest<Channel<Bytes>> {
    let stream = server.connect().await;
    let (sender, connection) = hyper::client::conn::http2::Builder::new(TokioExecutor::new())
        .initial_stream_window_size(window)
        .handshake(TokioIo::new(stream))
        .await
        .unwrap();
    tokio::spawn(connection);
    sender
}

type Calling = tokio::task::JoinHandle<Result<Response<Incoming>, hyper::Error>>;

/// Begins a call, whose body goes on until the sender is dropped.
fn begin(
    connection: &SendRequest<Channel<Bytes>>,
    server: &Server,
    path: &str,
) -> (Sender<Bytes>, Calling) {
    let (sender, body) = Channel::new(1);
    let request = Request::post(format!("http://{}{path}", server.addr))
        .header("content-type", "application/grpc")
        .header("te", "trailers")
        .body(body)
        .unwrap();
    let mut connection = connection.clone();
    let calling = tokio::spawn(async move {
        connection.ready().await?;
        connection.send_request(request).await
    });
    (sender, calling)
}

const ACQUIRE: &str = "/palisade.v1.Locks/Acquire";
const SESSION: &str = "/palisade.v1.Locks/Session";

/// The beginning of a gRPC message of 60,000 bytes, with so many of them.
fn beginning(bytes: usize) -> Bytes {
    let mut message = vec![0];
    message.extend(60_000_u32.to_be_bytes());
    message.resize(5 + bytes, 0);
    message.into()
}

fn refusal(response: &Response<Incoming>) -> Option<&str> {
    response.headers().get("palisade-code")?.to_str().ok()
}

#[tokio::test]
async fn a_grpc_body_that_never_ends_is_ended_and_an_idle_session_is_not() {
    let server = Server::with(Wish::shell(Settings {
        body_timeout: Duration::from_millis(200),
        ..Settings::default()
    }))
    .await;
    let connection = http2(&server, 65_535).await;
    // The session waits longer than any of the calls.
    let (session, opening) = begin(&connection, &server, SESSION);
    let mut session_reply = soon(opening).await.unwrap().unwrap();
    let mut calls = Vec::new();
    for number in 0..200 {
        let (mut body, calling) = begin(&connection, &server, ACQUIRE);
        if number % 2 == 0 {
            soon(body.send_data(beginning(number))).await.unwrap();
        }
        calls.push((body, calling));
    }
    for (_body, calling) in &mut calls {
        let response = soon(calling).await.unwrap().unwrap();
        assert_eq!(refusal(&response), Some("request_timeout"), "{response:?}");
    }
    assert!(
        tokio::time::timeout(Duration::ZERO, session_reply.frame())
            .await
            .is_err(),
        "the session was ended"
    );
    drop(session);
}

#[tokio::test]
async fn a_session_that_is_stuck_in_a_message_is_ended() {
    let server = Server::with(Wish::shell(Settings {
        body_timeout: Duration::from_millis(100),
        ..Settings::default()
    }))
    .await;
    let connection = http2(&server, 65_535).await;
    let (mut session, opening) = begin(&connection, &server, SESSION);
    let reply = soon(opening).await.unwrap().unwrap();
    soon(session.send_data(beginning(9))).await.unwrap();
    let ended = soon(reply.into_body().collect()).await.unwrap();
    let trailers = ended.trailers().unwrap();
    assert_eq!(trailers["palisade-code"], "request_timeout");
}

#[tokio::test]
async fn bodies_hold_no_more_bytes_than_there_are_for_one_connection() {
    let server = Server::with(Wish::shell(Settings {
        body_timeout: HOUR,
        held_bytes_per_connection: 128 << 10,
        ..Settings::default()
    }))
    .await;
    let connection = http2(&server, 65_535).await;
    let mut calls = Vec::new();
    for _ in 0..8 {
        let (mut body, calling) = begin(&connection, &server, ACQUIRE);
        // In pieces, as a client sends them.
        for piece in [
            beginning(20_000),
            vec![0; 20_000].into(),
            vec![0; 19_000].into(),
        ] {
            if soon(body.send_data(piece)).await.is_err() {
                break;
            }
        }
        calls.push((body, calling));
    }
    // There is room for two; the others get an error.
    let told = |calls: &[(_, Calling)]| {
        let finished = calls.iter().filter(|(_, calling)| calling.is_finished());
        finished.count()
    };
    soon(async {
        while told(&calls) < 6 {
            tokio::task::yield_now().await;
        }
    })
    .await;
    for (body, calling) in std::mem::take(&mut calls) {
        if !calling.is_finished() {
            calls.push((body, calling));
            continue;
        }
        let response = calling.await.unwrap().unwrap();
        assert_eq!(refusal(&response), Some("unavailable"));
    }
    // Freed resources can be used again, in the meantime also by another connection.
    assert_eq!(server.get("/healthz").await.status, 200);
    drop(calls);
    let mut again = http2(&server, 65_535).await;
    soon(again.ready()).await.unwrap();
    let (mut body, calling) = begin(&again, &server, ACQUIRE);
    soon(body.send_data(beginning(60_000))).await.unwrap();
    drop(body);
    let response = soon(calling).await.unwrap().unwrap();
    assert_ne!(refusal(&response), Some("unavailable"), "it was read whole");
}

#[tokio::test]
async fn a_unary_message_is_not_larger_than_a_body() {
    let server = Server::start().await;
    let channel = Endpoint::from_shared(format!("http://{}", server.addr)).unwrap();
    let mut client = LocksClient::new(soon(channel.connect()).await.unwrap());
    let acquire = v1::AcquireRequest {
        lock: "x".repeat(100_000),
        ..v1::AcquireRequest::default()
    };
    let status = soon(client.acquire(acquire)).await.unwrap_err();
    assert_eq!(status.code(), Code::OutOfRange, "{status:?}");
    assert_eq!(status.metadata().get("palisade-code").unwrap(), "too_large");
}

#[tokio::test]
async fn a_body_that_nobody_reads_is_not_waited_for() {
    let server = Server::with(Wish::shell(Settings {
        body_timeout: HOUR,
        ..Settings::default()
    }))
    .await;
    // Over HTTP/1.1: answered, and the connection is closed, though the body never comes.
    for (path, status) in [(ACQUIRE, 505), (SESSION, 505), ("/nowhere", 404)] {
        let head = format!(
            "POST {path} HTTP/1.1\r\nHost: t\r\nContent-Type: application/grpc\r\n\
             Content-Length: 50000\r\n\r\nabc"
        );
        let mut stream = server.connect().await;
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = Vec::new();
        let _ = soon(stream.read_to_end(&mut answer)).await;
        let answer = String::from_utf8_lossy(&answer).into_owned();
        let said = path == "/nowhere" || answer.contains(r#""code":"http_version""#);
        // `/nowhere` is answered as gRPC has it: 200, and the status in a header.
        let grpc = answer.contains("grpc-status: 12");
        assert!(
            said && (answer.contains(&format!("HTTP/1.1 {status}")) || grpc),
            "{path}: {answer}"
        );
    }
    // Over HTTP/2 the stream alone ends.
    let connection = http2(&server, 65_535).await;
    for path in ["/nowhere", "/palisade.v1.Locks/Nothing", "/v1/nowhere"] {
        let (mut body, calling) = begin(&connection, &server, path);
        let _ = soon(body.send_data(beginning(9))).await;
        let response = soon(calling).await.unwrap().unwrap();
        assert_eq!(response.headers()["grpc-status"], "12", "{path}");
    }
}

#[tokio::test]
async fn a_client_that_reads_no_answers_is_cut_and_one_that_does_is_not() {
    let server = Server::with(Wish::shell(Settings {
        head_timeout: Duration::from_millis(100),
        answer_timeout: Duration::from_millis(200),
        held_bytes_per_connection: 256 << 10,
        ..Settings::default()
    }))
    .await;
    let (reads, reads_not) = (http2(&server, 65_535).await, http2(&server, 1).await);
    let ask = |connection: &SendRequest<Channel<Bytes>>| {
        let (sender, body) = Channel::new(1);
        drop(sender);
        let uri = format!("http://{}/openapi.json", server.addr);
        let request = Request::get(uri).body(body).unwrap();
        connection.clone().send_request(request)
    };
    let mut unread = Vec::new();
    for _ in 0..100 {
        unread.push(soon(ask(&reads_not)).await);
    }
    // The bound in bytes: of the later answers there is nothing.
    let mut refused = 0;
    // The bound in time: the connection goes.
    let mut gone = reads_not.clone();
    soon(async {
        while gone.ready().await.is_ok() {
            let answer = soon(ask(&reads)).await.unwrap();
            assert_eq!(answer.status(), StatusCode::OK);
            soon(answer.into_body().collect()).await.unwrap();
        }
    })
    .await;
    for answer in unread {
        let whole = match answer {
            Ok(answer) => soon(answer.into_body().collect()).await.is_ok(),
            Err(_) => false,
        };
        refused += usize::from(!whole);
    }
    assert!(refused > 0);

    // The same over HTTP/1.1: requests without end, and nothing is read.
    let socket = TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4_096).unwrap();
    let mut deaf = soon(socket.connect(server.addr)).await.unwrap();
    let request = b"GET /openapi.json HTTP/1.1\r\nHost: t\r\n\r\n".repeat(100);
    soon(async { while deaf.write_all(&request).await.is_ok() {} }).await;
}

#[tokio::test]
async fn an_open_health_watch_does_not_delay_the_end() {
    let mut server = Server::with(Wish::shell(Settings {
        // The drain timeout is longer than this test would wait.
        drain_timeout: HOUR,
        ..Settings::default()
    }))
    .await;
    let channel = Endpoint::from_shared(format!("http://{}", server.addr)).unwrap();
    let channel = soon(channel.connect()).await.unwrap();
    let mut watch = soon(HealthClient::new(channel.clone()).watch(HealthCheckRequest::default()))
        .await
        .unwrap()
        .into_inner();
    assert_eq!(soon(watch.message()).await.unwrap().unwrap().status, 1);
    let (reflection, questions) = tokio::sync::mpsc::channel(1);
    let mut reflected =
        tonic_reflection::pb::v1::server_reflection_client::ServerReflectionClient::new(channel)
            .server_reflection_info(tokio_stream::wrappers::ReceiverStream::new(questions))
            .await
            .unwrap()
            .into_inner();

    server.ask_to_stop();
    server.ended().await.unwrap();
    // It was told first, and why in the end.
    let mut last = watch.message().await;
    if let Ok(Some(told)) = &last {
        assert_eq!(told.status, 2, "NOT_SERVING");
        last = watch.message().await;
    }
    assert_eq!(last.unwrap_err().code(), Code::Unavailable);
    let ended = soon(reflected.message()).await;
    assert_eq!(ended.unwrap_err().code(), Code::Unavailable);
    drop(reflection);
}

#[tokio::test]
async fn one_address_has_its_share_of_connections() {
    let server = Server::with(Wish::shell(Settings {
        connections: 4,
        ..Settings::default()
    }))
    .await;
    let from = async |host: u8| {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 0, host], 0).into()).unwrap();
        let mut stream = soon(socket.connect(server.addr)).await.unwrap();
        let request = b"GET /healthz HTTP/1.1\r\nHost: t\r\n\r\n";
        let _ = stream.write_all(request).await;
        let mut first = [0; 15];
        let served = soon(stream.read_exact(&mut first)).await.is_ok();
        served.then_some(stream)
    };
    let kept: [Option<TcpStream>; 4] = [from(1).await, from(1).await, from(1).await, from(2).await];
    assert_eq!(
        kept.each_ref().map(Option::is_some),
        [true, true, false, true]
    );
}

#[tokio::test]
async fn a_page_whose_name_points_here_can_do_nothing() {
    let server = Server::with(Wish::shell(Settings {
        hosts: Hosts::Named(vec!["locks.example.org".to_owned()]),
        ..Settings::default()
    }))
    .await;
    let lock = r#"{"client_id": "a", "lease_duration_ms": 10000}"#;
    let post = async |host: &str, more: &str, path: &str, body: &str| {
        let length = body.len();
        let request = format!(
            "POST {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Type: application/json\r\n\
             {more}Content-Length: {length}\r\n\r\n{body}"
        );
        server.raw(request.as_bytes()).await
    };
    let acquire = "/v1/locks/x/acquire";
    assert_eq!(
        post("locks.example.org", "", acquire, lock).await.status,
        200
    );
    let before = server.changes().await;
    let broken = post(
        "evil.example:7420",
        "",
        "/v1/locks/x/break",
        r#"{"fencing_token": 1}"#,
    )
    .await;
    assert_eq!((broken.status, &*broken.code()), (421, "misdirected"));
    assert!(
        broken.message().contains("--allow-host evil.example"),
        "{broken:?}"
    );
    let origin = "Origin: http://evil.example\r\n";
    let local = server.addr.to_string();
    let broken = post(
        &local,
        origin,
        "/v1/locks/x/break",
        r#"{"fencing_token": 1}"#,
    )
    .await;
    assert_eq!((broken.status, &*broken.code()), (403, "cross_origin"));
    let read = b"GET /v1/locks HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n";
    assert_eq!(server.raw(read).await.status, 421);

    let evil = Endpoint::from_shared(format!("http://{local}"))
        .unwrap()
        .origin("http://evil.example".parse().unwrap());
    let mut client = LocksClient::new(soon(evil.connect()).await.unwrap());
    let status = soon(client.status(v1::StatusRequest {})).await.unwrap_err();
    assert_eq!(status.code(), Code::PermissionDenied);
    assert_eq!(
        status.metadata().get("palisade-code").unwrap(),
        "misdirected"
    );
    assert_eq!(server.changes().await, before);
    // The page of this server itself may.
    let own = format!("Origin: http://{local}\r\n");
    let broken = post(&local, &own, "/v1/locks/x/break", r#"{"fencing_token": 1}"#).await;
    assert_eq!(broken.status, 200, "{broken:?}");
}
