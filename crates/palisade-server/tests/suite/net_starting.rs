//! A server that takes its time to start: its ports answer meanwhile.
//!
//! real time: these tests also pass beside busy loops (`cargo xtask test --loaded`).

use std::net::SocketAddr;

use palisade_proto::frames;
use palisade_server::net;
use palisade_server::shell::{Listen, Listeners, Settings};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::net_support::{Response, Server, Wish, exchange, soon};

const WHY: &str = "this server is starting: it waits";

/// A server that has begun to start, and finishes on request.
struct Starting {
    addr: SocketAddr,
    start: oneshot::Sender<()>,
    waiting: JoinHandle<Listeners>,
}

impl Starting {
    async fn new() -> Starting {
        let port = Listen::Tcp(SocketAddr::from(([127, 0, 0, 1], 0)));
        let listeners = Listeners::bind(&[port]).await.unwrap();
        let addr = listeners.addresses().unwrap()[0].tcp().unwrap();
        let (start, begun) = oneshot::channel();
        let waiting = tokio::spawn(async move {
            let starting = net::while_starting(&listeners, &Settings::default(), WHY, begun).await;
            starting.unwrap().unwrap();
            listeners
        });
        Starting {
            addr,
            start,
            waiting,
        }
    }

    async fn get(&self, path: &str) -> Response {
        let request =
            format!("GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n");
        exchange(self.addr, request.as_bytes()).await
    }

    async fn started(self) -> Server {
        self.start.send(()).unwrap();
        let listeners = soon(self.waiting).await.unwrap();
        Server::on(listeners, self.addr, Wish::default())
    }
}

#[tokio::test]
async fn a_server_that_starts_lives_and_says_why_it_does_not_serve() {
    let starting = Starting::new().await;
    let health = starting.get("/healthz").await;
    assert_eq!(
        (health.status, &health.json()["status"]),
        (200, &"starting".into())
    );
    for path in ["/readyz", "/v1/locks/a", "/"] {
        let refused = starting.get(path).await;
        assert_eq!(
            (refused.status, &*refused.code()),
            (503, "unavailable"),
            "{path}"
        );
        assert_eq!(refused.message(), WHY);
    }
    // A plain session gets an error in its own format.
    let mut session = TcpStream::connect(starting.addr).await.unwrap();
    session.write_all(&frames::PREFACE).await.unwrap();
    let mut said = Vec::new();
    soon(session.read_to_end(&mut said)).await.unwrap();
    let said = String::from_utf8_lossy(&said);
    assert!(said.contains(WHY), "{said}");
    let server = starting.started().await;
    assert_eq!(server.get("/readyz").await.status, 200);
    assert_eq!(server.lock("a", "c").await.1, 1);
}

/// Otherwise every restart would refuse requests that can wait for it.
#[tokio::test]
async fn a_short_start_refuses_nobody() {
    let starting = Starting::new().await;
    let mut early = TcpStream::connect(starting.addr).await.unwrap();
    let request = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
    early.write_all(request).await.unwrap();
    let early = tokio::spawn(async move {
        let mut answer = String::new();
        early.read_to_string(&mut answer).await.map(|_| answer)
    });
    // The control: a server that has started answers several requests meanwhile.
    let beside = Server::start().await;
    for _ in 0..5 {
        assert_eq!(beside.get("/readyz").await.status, 200);
    }
    assert!(!early.is_finished());
    let _server = starting.started().await;
    let answer = soon(early).await.unwrap().unwrap();
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}
