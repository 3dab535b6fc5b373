//! A cluster of `palisade serve` processes as the authority of a world, and the observations of it.
//!
//! ```text
//!   workers (client library, all addresses) ──┐
//!   observers (plain HTTP, any node) ─────────┼──► node 0 ◄─relays─► node 1 ◄─relays─► node 2
//!   history ──► the history checker           │         SIGKILL · SIGSTOP · SIGTERM · cuts · transfers
//! ```

mod http;
mod links;
mod observer;
mod queue;
mod shared;
mod wish;

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use palisade_client::clock::{BootClock, Clock as _};
use rustix::process::Signal;

use super::lock::lock;
use super::process::{Line, Process};
use super::server::{Victim, last_words};
use super::stop::Stop;
use links::Links;
pub(super) use links::Way;
pub(super) use observer::Observers;
pub(super) use shared::Observed;
use shared::Watched;

/// How long after its healing a cluster may take until every node serves, on a machine that does much else.
const HEALED: Duration = Duration::from_secs(60);
/// How long an answer to a question about the cluster may take.
const ANSWER: Duration = Duration::from_secs(2);
const POLL: Duration = Duration::from_millis(20);

/// The nodes, the relays between them, and the observers.
pub(super) struct Cluster {
    pub(super) nodes: Vec<Node>,
    pub(super) links: Links,
    observers: Mutex<Option<Observers>>,
    watch: Arc<Watched>,
}

/// One node.
pub(super) struct Node {
    address: SocketAddr,
    line: Line,
    log: PathBuf,
    process: Mutex<Option<Process>>,
}

impl Cluster {
    /// Starts the nodes, and waits until all serve. `joined`: as one cluster; otherwise each on its own, which is wrong.
    ///
    /// # Errors A process that does not start.
    pub(super) fn start(
        program: &Path,
        folder: &Path,
        count: usize,
        seed: u64,
        joined: bool,
    ) -> Result<Cluster, String> {
        let free = free_addresses(2 * count)?;
        let (addresses, peers) = free.split_at(count);
        let links = Links::to(peers)?;
        let list: Vec<String> = links.addresses.iter().map(ToString::to_string).collect();
        let node = |at: usize| {
            let data = folder.join(format!("node-{at}"));
            let mut words = vec![program.display().to_string()];
            words.extend(["serve", "--json", "--listen"].map(str::to_owned));
            words.extend([
                addresses[at].to_string(),
                "--data".to_owned(),
                data.display().to_string(),
            ]);
            if joined {
                words.extend(["--peer-listen".to_owned(), peers[at].to_string()]);
                words.extend(["--peer-address".to_owned(), list[at].clone()]);
                words.extend(["--cluster".to_owned(), list.join(",")]);
            }
            Node {
                address: addresses[at],
                line: Line {
                    words,
                    ..Line::default()
                },
                log: folder.join(format!("node-{at}.log")),
                process: Mutex::default(),
            }
        };
        let watch = Arc::new(Watched {
            addresses: addresses.to_vec(),
            silent: AtomicU64::new(0),
            found: Mutex::default(),
            healed_ms: Mutex::default(),
        });
        let cluster = Cluster {
            nodes: (0..count).map(node).collect(),
            links,
            observers: Mutex::default(),
            watch: Arc::clone(&watch),
        };
        (0..count).try_for_each(|at| cluster.start_node(at))?;
        if !cluster.until(|| cluster.all_serve()) {
            return Err(format!(
                "the nodes form no cluster: {}",
                last_words(&cluster.nodes[0].log)
            ));
        }
        *lock(&cluster.observers) = Some(Observers::start(&watch, seed));
        Ok(cluster)
    }

    /// Starts a node's process and does not wait.
    pub(super) fn start_node(&self, at: usize) -> Result<(), String> {
        let node = &self.nodes[at];
        let process = Process::start(&node.line, &node.log, |_| {});
        let process = process.map_err(|error| format!("node {at}: {error}"))?;
        self.links.set_process(at, Some(process.id()));
        *lock(&node.process) = Some(process);
        Ok(())
    }

    /// SIGKILL.
    pub(super) fn kill_node(&self, at: usize) {
        self.links.set_process(at, None);
        lock(&self.nodes[at].process).take();
    }

    /// SIGTERM, and waits for the end.
    pub(super) fn stop_node(&self, at: usize) {
        self.send(at, Signal::TERM);
        let over = || {
            lock(&self.nodes[at].process)
                .as_mut()
                .is_none_or(Process::is_over)
        };
        if !self.until(over) {
            self.found(format!(
                "node {at} did not end within {HEALED:?} of SIGTERM"
            ));
        }
        self.kill_node(at);
    }

    pub(super) fn send(&self, at: usize, signal: Signal) {
        if signal == Signal::STOP {
            self.silent();
        }
        lock(&self.nodes[at].process)
            .iter()
            .for_each(|process| process.send(signal));
    }

    /// Counts a fault after which a connection says nothing.
    pub(super) fn silent(&self) {
        self.watch.silent.fetch_add(1, Ordering::SeqCst);
    }

    /// The node that leads, if one says so; of several, the one that says so first.
    pub(super) fn leader(&self) -> Option<usize> {
        (0..self.nodes.len()).find(|at| self.serves(*at) == Some(true))
    }

    /// Asks the leader to hand over to any node.
    pub(super) fn transfer(&self, leader: usize) {
        let address = self.nodes[leader].address;
        let _ = http::ask(address, "/v1/cluster/transfer", Some("{}"), HEALED);
    }

    /// Whether a node leads; nothing if it does not serve.
    fn serves(&self, at: usize) -> Option<bool> {
        let reply = http::ask(self.nodes[at].address, "/readyz", None, ANSWER)?;
        (reply.status == 200).then(|| reply.body["status"] == "leading")
    }

    fn all_serve(&self) -> bool {
        (0..self.nodes.len()).all(|at| self.serves(at).is_some())
    }

    /// Waits until every node serves after a fault, and keeps how long that took.
    pub(super) fn until_healed(&self) {
        let begun = BootClock.now();
        if self.until(|| self.all_serve() && self.leader().is_some()) {
            let took = BootClock.now().since(begun).as_nanos() as f64 / 1e6;
            lock(&self.watch.healed_ms).push(took);
        } else {
            let which = (0..self.nodes.len()).filter(|at| self.serves(*at).is_none());
            let which: Vec<usize> = which.collect();
            self.found(format!(
                "nodes {which:?} did not serve within {HEALED:?} of the last fault"
            ));
        }
    }

    fn until(&self, holds: impl Fn() -> bool) -> bool {
        let begun = BootClock.now();
        let never = Stop::default();
        while !holds() {
            if BootClock.now().since(begun).to_duration() > HEALED {
                return false;
            }
            never.comes_within(POLL);
        }
        true
    }

    fn found(&self, what: String) {
        lock(&self.watch.found).push(what);
    }

    /// Heals everything, asks each node for a grant, ends the observers and checks their history.
    pub(super) fn finish(&self) -> Observed {
        self.links.heal();
        self.until_healed();
        for (at, node) in self.nodes.iter().enumerate() {
            let path = format!("/v1/locks/last-{at}/acquire");
            let body = r#"{"client_id": "last", "lease_duration_ms": 1000}"#;
            let granted = || {
                let reply = http::ask(node.address, &path, Some(body), ANSWER);
                reply.is_some_and(|reply| reply.status == 200)
            };
            if !self.until(granted) {
                self.found(format!(
                    "node {at} granted nothing within {HEALED:?} of the last healing"
                ));
            }
        }
        let observers = lock(&self.observers).take();
        let mut observed = observers.map(Observers::end).unwrap_or_default();
        let healed = lock(&self.watch.healed_ms);
        observed.healings = healed.len();
        observed.slowest_healing_ms = healed.iter().copied().fold(0.0, f64::max);
        observed.violations.append(&mut lock(&self.watch.found));
        observed
    }
}

impl Victim for Cluster {
    fn url(&self) -> String {
        let urls: Vec<String> = self
            .nodes
            .iter()
            .map(|node| format!("http://{}", node.address))
            .collect();
        urls.join(",")
    }

    fn pause(&self) {
        (0..self.nodes.len()).for_each(|at| self.send(at, Signal::STOP));
    }

    fn resume(&self) {
        (0..self.nodes.len()).for_each(|at| self.send(at, Signal::CONT));
    }

    fn kill(&self) {
        (0..self.nodes.len()).for_each(|at| self.kill_node(at));
    }

    fn lives(&self) -> bool {
        self.nodes.iter().any(|node| {
            let mut process = lock(&node.process);
            process.as_mut().is_some_and(|process| !process.is_over())
        })
    }

    fn start_again(&self) -> Result<(), String> {
        self.kill();
        (0..self.nodes.len()).try_for_each(|at| self.start_node(at))?;
        self.until_healed();
        Ok(())
    }

    fn cluster(&self) -> Option<&Cluster> {
        Some(self)
    }
}

/// Addresses whose ports nobody else takes before the nodes do: they are on a loopback address of this cluster's own.
fn free_addresses(count: usize) -> Result<Vec<SocketAddr>, String> {
    static NEXT: AtomicU8 = AtomicU8::new(1);
    let [.., high, low] = std::process::id().to_be_bytes();
    let host = Ipv4Addr::new(127, high | 0x80, low, NEXT.fetch_add(1, Ordering::Relaxed));
    let bound = (0..count).map(|_| TcpListener::bind((host, 0)));
    let bound: Result<Vec<TcpListener>, _> = bound.collect();
    let bound = bound.map_err(|error| error.to_string())?;
    let addresses = bound.iter().map(TcpListener::local_addr);
    addresses
        .collect::<Result<_, _>>()
        .map_err(|error| error.to_string())
}
