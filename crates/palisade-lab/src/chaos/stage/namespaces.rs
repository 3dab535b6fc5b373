//! Network namespaces: workers run in namespaces of their own, and packets from a namespace to the servers are dropped.
//!
//! ```text
//!   this machine                                   namespaces 0 … 2
//!   authority 10.N.0.1:…   resource 10.N.0.2:…      workers 0, 3, 6 … | 1, 4, 7 … | 2, 5, 8 …
//!        └──────────┬───────────┘                        │
//!                 veth pair, one for each namespace ─────────┘
//! ```
//!
//! Each namespace has no name and lives as long as its keeper, a process that sleeps in it. The keeper dies with the
//! lab, and then the namespace and both ends of its wire are gone.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};

use super::disk::run;
use crate::chaos::process::{Line, Process};

/// The network namespaces of one world.
pub(crate) struct Namespaces {
    network: u8,
    /// The process that keeps each of them alive.
    keepers: Vec<Process>,
}

/// Which of the servers a namespace is cut off from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    Both,
    Authority,
    Resource,
}

/// How many namespaces a world has.
pub(crate) const NAMESPACES: usize = 3;

/// Networks of this process so far.
static NETWORKS: AtomicU8 = AtomicU8::new(0);

impl Namespaces {
    /// Builds them.
    ///
    /// # Errors
    /// What the machine does not allow.
    pub(crate) fn build(folder: &Path) -> Result<Namespaces, String> {
        // Two labs at once should not use the same addresses; if they do, `ip` fails for the second.
        let first = 16 + (std::process::id() % 200) as u8;
        let network = first.wrapping_add(NETWORKS.fetch_add(1, Ordering::Relaxed));
        let mut namespaces = Namespaces {
            network,
            keepers: Vec::new(),
        };
        for namespace in 0..NAMESPACES {
            namespaces.add(namespace, folder)?;
        }
        let device = namespaces.wire(0);
        for server in [AUTHORITY, RESOURCE] {
            let address = format!("{}/32", namespaces.server(server).ip());
            run(&["ip", "address", "add", &address, "dev", &device])?;
        }
        Ok(namespaces)
    }

    fn add(&mut self, namespace: usize, folder: &Path) -> Result<(), String> {
        let words = [
            "unshare",
            "--net",
            "sh",
            "-c",
            "echo up; exec sleep infinity",
        ];
        let line = Line {
            words: words.iter().map(|word| (*word).to_owned()).collect(),
            ..Line::default()
        };
        let (tell, up) = std::sync::mpsc::channel();
        let heard = move |line| drop(tell.send(line));
        let keeper = Process::start(&line, &folder.join("namespaces.log"), heard);
        let keeper = keeper.map_err(|error| format!("unshare: {error}"))?;
        match up.recv() {
            Ok(Some(_)) => {}
            _ => return Err("unshare --net: not allowed here".to_owned()),
        }
        let (near, far) = (
            self.wire(namespace),
            format!("plh{}x{namespace}", self.network),
        );
        let pid = keeper.id().to_string();
        self.keepers.push(keeper);
        let n = self.network;
        let (ours, theirs) = (
            format!("10.{n}.{}.1/24", namespace + 1),
            format!("10.{n}.{}.2/24", namespace + 1),
        );
        let gate = format!("10.{n}.{}.1", namespace + 1);
        run(&[
            "ip", "link", "add", &near, "type", "veth", "peer", "name", &far,
        ])?;
        run(&["ip", "link", "set", &far, "netns", &pid])?;
        run(&["ip", "address", "add", &ours, "dev", &near])?;
        run(&["ip", "link", "set", &near, "up"])?;
        self.inside(namespace, &["ip", "link", "set", "lo", "up"])?;
        self.inside(namespace, &["ip", "address", "add", &theirs, "dev", &far])?;
        self.inside(namespace, &["ip", "link", "set", &far, "up"])?;
        self.inside(namespace, &["ip", "route", "add", "default", "via", &gate])
    }

    /// This machine's end of a namespace's wire.
    fn wire(&self, namespace: usize) -> String {
        format!("pln{}x{namespace}", self.network)
    }

    fn inside(&self, namespace: usize, words: &[&str]) -> Result<(), String> {
        let prefix = self.prefix(namespace).ok_or("no such namespace")?;
        let mut all: Vec<&str> = prefix.iter().map(String::as_str).collect();
        all.extend(words);
        run(&all)
    }

    /// The words before a command that make it run in a namespace.
    pub(crate) fn prefix(&self, namespace: usize) -> Option<Vec<String>> {
        let pid = self.keepers.get(namespace)?.id();
        let path = format!("--net=/proc/{pid}/ns/net");
        Some(vec!["nsenter".to_owned(), path, "--".to_owned()])
    }

    fn server(&self, last: u8) -> SocketAddr {
        SocketAddr::new(IpAddr::V4(Ipv4Addr::new(10, self.network, 0, last)), 0)
    }

    /// Where the authority listens.
    pub(crate) fn authority(&self) -> SocketAddr {
        self.server(AUTHORITY)
    }

    /// Where the resource listens.
    pub(crate) fn resource(&self) -> SocketAddr {
        self.server(RESOURCE)
    }

    /// Drops what this namespace sends there from now on.
    pub(crate) fn cut(&self, namespace: usize, what: Cut) -> Result<(), String> {
        self.switch(namespace, what, true)
    }

    pub(crate) fn heal(&self, namespace: usize, what: Cut) -> Result<(), String> {
        self.switch(namespace, what, false)
    }

    fn switch(&self, namespace: usize, what: Cut, cut: bool) -> Result<(), String> {
        let verb = if cut { "add" } else { "del" };
        let servers: &[u8] = match what {
            Cut::Both => &[AUTHORITY, RESOURCE],
            Cut::Authority => &[AUTHORITY],
            Cut::Resource => &[RESOURCE],
        };
        for server in servers {
            let address = format!("{}/32", self.server(*server).ip());
            self.inside(namespace, &["ip", "route", verb, "blackhole", &address])?;
        }
        Ok(())
    }
}

const AUTHORITY: u8 = 1;
const RESOURCE: u8 = 2;
