//! Network namespaces: workers live in houses of their own, and packets between a house and the servers vanish.
//!
//! ```text
//!   this machine                                   house 0 … 2
//!   authority 10.N.0.1:…   resource 10.N.0.2:…      workers 0, 3, 6 … | 1, 4, 7 … | 2, 5, 8 …
//!        └──────────┬───────────┘                        │
//!                 veth pair, one for each house ─────────┘
//! ```
//!
//! A house is a process that sleeps in a namespace without a name. When it dies, and it dies with the lab, the
//! namespace and its end of the wire are gone, and with them the other end.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::atomic::{AtomicU8, Ordering};

use super::disk::run;
use crate::chaos::process::{Line, Process};

/// The houses of one world.
pub(crate) struct Houses {
    network: u8,
    /// The sleeper of each.
    sleepers: Vec<Process>,
}

/// What is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Cut {
    Both,
    Authority,
    Resource,
}

/// How many houses a world has.
pub(crate) const HOUSES: usize = 3;

/// Networks of this process so far.
static NETWORKS: AtomicU8 = AtomicU8::new(0);

impl Houses {
    /// Builds them.
    ///
    /// # Errors
    /// What the machine does not allow.
    pub(crate) fn build(folder: &Path) -> Result<Houses, String> {
        // Two labs at once should not meet; where they do, the second is told by `ip`.
        let first = 16 + (std::process::id() % 200) as u8;
        let network = first.wrapping_add(NETWORKS.fetch_add(1, Ordering::Relaxed));
        let mut houses = Houses {
            network,
            sleepers: Vec::new(),
        };
        for house in 0..HOUSES {
            houses.add(house, folder)?;
        }
        let device = houses.wire(0);
        for server in [AUTHORITY, RESOURCE] {
            let address = format!("{}/32", houses.server(server).ip());
            run(&["ip", "address", "add", &address, "dev", &device])?;
        }
        Ok(houses)
    }

    fn add(&mut self, house: usize, folder: &Path) -> Result<(), String> {
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
        let sleeper = Process::start(&line, &folder.join("houses.log"), heard);
        let sleeper = sleeper.map_err(|error| format!("unshare: {error}"))?;
        match up.recv() {
            Ok(Some(_)) => {}
            _ => return Err("unshare --net: not allowed here".to_owned()),
        }
        let (near, far) = (self.wire(house), format!("plh{}x{house}", self.network));
        let pid = sleeper.id().to_string();
        self.sleepers.push(sleeper);
        let n = self.network;
        let (ours, theirs) = (
            format!("10.{n}.{}.1/24", house + 1),
            format!("10.{n}.{}.2/24", house + 1),
        );
        let gate = format!("10.{n}.{}.1", house + 1);
        run(&[
            "ip", "link", "add", &near, "type", "veth", "peer", "name", &far,
        ])?;
        run(&["ip", "link", "set", &far, "netns", &pid])?;
        run(&["ip", "address", "add", &ours, "dev", &near])?;
        run(&["ip", "link", "set", &near, "up"])?;
        self.inside(house, &["ip", "link", "set", "lo", "up"])?;
        self.inside(house, &["ip", "address", "add", &theirs, "dev", &far])?;
        self.inside(house, &["ip", "link", "set", &far, "up"])?;
        self.inside(house, &["ip", "route", "add", "default", "via", &gate])
    }

    /// This machine's end of a house's wire.
    fn wire(&self, house: usize) -> String {
        format!("pln{}x{house}", self.network)
    }

    fn inside(&self, house: usize, words: &[&str]) -> Result<(), String> {
        let way = self.way(house).ok_or("no such house")?;
        let mut all: Vec<&str> = way.iter().map(String::as_str).collect();
        all.extend(words);
        run(&all)
    }

    /// What a command begins with to run in a house.
    pub(crate) fn way(&self, house: usize) -> Option<Vec<String>> {
        let pid = self.sleepers.get(house)?.id();
        let namespace = format!("--net=/proc/{pid}/ns/net");
        Some(vec!["nsenter".to_owned(), namespace, "--".to_owned()])
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

    /// From now on what this house sends there vanishes.
    pub(crate) fn cut(&self, house: usize, what: Cut) -> Result<(), String> {
        self.switch(house, what, true)
    }

    pub(crate) fn heal(&self, house: usize, what: Cut) -> Result<(), String> {
        self.switch(house, what, false)
    }

    fn switch(&self, house: usize, what: Cut, cut: bool) -> Result<(), String> {
        let verb = if cut { "add" } else { "del" };
        let servers: &[u8] = match what {
            Cut::Both => &[AUTHORITY, RESOURCE],
            Cut::Authority => &[AUTHORITY],
            Cut::Resource => &[RESOURCE],
        };
        for server in servers {
            let address = format!("{}/32", self.server(*server).ip());
            self.inside(house, &["ip", "route", verb, "blackhole", &address])?;
        }
        Ok(())
    }
}

const AUTHORITY: u8 = 1;
const RESOURCE: u8 = 2;
