//! A gateway process, and requests through it.

use std::io::{BufRead as _, BufReader};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::Duration;

use axum::body::{Body, Bytes};
use http_body_util::BodyExt;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;

pub(crate) fn palisade() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_palisade"));
    command.stdin(Stdio::null()).env_remove("PALISADE_LOG");
    command
}

/// A gateway on free ports, killed with its test.
pub(crate) struct Gateway {
    child: Child,
    pub(crate) url: String,
    pub(crate) admin: String,
    pub(crate) started: Value,
}

/// A gateway's command line without its settings.
pub(crate) fn command(upstream: &str, dir: &Path) -> Command {
    let mut command = palisade();
    command
        .args(["gateway", "--json", "--listen", "127.0.0.1:0"])
        .args(["--admin", "127.0.0.1:0", "--upstream", upstream, "--data"])
        .arg(dir);
    command
}

/// The line that a server prints at its start.
pub(crate) fn started(child: &mut Child) -> Value {
    let mut line = String::new();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    out.read_line(&mut line).unwrap();
    serde_json::from_str(&line).expect("one line of JSON at the start")
}

impl Gateway {
    pub(crate) fn start(upstream: &str, dir: &Path, settings: &[&str]) -> Gateway {
        Gateway::spawn(upstream, dir, settings, Stdio::null())
    }

    /// Starts a gateway that logs into a file.
    pub(crate) fn logging(upstream: &str, dir: &Path, settings: &[&str], log: &Path) -> Gateway {
        let log = std::fs::File::create(log).unwrap();
        Gateway::spawn(upstream, dir, settings, log.into())
    }

    fn spawn(upstream: &str, dir: &Path, settings: &[&str], log: Stdio) -> Gateway {
        let mut command = command(upstream, dir);
        command.args(settings).stdout(Stdio::piped());
        let mut child = command.stderr(log).spawn().unwrap();
        let started = started(&mut child);
        Gateway {
            child,
            url: started["url"].as_str().unwrap().to_owned(),
            admin: started["admin"].as_str().unwrap().to_owned(),
            started,
        }
    }

    /// SIGKILL.
    pub(crate) fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    /// Sends SIGTERM and waits for the end.
    pub(crate) async fn stop(mut self) {
        let pid = rustix::process::Pid::from_raw(self.pid()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::TERM).unwrap();
        until("the end of the gateway", || {
            self.child.try_wait().unwrap().is_some()
        })
        .await;
        assert!(self.child.wait().unwrap().success());
    }

    pub(crate) fn pid(&self) -> i32 {
        self.child.id().try_into().unwrap()
    }

    /// Its peak memory in KiB.
    pub(crate) fn peak_kib(&self) -> u64 {
        let status = std::fs::read_to_string(format!("/proc/{}/status", self.pid())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
        let number = line.unwrap().trim().split(' ').next();
        number.unwrap().parse().unwrap()
    }
}

impl Drop for Gateway {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A client that sends requests with or without a token.
#[derive(Clone)]
pub(crate) struct Caller {
    client: Client<HttpConnector, Body>,
    pub(crate) base: String,
}

#[derive(Debug)]
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: axum::http::HeaderMap,
    pub(crate) body: Bytes,
}

impl Reply {
    pub(crate) fn text(&self) -> String {
        String::from_utf8(self.body.to_vec()).unwrap()
    }

    pub(crate) fn json(&self) -> Value {
        serde_json::from_slice(&self.body).unwrap_or_else(|_| panic!("{self:?}"))
    }

    /// Status and code of an error; checks that it has the form of all errors.
    pub(crate) fn code(&self) -> (u16, String) {
        let body = self.json();
        assert_eq!(body["success"], false, "{body}");
        assert!(!body["error"]["message"].as_str().unwrap().is_empty());
        (
            self.status,
            body["error"]["code"].as_str().unwrap().to_owned(),
        )
    }
}

impl Caller {
    pub(crate) fn of(base: &str) -> Caller {
        Caller {
            client: Client::builder(TokioExecutor::new()).build_http(),
            base: base.to_owned(),
        }
    }

    pub(crate) async fn request(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: Body,
    ) -> axum::http::Response<hyper::body::Incoming> {
        let mut request = axum::http::Request::builder()
            .method(method)
            .uri(format!("{}{path}", self.base));
        for (name, value) in headers {
            request = request.header(*name, *value);
        }
        self.client
            .request(request.body(body).unwrap())
            .await
            .unwrap()
    }

    pub(crate) async fn call(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
        body: impl Into<Body>,
    ) -> Reply {
        let response = self.request(method, path, headers, body.into()).await;
        let (head, body) = response.into_parts();
        Reply {
            status: head.status.as_u16(),
            headers: head.headers,
            body: body.collect().await.unwrap().to_bytes(),
        }
    }

    pub(crate) async fn put(&self, path: &str, token: u64, text: impl ToString) -> Reply {
        let token = token.to_string();
        let headers = [("x-fencing-token", token.as_str())];
        self.call("PUT", path, &headers, text.to_string()).await
    }

    pub(crate) async fn get(&self, path: &str, token: u64) -> Reply {
        let token = token.to_string();
        self.call("GET", path, &[("x-fencing-token", &token)], "")
            .await
    }

    pub(crate) async fn observe(&self, path: &str) -> Reply {
        self.call("GET", path, &[], "").await
    }
}

/// Waits for a condition, with a time limit.
pub(crate) async fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let waiting = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(2)).await; // real time: other processes need it to do what is waited for
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(20), waiting).await;
    waited.unwrap_or_else(|_| panic!("timed out waiting for: {what}"));
}

/// [`until`] with an asynchronous condition.
pub(crate) async fn until_async(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let waiting = async {
        while !holds().await {
            tokio::time::sleep(Duration::from_millis(2)).await; // real time: other processes need it to do what is waited for
        }
    };
    let waited = tokio::time::timeout(Duration::from_secs(60), waiting).await;
    waited.unwrap_or_else(|_| panic!("timed out waiting for: {what}"));
}

pub(crate) async fn connect(url: &str) -> TcpStream {
    TcpStream::connect(url.trim_start_matches("http://"))
        .await
        .unwrap()
}

/// Sends raw bytes, and reads the head of the first answer; the connection stays open.
pub(crate) async fn exchange(url: &str, bytes: &[u8]) -> (String, TcpStream) {
    let mut stream = connect(url).await;
    stream.write_all(bytes).await.unwrap();
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => break,
        }
    }
    (String::from_utf8_lossy(&head).into_owned(), stream)
}

/// A PUT to a path that client libraries reject.
pub(crate) async fn raw_put(url: &str, path: &str, token: Option<u64>, body: &str) -> String {
    let token = token.map_or_else(String::new, |token| format!("X-Fencing-Token: {token}\r\n"));
    let length = body.len();
    let request = format!(
        "PUT {path} HTTP/1.1\r\nHost: x\r\n{token}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    exchange(url, request.as_bytes()).await.0
}

/// The writes that a lenient service has executed.
pub(crate) async fn writes(url: &str) -> Vec<(i64, String)> {
    let log = Caller::of(url).observe("/log").await;
    serde_json::from_slice(&log.body).unwrap()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}
