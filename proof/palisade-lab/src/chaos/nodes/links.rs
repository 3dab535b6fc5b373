//! Relays between the nodes of a cluster: one in front of each node's peer port.
//!
//! ```text
//!   node i ──► relay j ──► node j      data from i to j passes link (i, j), data from j to i passes link (j, i)
//! ```
//!
//! A relay tells the dialers apart by the process that owns the other end of the connection, so each direction of each
//! pair is a link of its own, whichever of the two has dialed. A cut link holds its data back, as in a network that
//! loses every packet: the connection stays, and the data arrives after the link is restored.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener as Relay, TcpStream};
use tokio::runtime::Runtime;
use tokio::sync::watch;

use crate::chaos::lock::lock;

/// The fate of data on its way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(in crate::chaos) struct Way {
    /// Nothing arrives until this ends.
    pub(in crate::chaos) cut: bool,
    pub(in crate::chaos) delay: Duration,
}

/// All links of a cluster. Its relays end when it is dropped.
pub(in crate::chaos) struct Links {
    shared: Arc<Shared>,
    /// The relay in front of each node.
    pub(super) addresses: Vec<SocketAddr>,
    _runtime: Runtime,
}

struct Shared {
    /// By sender, then by receiver.
    ways: Vec<Vec<watch::Sender<Way>>>,
    /// The process of each node.
    processes: Mutex<Vec<Option<u32>>>,
}

impl Links {
    /// Relays to these peer addresses, one for each node.
    pub(super) fn to(nodes: &[SocketAddr]) -> Result<Links, String> {
        let words = |error: std::io::Error| format!("relays: {error}");
        let mut runtime = tokio::runtime::Builder::new_multi_thread();
        let runtime = runtime
            .worker_threads(1)
            .enable_all()
            .build()
            .map_err(words)?;
        let count = nodes.len();
        let shared = Arc::new(Shared {
            ways: (0..count)
                .map(|_| (0..count).map(|_| watch::Sender::default()).collect())
                .collect(),
            processes: Mutex::new(vec![None; count]),
        });
        let mut addresses = Vec::new();
        for (to, node) in nodes.iter().enumerate() {
            let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(words)?;
            addresses.push(listener.local_addr().map_err(words)?);
            listener.set_nonblocking(true).map_err(words)?;
            let (shared, node) = (Arc::clone(&shared), *node);
            runtime.spawn(async move {
                if let Ok(relay) = Relay::from_std(listener) {
                    accept(&relay, &shared, to, node).await;
                }
            });
        }
        Ok(Links {
            shared,
            addresses,
            _runtime: runtime,
        })
    }

    /// Which process a node is now.
    pub(super) fn set_process(&self, node: usize, process: Option<u32>) {
        lock(&self.shared.processes)[node] = process;
    }

    /// Changes the treatment of data from one node to another.
    pub(in crate::chaos) fn set(&self, from: usize, to: usize, way: Way) {
        self.shared.ways[from][to].send_replace(way);
    }

    /// Lets everything through at once.
    pub(in crate::chaos) fn heal(&self) {
        for way in self.shared.ways.iter().flatten() {
            way.send_replace(Way::default());
        }
    }
}

async fn accept(relay: &Relay, shared: &Arc<Shared>, to: usize, node: SocketAddr) {
    while let Ok((near, dialer)) = relay.accept().await {
        let shared = Arc::clone(shared);
        tokio::spawn(async move {
            // A dialer that is no node, or is gone by now, is not let in.
            let Some(from) = shared.node_at(dialer.port()) else {
                return;
            };
            let Ok(far) = TcpStream::connect(node).await else {
                return;
            };
            let _ = (near.set_nodelay(true), far.set_nodelay(true));
            let (near_in, near_out) = near.into_split();
            let (far_in, far_out) = far.into_split();
            let forth = pump(near_in, far_out, shared.ways[from][to].subscribe());
            let back = pump(far_in, near_out, shared.ways[to][from].subscribe());
            tokio::join!(forth, back);
        });
    }
}

async fn pump(mut from: OwnedReadHalf, mut to: OwnedWriteHalf, mut way: watch::Receiver<Way>) {
    let mut buffer = vec![0; 16 << 10];
    while let Ok(length @ 1..) = from.read(&mut buffer).await {
        let delay = way.borrow().delay;
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        if way.wait_for(|way| !way.cut).await.is_err()
            || to.write_all(&buffer[..length]).await.is_err()
        {
            break;
        }
    }
    let _ = to.shutdown().await;
}

impl Shared {
    /// The node whose process has a socket on this local port.
    fn node_at(&self, port: u16) -> Option<usize> {
        let table = std::fs::read_to_string("/proc/net/tcp").ok()?;
        let local = format!("0100007F:{port:04X}");
        let rows = table
            .lines()
            .map(|row| row.split_ascii_whitespace().collect::<Vec<_>>());
        let row = rows.into_iter().find(|row| row.get(1) == Some(&&*local))?;
        let socket = format!("socket:[{}]", row.get(9)?);
        let processes = lock(&self.processes).clone();
        processes
            .iter()
            .position(|process| process.is_some_and(|process| owns(process, Path::new(&socket))))
    }
}

fn owns(process: u32, socket: &Path) -> bool {
    let files = std::fs::read_dir(format!("/proc/{process}/fd"));
    let mut files = files.into_iter().flatten().flatten();
    files.any(|file| std::fs::read_link(file.path()).is_ok_and(|target| target == socket))
}
