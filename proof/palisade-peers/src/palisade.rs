//! The Palisade server that was built with this program.

use std::net::TcpListener;
use std::ops::Deref;
use std::path::{Path, PathBuf};
use std::time::Duration;

use palisade_testbed::{Instance, Program, answers_with};

use crate::lane::Error;
use crate::measure::now;

/// How long a node may take to get everything that the others have.
const CATCH_UP: Duration = Duration::from_secs(120);

const READY: &[u8] = b"GET /readyz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";
const HEALTH: &[u8] = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n";

/// A running server; dropping it ends it.
pub(crate) struct Server(Program);

impl Server {
    pub(crate) fn start() -> Result<Server, Error> {
        let program = program()?;
        let arguments = |dir: &Path, port| {
            let (data, listen) = (dir.join("data"), format!("127.0.0.1:{port}"));
            let data = data.display().to_string();
            let socket = socket(dir);
            let listen = ["--listen", &listen, "--listen", &socket];
            let words = ["serve", "--data", &data].into_iter().chain(listen);
            words.map(str::to_owned).collect()
        };
        let ready = |port| answers_with(port, HEALTH, "200");
        Ok(Server(Program::start(
            "palisade", &program, arguments, ready,
        )))
    }

    pub(crate) fn url(&self) -> String {
        format!("http://{}", self.address())
    }

    pub(crate) fn socket_url(&self) -> String {
        socket(self.dir())
    }
}

/// The Unix socket of a server with this folder.
fn socket(dir: &Path) -> String {
    format!("unix:{}", dir.join("socket").display())
}

/// Three servers that are one cluster; dropping it ends them.
pub(crate) struct Cluster {
    nodes: Vec<Program>,
    leader: usize,
}

impl Cluster {
    /// Starts the nodes, and waits for a leader.
    pub(crate) fn start() -> Result<Cluster, Error> {
        Cluster::with_timers("region")
    }

    /// The same, with these `--timers`.
    pub(crate) fn with_timers(timers: &str) -> Result<Cluster, Error> {
        let program = program()?;
        // Bound all at once, so that they differ.
        let bound = [(); 3].map(|()| TcpListener::bind("127.0.0.1:0"));
        let mut peers = Vec::new();
        for listener in bound {
            peers.push(listener?.local_addr()?.to_string());
        }
        let list = peers.join(",");
        let node = |peer: String| {
            let (list, program) = (list.clone(), program.clone());
            let timers = timers.to_owned();
            let into = ["--cluster".to_owned(), list, "--timers".to_owned(), timers];
            move || node(&program, peer, into)
        };
        let starting: Vec<_> = peers
            .into_iter()
            .map(|peer| std::thread::spawn(node(peer)))
            .collect();
        let mut nodes = Vec::new();
        for thread in starting {
            nodes.push(thread.join().map_err(|_| "a node did not start")?);
        }
        let leads = |node: &Program| answers_with(node.port(), READY, "leading");
        let leader = nodes.iter().position(leads).ok_or("no node leads")?;
        Ok(Cluster { nodes, leader })
    }

    /// The addresses of all nodes, the leader first.
    pub(crate) fn url(&self) -> String {
        let others = (0..self.nodes.len()).filter(|at| *at != self.leader);
        let order = std::iter::once(self.leader).chain(others);
        let urls: Vec<String> = order
            .map(|at| format!("http://{}", self.nodes[at].address()))
            .collect();
        urls.join(",")
    }

    /// Starts one more node, which asks to be added; it is there when it knows the leader.
    pub(crate) fn add(&mut self) -> Result<(), Error> {
        let peer = TcpListener::bind("127.0.0.1:0")?.local_addr()?.to_string();
        let join = ["--join".to_owned(), self.url()];
        self.nodes.push(node(&program()?, peer, join));
        Ok(())
    }

    /// The JSON output of a `cluster` command.
    pub(crate) fn command(&self, words: &[&str]) -> Result<serde_json::Value, Error> {
        let output = std::process::Command::new(program()?)
            .arg("cluster")
            .args(words)
            .arg("--json")
            .env("PALISADE_AUTHORITY", self.url())
            .output()?;
        if output.status.success() {
            Ok(serde_json::from_slice(&output.stdout)?)
        } else {
            Err(String::from_utf8_lossy(&output.stderr).into())
        }
    }

    /// The node that led when they were started, or that was killed last.
    pub(crate) fn leader(&self) -> &Instance {
        &self.nodes[self.leader]
    }

    /// Kills the node that leads now, and returns when its process is gone.
    pub(crate) fn kill_leader(&mut self) -> Result<(), Error> {
        let leads = |node: &Program| answers_with(node.port(), READY, "leading");
        self.leader = self.nodes.iter().position(leads).ok_or("no node leads")?;
        self.nodes[self.leader].kill();
        Ok(())
    }

    /// Starts the node that was killed, and waits until it knows the leader and lacks nothing.
    #[expect(clippy::disallowed_methods, reason = "another process has to catch up")]
    pub(crate) fn start_again(&self) -> Result<(), Error> {
        self.nodes[self.leader].start_again();
        let give_up = now() + u64::try_from(CATCH_UP.as_nanos())?;
        loop {
            let view = self.command(&["status"])?;
            let mut members = view["members"].as_array().into_iter().flatten();
            if view["role"] == "leader" && members.all(|member| member["matched"] == view["last"]) {
                return Ok(());
            }
            if now() > give_up {
                return Err(format!("a node has not caught up: {view}").into());
            }
            std::thread::sleep(Duration::from_millis(10)); // real time: the other process needs to go on
        }
    }
}

/// Starts a node with flags for entering a cluster, and waits until it knows the leader.
fn node<const N: usize>(program: &Path, peer: String, into: [String; N]) -> Program {
    let arguments = move |dir: &Path, port| {
        let (data, listen) = (dir.join("data"), format!("127.0.0.1:{port}"));
        let data = data.display().to_string();
        let of = [
            "serve",
            "--listen",
            &listen,
            "--data",
            &data,
            "--peer-listen",
            &peer,
        ];
        let of = of.iter().map(|word| (*word).to_owned());
        of.chain(into.clone()).collect()
    };
    let ready = |port| answers_with(port, READY, "200");
    Program::start("palisade", program, arguments, ready)
}

fn program() -> Result<PathBuf, Error> {
    let program = std::env::current_exe()?.with_file_name("palisade");
    if !program.exists() {
        return Err("the server is not built: cargo build --release".into());
    }
    Ok(program)
}

impl Deref for Server {
    type Target = Instance;
    fn deref(&self) -> &Instance {
        &self.0
    }
}
