//! Idle connections cannot take the descriptors that the log needs.

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::net::SocketAddr;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use http_body_util::{BodyExt as _, Full};
use hyper::Request;
use hyper::body::Bytes;
use hyper::client::conn::http1::SendRequest;
use hyper_util::rt::TokioIo;
use serde_json::Value;
use tokio::net::TcpSocket;

/// A test that takes longer than this hangs.
const PATIENCE: Duration = Duration::from_secs(300);

/// A connection that takes longer than this counts as not served.
const WAIT: Duration = Duration::from_secs(20);

const GRANTS: usize = 30_000;

/// A process with a limit of 256 open files.
struct Limited {
    child: Child,
    address: SocketAddr,
}

impl Limited {
    fn start(arguments: &[&str], dir: &Path, log: &Path) -> Limited {
        let mut command = Command::new("sh");
        command
            .args(["-c", "ulimit -n 256; exec \"$0\" \"$@\""])
            .arg(env!("CARGO_BIN_EXE_palisade"))
            .args(arguments)
            .args(["--json", "--listen", "127.0.0.1:0", "--data"])
            .arg(dir)
            .env_remove("PALISADE_LOG")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(fs::File::create(log).unwrap());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        out.read_line(&mut line).unwrap();
        let started: Value = serde_json::from_str(&line).expect("one line of JSON at the start");
        let address = started["listening"].as_str().unwrap().parse().unwrap();
        Limited { child, address }
    }

    /// An idle connection from one of this machine's addresses; `None` if it was refused.
    async fn connect(&self, from: u8) -> Option<SendRequest<Full<Bytes>>> {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(([127, 0, 0, from], 0).into()).unwrap();
        let stream = socket.connect(self.address).await.ok()?;
        let (mut sender, connection) = hyper::client::conn::http1::handshake(TokioIo::new(stream))
            .await
            .ok()?;
        tokio::spawn(connection);
        let head = Request::get("/healthz").header("host", "localhost");
        let answer = sender.send_request(head.body(Full::default()).unwrap());
        answer.await.ok()?.into_body().collect().await.ok()?;
        Some(sender)
    }

    /// Opens idle connections from three addresses until no more are accepted.
    async fn fill(&self) -> Vec<SendRequest<Full<Bytes>>> {
        let mut kept = Vec::new();
        for from in 1..=3 {
            // A server without descriptors does not refuse: it leaves new connections in the backlog.
            while let Ok(Some(connection)) = tokio::time::timeout(WAIT, self.connect(from)).await {
                kept.push(connection);
                assert!(kept.len() < 256, "more connections than files");
            }
        }
        kept
    }

    fn lives(&mut self) -> bool {
        self.child.try_wait().unwrap().is_none()
    }
}

impl Drop for Limited {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Posts a body and returns the status; `None` if the connection broke.
async fn post(connection: &mut SendRequest<Full<Bytes>>, path: &str, body: String) -> Option<u16> {
    connection.ready().await.ok()?;
    let request = Request::post(path)
        .header("host", "localhost")
        .header("content-type", "application/json")
        .body(Full::from(body))
        .unwrap();
    let answer = connection.send_request(request).await.ok()?;
    let status = answer.status().as_u16();
    answer.into_body().collect().await.ok()?;
    Some(status)
}

fn log_files(data: &Path, ending: &str) -> usize {
    let names = fs::read_dir(data).unwrap();
    names
        .filter(|entry| {
            let name = entry.as_ref().unwrap().file_name();
            name.to_string_lossy().ends_with(ending)
        })
        .count()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_server_full_of_idle_connections_still_creates_segments_and_a_snapshot() {
    let dir = tempfile::tempdir().unwrap();
    let (data, log) = (dir.path().join("data"), dir.path().join("log"));
    let mut server = Limited::start(&["serve"], &data, &log);
    let kept = server.fill().await;
    let count = kept.len();
    assert!((64..192).contains(&count), "{count} connections");
    let said = fs::read_to_string(&log).unwrap();
    assert!(
        said.contains("10000 connections do not fit: this process may open 256 files"),
        "{said}"
    );
    assert!(said.contains("ulimit -n "), "{said}");

    // Grants of 0.7 KB each fill the first two segments, of 1 and 16 MiB; an idle server then makes a snapshot.
    let each = GRANTS / count;
    let work = kept.into_iter().enumerate().map(|(worker, mut connection)| {
        tokio::spawn(async move {
            let client = "c".repeat(200);
            let metadata = "m".repeat(256);
            for number in 0..each {
                let lock = format!("{}-{worker}-{number}", "l".repeat(200));
                let body = format!(
                    r#"{{"client_id": "{client}", "lease_duration_ms": 86400000, "metadata": "{metadata}"}}"#
                );
                let path = format!("/v1/locks/{lock}/acquire");
                let granted = post(&mut connection, &path, body).await;
                assert_eq!(granted, Some(200), "after {number} grants");
            }
        })
    });
    let work: Vec<_> = work.collect();
    for worker in work {
        let done = tokio::time::timeout(PATIENCE, worker).await;
        done.expect("it takes too long").unwrap();
    }
    assert!(server.lives());
    let snapshot = async {
        while log_files(&data, ".snap") == 0 {
            tokio::time::sleep(Duration::from_millis(50)).await; // real time: another process makes it
        }
    };
    let made = tokio::time::timeout(PATIENCE, snapshot).await;
    made.expect("no snapshot was made");
    assert!(server.lives());

    let backup = Command::new(env!("CARGO_BIN_EXE_palisade"))
        .arg("backup")
        .arg(dir.path().join("backup"))
        .arg("--data")
        .arg(&data)
        .output()
        .unwrap();
    assert!(backup.status.success(), "{backup:?}");
    let said = fs::read_to_string(&log).unwrap();
    assert!(!said.contains("open files"), "{said}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_full_of_idle_connections_still_creates_segments() {
    let dir = tempfile::tempdir().unwrap();
    let (data, log) = (dir.path().join("data"), dir.path().join("log"));
    let mut store = Limited::start(&["store"], &data, &log);
    let mut kept = store.fill().await;
    let count = kept.len();
    assert!((64..192).contains(&count), "{count} connections");
    let content = "x".repeat(512 << 10);
    for number in 1..=48 {
        let body = format!(
            r#"{{"resource_id": "r", "fencing_token": {number}, "write_payload": {{"file_path": "/f", "mutation_type": "PUT", "bytes": "{content}"}}}}"#
        );
        let connection = kept.last_mut().unwrap();
        let written = post(connection, "/v1/storage/write", body).await;
        assert_eq!(written, Some(200), "write {number}");
    }
    assert!(store.lives());
    let segments = log_files(&data, ".seg") + log_files(&data, ".snap");
    assert!(segments > 2, "no new segment was needed");
}

#[test]
fn without_room_for_connections_a_server_refuses_to_start() {
    let dir = tempfile::tempdir().unwrap();
    let started = Command::new("sh")
        .args(["-c", "ulimit -n 60; exec timeout 60 \"$0\" \"$@\""])
        .arg(env!("CARGO_BIN_EXE_palisade"))
        .args(["serve", "--listen", "127.0.0.1:0", "--data"])
        .arg(dir.path().join("data"))
        .stdin(Stdio::null())
        .output()
        .unwrap();
    assert!(!started.status.success());
    let said = String::from_utf8_lossy(&started.stderr).into_owned();
    assert!(
        said.contains("no room for connections") && said.contains("ulimit -n"),
        "{said}"
    );
}
