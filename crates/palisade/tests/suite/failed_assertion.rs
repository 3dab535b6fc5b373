//! A server whose own state contradicts itself ends before anything that rests on it is durable or sent. The feature `testing`
//! makes it draw the first token again; handing a lock on meets that (A2).

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Stdio};
use std::thread;

use rustix::process::Signal;
use serde_json::{Value, json};

use crate::common::{Run, palisade, until};

struct Server {
    run: Run,
    address: String,
}

impl Server {
    fn start(data: &Path, spoilt: bool) -> Server {
        let mut child: Child = palisade()
            .args(["serve", "--json", "--listen", "127.0.0.1:0", "--data"])
            .arg(data)
            .args(["--clock", "manual"])
            .envs(spoilt.then_some(("PALISADE_TEST_USED_TOKEN", "1")))
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut line = String::new();
        let stdout = child.stdout.as_mut().unwrap();
        BufReader::new(stdout).read_line(&mut line).unwrap();
        let started: Value = serde_json::from_str(&line).unwrap();
        let url = started["url"].as_str().unwrap();
        Server {
            address: url.trim_start_matches("http://").to_owned(),
            run: Run::keep(child),
        }
    }

    fn show(&self, lock: &str) -> Value {
        ask(&self.address, "GET", lock, "", &Value::Null).unwrap()
    }

    fn post(&self, lock: &str, what: &str, body: &Value) -> Option<Value> {
        ask(&self.address, "POST", lock, what, body)
    }

    /// The holder releases `lock`, for which another client waits. What either of them is answered: success, or nothing.
    fn hand_on(&self, lock: &str, lock_token: &Value) -> [Option<Value>; 2] {
        let address = self.address.clone();
        let path = lock.to_owned();
        let wants = json!({"client_id": "next", "lease_duration_ms": 60_000, "wait_ms": 60_000});
        let waits = thread::spawn(move || ask(&address, "POST", &path, "/acquire", &wants));
        until("the one that waits", || self.show(lock)["waiters"] == 1);
        let released = self.post(lock, "/release", &json!({"lock_token": lock_token}));
        [released, waits.join().unwrap()]
    }
}

/// The body of an answer that says success.
fn ask(address: &str, method: &str, lock: &str, what: &str, body: &Value) -> Option<Value> {
    let mut stream = TcpStream::connect(address).ok()?;
    let body = body.to_string();
    let head = format!(
        "{method} /v1/locks/{lock}{what} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all((head + &body).as_bytes()).ok()?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).ok()?;
    let (head, body) = answer.split_once("\r\n\r\n")?;
    (head.split(' ').nth(1)? == "200").then(|| serde_json::from_str(body).unwrap())
}

#[test]
fn an_impossible_state_ends_the_server_before_anything_is_durable_or_sent() {
    let dir = tempfile::tempdir().unwrap();
    let data = dir.path().join("data");
    let wants = json!({"client_id": "holder", "lease_duration_ms": 60_000});

    // The control: the same steps on a sound machine.
    let sound = Server::start(&data, false);
    let granted = sound.post("control", "/acquire", &wants).unwrap();
    let [released, next] = sound.hand_on("control", &granted["lock_token"]);
    assert!(released.is_some());
    let next = next.unwrap()["fencing_token"].as_u64().unwrap();
    assert!(next > granted["fencing_token"].as_u64().unwrap());
    let granted = sound.post("a", "/acquire", &wants).unwrap();
    sound.run.send(Signal::TERM);
    assert!(sound.run.end().status.success());

    // It serves until an entry meets the contradiction.
    let spoilt = Server::start(&data, true);
    assert_eq!(
        spoilt.show("a")["holder"]["fencing_token"],
        granted["fencing_token"]
    );
    let answers = spoilt.hand_on("a", &granted["lock_token"]);
    assert_eq!(answers, [None, None]);
    let ended = spoilt.run.end();
    assert_eq!(ended.status.code(), Some(125), "{ended:?}");
    let says = String::from_utf8_lossy(&ended.stderr);
    for part in [
        "the server's own state contradicts itself",
        "a token does not rise above the lock's last (A2), at entry 1 of a batch, Release(",
        "so it stopped before anything was written or answered",
        "Start it again",
        "keep a copy of its directory and report this message",
    ] {
        assert!(says.contains(part), "{part:?} is not in: {says}");
    }

    // The durable grant is served, and the release, which was not durable, is not.
    let again = Server::start(&data, false);
    let shown = again.show("a");
    assert_eq!(shown["holder"]["client_id"], "holder", "{shown}");
    assert_eq!(
        shown["holder"]["fencing_token"], granted["fencing_token"],
        "{shown}"
    );
    let [released, next] = again.hand_on("a", &granted["lock_token"]);
    assert!(released.is_some());
    assert!(next.unwrap()["fencing_token"].as_u64() > granted["fencing_token"].as_u64());
}
