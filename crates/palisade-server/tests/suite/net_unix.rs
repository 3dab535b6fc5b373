//! A server on a Unix socket: the bounds of connections, the network's features that it does not need, and the
//! end.
//!
//! real time: these tests also pass beside busy loops (`cargo xtask test --loaded`).

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use palisade_server::net;
use palisade_server::shell::{Hosts, Listen, Listeners, Settings};
use tempfile::TempDir;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixStream};

use crate::net_access;
use crate::net_support::{Server, Wish, acquire_and_wait, soon};

/// A server on a port and a Unix socket.
async fn on_both(wish: Wish) -> (Server, PathBuf, TempDir) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("s");
    let socket = Listen::unix(path.to_str().unwrap()).unwrap();
    let port = Listen::Tcp(SocketAddr::from(([127, 0, 0, 1], 0)));
    let listeners = Listeners::bind(&[socket, port]).await.unwrap();
    let addr = listeners.addresses().unwrap()[1].tcp().unwrap();
    (Server::on(listeners, addr, wish), path, dir)
}

/// Sends bytes, and reads what the server sends until it closes.
async fn raw(path: &Path, bytes: &[u8]) -> String {
    let mut stream = UnixStream::connect(path).await.unwrap();
    let _ = stream.write_all(bytes).await;
    rest(&mut stream).await
}

async fn rest(stream: &mut UnixStream) -> String {
    let mut bytes = Vec::new();
    // A reset is an end, too.
    let _ = soon(stream.read_to_end(&mut bytes)).await;
    String::from_utf8_lossy(&bytes).into_owned()
}

fn get(path: &str, host: &str, more: &str) -> String {
    format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n{more}Connection: close\r\n\r\n")
}

#[tokio::test]
async fn host_names_are_checked_where_browsers_come_from() {
    let (server, path, _dir) = on_both(Wish::default()).await;
    let foreign = get("/healthz", "evil.example", "");
    assert!(
        raw(&path, foreign.as_bytes())
            .await
            .starts_with("HTTP/1.1 200")
    );
    assert_eq!(server.raw(foreign.as_bytes()).await.status, 421);
}

#[tokio::test]
async fn heads_and_bodies_have_their_time() {
    let (_server, path, _dir) = on_both(Wish::shell(Settings {
        head_timeout: Duration::from_millis(100),
        body_timeout: Duration::from_millis(100),
        ..Settings::default()
    }))
    .await;
    for start in [
        "",
        "GET /healthz HT",
        "PRI * HT",
        "GET /healthz HTTP/1.1\r\nHost: t\r\n",
    ] {
        // Ends, and long before the idle time-out of five minutes.
        raw(&path, start.as_bytes()).await;
    }
    let body = "POST /v1/locks/x/acquire HTTP/1.1\r\nHost: t\r\nContent-Length: 10\r\n\r\n{";
    let late = raw(&path, body.as_bytes()).await;
    assert!(late.contains("request_timeout"), "{late}");
}

#[tokio::test]
async fn one_user_has_a_share_of_the_connections() {
    let (server, path, _dir) = on_both(Wish::shell(Settings {
        connections: 4,
        ..Settings::default()
    }))
    .await;
    let mut held = Vec::new();
    for _ in 0..2 {
        let mut stream = UnixStream::connect(&path).await.unwrap();
        let open = "GET /healthz HTTP/1.1\r\nHost: t\r\n\r\n";
        stream.write_all(open.as_bytes()).await.unwrap();
        let mut first = [0; 12];
        soon(stream.read_exact(&mut first)).await.unwrap();
        held.push(stream);
    }
    assert_eq!(
        raw(&path, get("/healthz", "t", "").as_bytes()).await,
        "",
        "closed at once"
    );
    assert_eq!(
        server.get("/healthz").await.status,
        200,
        "others have theirs"
    );
    drop(held);
    soon(async {
        while !raw(&path, get("/healthz", "t", "").as_bytes())
            .await
            .contains("200")
        {}
    })
    .await;
}

/// A stranger can set the header of a request that a node has forwarded; then only a token counts.
#[tokio::test]
async fn the_uid_does_not_count_for_a_forwarded_request() {
    let me = rustix::process::getuid().as_raw();
    let rules = net_access::rules().replace(
        "name = \"both\"\n",
        &format!("name = \"both\"\nuids = [{me}]\n"),
    );
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("access.toml");
    std::fs::write(&file, rules).unwrap();
    let (_server, path, _dir) = on_both(Wish::net(net::Settings {
        access: Some(file),
        ..net::Settings::default()
    }))
    .await;
    let show = async |more: &str| raw(&path, get("/v1/locks/x%2F1", "t", more).as_bytes()).await;
    let forwarded = show("x-palisade-forwarded: n\r\n").await;
    assert!(forwarded.starts_with("HTTP/1.1 401"), "{forwarded}");
    // Control.
    assert!(show("").await.starts_with("HTTP/1.1 200"));
}

#[tokio::test]
async fn a_waiting_request_ends_with_its_process_and_the_socket_with_the_server() {
    let (mut server, path, dir) = on_both(Wish::shell(Settings {
        hosts: Hosts::Any,
        ..Settings::default()
    }))
    .await;
    server.lock("x", "a").await;
    let mut stream = UnixStream::connect(&path).await.unwrap();
    stream
        .write_all(acquire_and_wait().as_bytes())
        .await
        .unwrap();
    server.waiters(1).await;
    drop(stream);
    server.waiters(0).await;
    let mut stream = UnixStream::connect(&path).await.unwrap();
    stream
        .write_all(acquire_and_wait().as_bytes())
        .await
        .unwrap();
    server.waiters(1).await;
    server.ask_to_stop();
    assert!(rest(&mut stream).await.starts_with("HTTP/1.1 503"));
    server.ended().await.unwrap();
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    assert!(TcpStream::connect(server.addr).await.is_err());
}
