//! A cluster of real processes on loopback.

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::net::TcpStream;
use std::path::PathBuf;
use std::process::{Child, Command, Output, Stdio};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::time::Duration;

use rustix::process::Signal;
use serde_json::Value;

use super::{json, now, palisade, palisade_in, pause, send, until, until_in};

/// The longest wait for an election, on a machine that does much else.
pub(crate) const ELECTION: Duration = Duration::from_secs(60);

/// Nodes, each with a directory of its own.
pub(crate) struct Cluster {
    pub(crate) nodes: Vec<Node>,
    pub(crate) dir: tempfile::TempDir,
    /// The IP address of all nodes.
    pub(crate) host: String,
    pub(crate) list: String,
}

pub(crate) struct Node {
    pub(crate) data: PathBuf,
    pub(crate) listen: String,
    pub(crate) peer: String,
    /// It is of the next build, in tests of versions.
    pub(crate) next: bool,
    /// The network namespace that it runs in, if it is not the tests' own.
    pub(crate) namespace: Option<String>,
    child: Option<Child>,
    log: PathBuf,
}

/// A loopback address that no other cluster has: nobody else chooses ports there, also not while a node is down.
fn host() -> String {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [.., high, low] = std::process::id().to_be_bytes();
    let own = NEXT.fetch_add(1, Ordering::Relaxed);
    format!("127.{}.{low}.{own}", high | 0x80)
}

impl Cluster {
    /// A cluster that was formed, with a leader that every node knows.
    pub(crate) fn of(count: usize) -> Cluster {
        let mut cluster = Cluster::planned(count);
        for at in 0..count {
            cluster.start(at);
        }
        cluster.until_ready();
        cluster
    }

    /// Nodes that are not started yet.
    pub(crate) fn planned(count: usize) -> Cluster {
        let dir = tempfile::tempdir().unwrap();
        let mut cluster = Cluster {
            nodes: Vec::new(),
            dir,
            host: host(),
            list: String::new(),
        };
        for _ in 0..count {
            cluster.plan();
        }
        let peers: Vec<&str> = cluster.nodes.iter().map(|node| &*node.peer).collect();
        cluster.list = peers.join(",");
        cluster
    }

    /// One more node, not started yet.
    pub(crate) fn plan(&mut self) -> usize {
        let at = self.nodes.len();
        let address = |port| format!("{}:{}", self.host, port + 2 * at);
        self.nodes.push(Node {
            data: self.dir.path().join(format!("node-{at}")),
            listen: address(7420),
            peer: address(7421),
            next: false,
            namespace: None,
            child: None,
            log: self.dir.path().join(format!("log-{at}")),
        });
        at
    }

    pub(crate) fn start(&mut self, at: usize) {
        let list = self.list.clone();
        self.nodes[at].start(&["--cluster", &list]);
    }

    /// The addresses of all nodes, as a client takes them.
    pub(crate) fn urls(&self) -> String {
        let urls: Vec<String> = self.nodes.iter().map(Node::url).collect();
        urls.join(",")
    }

    /// Waits until every node that runs leads or knows a leader, and gives the leader.
    pub(crate) fn until_ready(&self) -> usize {
        let give_up = now().after(ELECTION.into());
        loop {
            let mut running = self.nodes.iter().filter(|node| node.child.is_some());
            let is_ready =
                |node: &Node| node.get("/readyz").is_some_and(|(status, _)| status == 200);
            if running.all(is_ready)
                && let Some(leader) = self.leader()
            {
                return leader;
            }
            assert!(
                now() < give_up,
                "no leader that all nodes know:\n{}",
                self.logs()
            );
            pause();
        }
    }

    /// The last log lines of every node, for the message of a failed test.
    fn logs(&self) -> String {
        const LINES: usize = 40;
        let last = |node: &Node| {
            let log = node.log();
            let lines: Vec<&str> = log.lines().collect();
            let last = lines[lines.len().saturating_sub(LINES)..].join("\n");
            format!(
                "{} at {}: {:?}\n{last}",
                node.url(),
                node.peer,
                node.get("/readyz")
            )
        };
        self.nodes.iter().map(last).collect::<Vec<_>>().join("\n\n")
    }

    /// The node that leads.
    pub(crate) fn leader(&self) -> Option<usize> {
        self.nodes.iter().position(|node| {
            let ready = node.get("/readyz");
            ready.is_some_and(|(_, body)| body["status"] == "leading")
        })
    }

    pub(crate) fn palisade(&self, arguments: &[&str]) -> Command {
        let mut command = palisade();
        command
            .args(arguments)
            .env("PALISADE_AUTHORITY", self.urls())
            .current_dir(self.dir.path());
        command
    }

    pub(crate) fn output(&self, arguments: &[&str]) -> Output {
        self.palisade(arguments).output().unwrap()
    }

    /// The JSON of a command that must succeed.
    pub(crate) fn json(&self, arguments: &[&str]) -> Value {
        let output = self.output(&[arguments, &["--json"]].concat());
        assert!(
            output.status.success(),
            "{arguments:?}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
        json(&output.stdout)
    }

    /// Acquires a lock through one node, and gives its token.
    pub(crate) fn token(&self, at: usize, lock: &str) -> u64 {
        static NEXT: AtomicU64 = AtomicU64::new(1);
        let id = NEXT.fetch_add(1, Ordering::Relaxed);
        let body = format!(
            r#"{{"client_id": "c", "lease_duration_ms": 60000, "request_id": "{id:032x}"}}"#
        );
        let path = format!("/v1/locks/{lock}/acquire");
        let (status, reply) = self.nodes[at].post_settled(&path, &body);
        assert_eq!(status, 200, "{reply}");
        reply["fencing_token"].as_u64().unwrap()
    }
}

impl Node {
    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.listen)
    }

    /// Starts its process and does not wait for it to be a member.
    pub(crate) fn start(&mut self, more: &[&str]) {
        let log = std::fs::File::options()
            .create(true)
            .append(true)
            .open(&self.log)
            .unwrap();
        let mut command = self.namespace.as_deref().map_or_else(palisade, palisade_in);
        // Without a flag it is a single server, which has no peers.
        let peer = ["--peer-listen", &*self.peer];
        let peer = if more.is_empty() { &[] } else { &peer[..] };
        let child = command
            .args(["serve", "--json", "--listen", &self.listen, "--data"])
            .arg(&self.data)
            .args(peer)
            .args(more)
            .envs(self.next.then_some(("PALISADE_TEST_NEXT_VERSION", "1")))
            .stdout(Stdio::piped())
            .stderr(log)
            .spawn()
            .unwrap();
        self.child = Some(child);
    }

    /// The message of a node that has become a member.
    pub(crate) fn started(&mut self) -> Value {
        let mut line = String::new();
        let out = self.child.as_mut().unwrap().stdout.take().unwrap();
        BufReader::new(out).read_line(&mut line).unwrap();
        serde_json::from_str(&line).unwrap_or_else(|_| panic!("{}", self.log()))
    }

    /// Its standard error so far.
    pub(crate) fn log(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    pub(crate) fn send(&self, signal: Signal) {
        let pid = self.child.as_ref().unwrap().id();
        send(pid.try_into().unwrap(), signal);
    }

    pub(crate) fn kill(&mut self) {
        let mut child = self.child.take().unwrap();
        child.kill().unwrap();
        child.wait().unwrap();
    }

    /// Waits for its end, and gives its exit status.
    pub(crate) fn end(&mut self) -> Option<i32> {
        let mut child = self.child.take().unwrap();
        until("the end of a node", || child.try_wait().unwrap().is_some());
        child.wait().unwrap().code()
    }

    pub(crate) fn get(&self, path: &str) -> Option<(u16, Value)> {
        self.ask(&format!("GET {path} HTTP/1.1\r\n"), "")
    }

    pub(crate) fn post(&self, path: &str, body: &str) -> Option<(u16, Value)> {
        self.ask(
            &format!("POST {path} HTTP/1.1\r\nContent-Length: {}\r\n", body.len()),
            body,
        )
    }

    /// Posts a request that can be repeated until it is decided, as the protocol says: the leader may change at any time
    /// on a machine that does much else.
    pub(crate) fn post_settled(&self, path: &str, body: &str) -> (u16, Value) {
        let mut settled = None;
        until_in(ELECTION, "an answer of the leader", || {
            settled = self.post(path, body);
            let code = settled.as_ref().map(|(_, reply)| &reply["error"]["code"]);
            code.is_some_and(|code| code != "not_leader" && code != "unknown_outcome")
        });
        settled.unwrap()
    }

    /// A page that is not JSON.
    pub(crate) fn text(&self, path: &str) -> String {
        let mut stream = self
            .send_request(&format!("GET {path} HTTP/1.1\r\n"), "")
            .unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer
    }

    /// The data of the first events of a stream.
    pub(crate) fn events(&self, path: &str, count: usize) -> Vec<String> {
        let stream = self
            .send_request(&format!("GET {path} HTTP/1.1\r\n"), "")
            .unwrap();
        let lines = BufReader::new(stream).lines().map(Result::unwrap);
        let data = lines.filter_map(|line| line.strip_prefix("data:").map(str::to_owned));
        data.take(count).collect()
    }

    /// Sends a request, whose answer the caller may read.
    pub(crate) fn send_request(&self, head: &str, body: &str) -> Option<TcpStream> {
        let mut stream = TcpStream::connect(&self.listen).ok()?;
        stream
            .set_read_timeout(Some(Duration::from_secs(10)))
            .unwrap();
        let request = format!(
            "{head}Host: {}\r\nConnection: close\r\n\r\n{body}",
            self.listen
        );
        stream.write_all(request.as_bytes()).ok()?;
        Some(stream)
    }

    /// `None` if there was no answer.
    fn ask(&self, head: &str, body: &str) -> Option<(u16, Value)> {
        let mut stream = self.send_request(head, body)?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).ok()?;
        let status = answer.get(9..12)?.parse().ok()?;
        let body = answer.split_once("\r\n\r\n")?.1;
        Some((status, serde_json::from_str(body).unwrap_or_default()))
    }
}

impl Drop for Cluster {
    /// A failed test shows what its nodes said.
    fn drop(&mut self) {
        if std::thread::panicking() {
            eprintln!("{}", self.logs());
        }
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        if let Some(child) = &mut self.child {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}
