//! A server on a free port for the network tests, with a clock that moves when told and a log that
//! counts.

pub(crate) mod grpc;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use palisade_core::{AuthorityId, Limits, Machine};
use palisade_pipeline::{
    Answer, Handle, Identity, Log, LogError, PipelineStart, Request, Status, start,
};
use palisade_server::net::{self, ServeError, Settings};
use palisade_server::shell::{self, Hosts, Listen, Listeners};
use rustix::process::{Signal, getpid, kill_process};
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream, UnixStream};
use tokio::sync::{RwLock, RwLockWriteGuard, oneshot};
use tokio::task::JoinHandle;

/// A test that takes longer than this hangs.
const PATIENCE: Duration = Duration::from_secs(30);

/// Waits for something that must happen.
pub(crate) async fn soon<F: Future>(future: F) -> F::Output {
    tokio::time::timeout(PATIENCE, future)
        .await
        .expect("it never happened")
}

/// A SIGHUP reaches all servers of this process.
static HANG_UPS: RwLock<()> = RwLock::const_new(());

/// Sends a SIGHUP, on which servers read their rules again.
pub(crate) async fn hang_up() {
    let _allowed = HANG_UPS.read().await;
    kill_process(getpid(), Signal::HUP).unwrap();
}

/// No test sends a SIGHUP while the returned guard lives.
pub(crate) async fn without_hang_ups() -> RwLockWriteGuard<'static, ()> {
    HANG_UPS.write().await
}

/// A log in memory that counts the changes of the state.
#[derive(Clone, Default)]
pub(crate) struct Counted(Arc<AtomicUsize>);

impl Log for Counted {
    fn has_room(&mut self, _bytes: usize) -> bool {
        true
    }

    fn commit(&mut self, _batch: &[u8]) -> Result<(), LogError> {
        self.0.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

/// Over HTTP/1.1: a request for the lock `x` that waits for a day.
pub(crate) fn acquire_and_wait() -> String {
    let body = r#"{"client_id": "b", "lease_duration_ms": 10000, "wait_ms": 86400000}"#;
    let length = body.len();
    format!(
        "POST /v1/locks/x/acquire HTTP/1.1\r\nHost: t\r\nContent-Length: {length}\r\n\r\n{body}"
    )
}

/// The options to start a server with.
pub(crate) struct Wish {
    pub(crate) settings: Settings,
    pub(crate) limits: Limits,
    pub(crate) manual_clock: bool,
    /// Its earlier state; empty unless given.
    pub(crate) machine: Option<Machine>,
}

impl Default for Wish {
    fn default() -> Wish {
        Wish {
            settings: Settings::default(),
            limits: Limits::DEFAULT,
            manual_clock: true,
            machine: None,
        }
    }
}

impl Wish {
    /// Those bounds and time-outs of its connections.
    pub(crate) fn shell(shell: shell::Settings) -> Wish {
        Wish::net(Settings {
            shell,
            ..Settings::default()
        })
    }

    /// These settings of its network interfaces.
    pub(crate) fn net(settings: Settings) -> Wish {
        Wish {
            settings,
            ..Wish::default()
        }
    }
}

/// Passes connections on to a Unix socket, as long as the test runs.
async fn relay_to(listener: TcpListener, path: PathBuf) {
    while let Ok((mut near, _)) = listener.accept().await {
        let path = path.clone();
        tokio::spawn(async move {
            if let Ok(mut far) = UnixStream::connect(path).await {
                let _ = tokio::io::copy_bidirectional(&mut near, &mut far).await;
            }
        });
    }
}

pub(crate) struct Server {
    pub(crate) addr: SocketAddr,
    pub(crate) handle: Handle,
    log: Counted,
    stop: Option<oneshot::Sender<()>>,
    serving: Option<JoinHandle<Result<(), ServeError>>>,
}

impl Server {
    pub(crate) async fn start() -> Server {
        Server::with(Wish::default()).await
    }

    pub(crate) async fn with(wish: Wish) -> Server {
        Server::at("127.0.0.1:0", wish).await
    }

    /// A server on an address of this machine.
    pub(crate) async fn at(address: &str, wish: Wish) -> Server {
        let listener = TcpListener::bind(address).await.unwrap();
        let addr = listener.local_addr().unwrap();
        Server::on(listener, addr, wish)
    }

    /// A server that listens on a Unix socket only; its address is that of a relay to it, so that everything that speaks
    /// to a server here can speak to this one.
    pub(crate) async fn on_socket(path: &Path, wish: Wish) -> Server {
        let socket = Listen::unix(path.to_str().unwrap()).unwrap();
        let listeners = Listeners::bind(&[socket]).await.unwrap();
        let relay = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let addr = relay.local_addr().unwrap();
        tokio::spawn(relay_to(relay, path.to_owned()));
        Server::on(listeners, addr, wish)
    }

    pub(crate) fn on(
        listeners: impl Into<Listeners> + Send + 'static,
        addr: SocketAddr,
        mut wish: Wish,
    ) -> Server {
        // The host name that these tests' requests use.
        let hosts = &mut wish.settings.shell.hosts;
        if *hosts == Hosts::Named(Vec::new()) {
            *hosts = Hosts::Named(vec!["t".to_owned(), "test".to_owned()]);
        }
        let log = Counted::default();
        let authority = AuthorityId::new("test-authority").unwrap();
        let pipeline = start(PipelineStart {
            identity: Identity {
                authority,
                incarnation: "first".into(),
            },
            machine: wish.machine.unwrap_or_else(|| Machine::new(1)),
            log: Box::new(log.clone()),
            manual_clock: wish.manual_clock,
            limits: wish.limits,
            returning: None,
        })
        .unwrap();
        let (stop, stopped) = oneshot::channel::<()>();
        let handle = pipeline.handle.clone();
        let serving = tokio::spawn(net::serve(
            listeners.into(),
            pipeline.handle,
            None,
            wish.settings,
            Box::pin(async move {
                let _ = stopped.await;
            }),
        ));
        Server {
            addr,
            handle,
            log,
            stop: Some(stop),
            serving: Some(serving),
        }
    }

    /// Asks the server to stop, without waiting.
    pub(crate) fn ask_to_stop(&mut self) {
        let _ = self.stop.take().map(|stop| stop.send(()));
    }

    /// Waits until the server has stopped.
    pub(crate) async fn ended(&mut self) -> Result<(), ServeError> {
        soon(self.serving.take().unwrap()).await.unwrap()
    }

    pub(crate) async fn status(&self) -> Status {
        match soon(self.handle.call(Request::Status)).await {
            Answer::Status(status) => status,
            other => panic!("{other:?}"),
        }
    }

    /// How many batches changed the state.
    pub(crate) async fn changes(&self) -> usize {
        self.status().await;
        self.log.0.load(Ordering::SeqCst)
    }

    /// The public view: counters and holders.
    pub(crate) async fn sight(&self) -> String {
        format!(
            "{:?} {}",
            self.status().await,
            self.get("/v1/locks").await.body
        )
    }

    /// Waits until so many requests stand in queues.
    pub(crate) async fn waiters(&self, count: usize) {
        soon(async {
            while self.status().await.waiters != count {
                tokio::task::yield_now().await;
            }
        })
        .await;
    }

    /// How many requests have arrived, this look included.
    pub(crate) async fn requests(&self) -> u64 {
        let metrics = self.get("/metrics").await.body;
        let mut lines = metrics.lines();
        let count = lines.find_map(|line| line.strip_prefix("palisade_requests_total "));
        count.unwrap().parse().unwrap()
    }

    /// Waits until a request has arrived after the `known` ones, besides the looks of this function.
    pub(crate) async fn arrival(&self, known: u64) {
        soon(async {
            let mut looks = 1;
            while self.requests().await <= known + looks {
                looks += 1;
            }
        })
        .await;
    }

    pub(crate) async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.addr).await.unwrap()
    }

    /// A connection whose request waits for the lock `x`.
    pub(crate) async fn waiting(&self) -> TcpStream {
        let mut stream = self.connect().await;
        let request = acquire_and_wait();
        stream.write_all(request.as_bytes()).await.unwrap();
        stream
    }

    /// Sends bytes on a connection of its own and reads to its end.
    pub(crate) async fn raw(&self, bytes: &[u8]) -> Response {
        exchange(self.addr, bytes).await
    }

    /// One request with the headers given, and a body.
    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        headers: &str,
        body: &str,
    ) -> Response {
        let request = format!(
            "{method} {path} HTTP/1.1\r\nHost: test\r\nConnection: close\r\n{headers}Content-Length: {}\r\n\r\n{body}",
            body.len()
        );
        self.raw(request.as_bytes()).await
    }

    pub(crate) async fn get(&self, path: &str) -> Response {
        self.send("GET", path, "", "").await
    }

    pub(crate) async fn post(&self, path: &str, body: &str) -> Response {
        self.send("POST", path, "Content-Type: application/json\r\n", body)
            .await
    }

    /// A lock for ten seconds of the manual clock: its `lock_token` and its fencing token.
    pub(crate) async fn lock(&self, lock: &str, client: &str) -> (String, u64) {
        let body = format!(r#"{{"client_id": "{client}", "lease_duration_ms": 10000}}"#);
        let granted = self.post(&format!("/v1/locks/{lock}/acquire"), &body).await;
        assert_eq!(granted.status, 200, "{}", granted.body);
        let granted = granted.json();
        let key = granted["lock_token"].as_str().unwrap().to_owned();
        (key, granted["fencing_token"].as_u64().unwrap())
    }

    pub(crate) async fn advance(&self, ms: u64) {
        let moved = self
            .post("/v1/clock/advance", &format!(r#"{{"ms": {ms}}}"#))
            .await;
        assert_eq!(moved.status, 200, "{}", moved.body);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.handle.stop();
    }
}

/// Sends bytes on a connection of its own and reads to its end.
pub(crate) async fn exchange(to: SocketAddr, bytes: &[u8]) -> Response {
    let mut stream = TcpStream::connect(to).await.unwrap();
    // A server that refuses early may close while we still send.
    let _ = stream.write_all(bytes).await;
    let mut answer = Vec::new();
    let _ = soon(stream.read_to_end(&mut answer)).await;
    Response::parse(&answer)
}

/// A response.
#[derive(Debug)]
pub(crate) struct Response {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) body: String,
}

impl Response {
    fn parse(bytes: &[u8]) -> Response {
        let text = String::from_utf8_lossy(bytes).into_owned();
        let (head, body) = text.split_once("\r\n\r\n").unwrap_or((&text, ""));
        let status = head
            .split(' ')
            .nth(1)
            .and_then(|code| code.parse().ok())
            .unwrap_or(0);
        Response {
            status,
            head: head.to_ascii_lowercase(),
            body: body.to_owned(),
        }
    }

    pub(crate) fn header(&self, name: &str) -> Option<&str> {
        self.head
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    pub(crate) fn code(&self) -> String {
        self.json()["error"]["code"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }

    pub(crate) fn message(&self) -> String {
        self.json()["error"]["message"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }
}
