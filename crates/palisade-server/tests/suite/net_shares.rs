//! The share of one address of the waits: at every interface, also while its connections break.

use std::net::SocketAddr;

use palisade_proto::v1::request::Operation;
use palisade_server::net::Settings;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpSocket, TcpStream};

use crate::net_access::{
    acquires, closed_with, open_session, plain_of, rules, send_session, token,
};
use crate::net_support::{Server, grpc, soon};

/// The lock `x/1` for a principal and a client, with a wait of a minute.
fn wait(principal: &str, number: u8) -> String {
    let body = format!(
        r#"{{"client_id": "c{number}", "lease_duration_ms": 10000, "wait_ms": 60000, "request_id": "{number:032x}"}}"#
    );
    format!(
        "POST /v1/locks/x%2F1/acquire HTTP/1.1\r\nHost: t\r\nConnection: close\r\nAuthorization: Bearer {}\r\n\
         Content-Length: {}\r\n\r\n{body}",
        token(principal),
        body.len()
    )
}

async fn from(host: u8, server: SocketAddr, request: &str) -> TcpStream {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(([127, 0, 0, host], 0).into()).unwrap();
    let mut stream = soon(socket.connect(server)).await.unwrap();
    stream.write_all(request.as_bytes()).await.unwrap();
    stream
}

async fn answer(mut stream: TcpStream) -> String {
    let mut answer = String::new();
    soon(stream.read_to_string(&mut answer)).await.unwrap();
    answer
}

/// A server on which `both` holds `x/1`, and two requests of this address wait for it: one in a session, one over HTTP.
async fn two_wait(server: &Server) -> (TcpStream, TcpStream) {
    let held = Operation::Acquire(grpc::acquire("x/1", "holder", 0));
    assert_eq!(plain_of(server, held, Some(&token("both"))).await, "");
    let mut session = open_session(server, Some(&token("hold"))).await;
    let waits = Operation::Acquire(grpc::acquire("x/1", "c1", 60_000));
    send_session(&mut session, [waits]).await;
    server.waiters(1).await;
    let http = from(1, server.addr, &wait("hold", 2)).await;
    server.waiters(2).await;
    (session, http)
}

/// The controls are another address, a try that does not wait, and the same address with the share that is the default.
#[tokio::test]
async fn one_address_has_its_share_of_waits_at_every_interface() {
    let settings = Settings {
        waits_per_address: Some(2),
        ..Settings::default()
    };
    let closed = closed_with(&rules(), settings).await;
    let server = &closed.server;
    let (session, http) = two_wait(server).await;
    let over = [(); 4].map(|()| "over_quota".to_owned());
    assert_eq!(acquires(server, &["x/1"], 60_000, "both").await, over);
    assert_eq!(acquires(server, &["x/1"], 0, "both").await, ["held"; 4]);
    // A set is counted before it is known whether it has to wait.
    let set = ["x/2", "x/3"];
    assert_eq!(acquires(server, &set, 60_000, "both").await, over);
    let refused = answer(from(1, server.addr, &wait("both", 3)).await).await;
    assert!(refused.starts_with("HTTP/1.1 429"), "{refused}");
    for part in ["127.0.0.1", "2 locks", "--waits-per-address"] {
        assert!(refused.contains(part), "{part}: {refused}");
    }
    let _other = from(2, server.addr, &wait("both", 4)).await;
    server.waiters(3).await;

    // The place of a connection that broke counts on, and its caller takes it again.
    let before = server.changes().await;
    drop(http);
    soon(async { while server.changes().await == before {} }).await;
    assert_eq!(server.status().await.waiters, 3, "its place is kept");
    assert_eq!(acquires(server, &["x/1"], 60_000, "both").await, over);
    let before = server.changes().await;
    let http = from(1, server.addr, &wait("hold", 2)).await;
    soon(async { while server.changes().await == before {} }).await;
    assert_eq!(acquires(server, &["x/1"], 60_000, "both").await, over);
    drop(session);
    server.waiters(2).await;
    let _third = from(1, server.addr, &wait("both", 5)).await;
    server.waiters(3).await;
    let refused = answer(from(1, server.addr, &wait("both", 6)).await).await;
    assert!(refused.contains("over_quota"), "{refused}");
    let authorization = format!("Authorization: Bearer {}\r\n", token("observe"));
    let metrics = server.send("GET", "/metrics", &authorization, "").await;
    let counted = "palisade_waits_refused_total 18\n";
    assert!(metrics.body.contains(counted), "{}", metrics.body);
    drop(http);

    let closed = closed_with(&rules(), Settings::default()).await;
    let server = &closed.server;
    let _two = two_wait(server).await;
    let _third = from(1, server.addr, &wait("both", 3)).await;
    server.waiters(3).await;
}
