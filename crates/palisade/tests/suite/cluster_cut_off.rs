//! A client that waits through a node that is cut off from the others: packets are lost, and no connection is closed. It goes on
//! at another node, in its place (R16).
//!
//! ```text
//!   this test ──┬── bridge ──┬── node 0, 198.18.N.1     each node in a network namespace
//!               │            ├── node 1, 198.18.N.2
//!          198.18.N.254      └── node 2, 198.18.N.3
//! ```
//!
//! The node that is cut off and the two others send each other's packets to an Ethernet address that nobody has. The test
//! still reaches all of them.
//!
//! real time: these tests also pass beside busy loops (`cargo xtask test --loaded`).

use std::process::{Command, Stdio};
use std::thread::scope;
use std::time::Duration;

use crate::cluster_waits::{Queue, acquire};
use crate::common::cluster::Cluster;
use crate::common::now;

/// Network namespaces on one bridge, one for each node.
struct Network {
    bridge: String,
    nodes: Vec<String>,
    /// The first three numbers of the addresses: of those for tests of networks (RFC 2544).
    prefix: String,
}

impl Network {
    /// `None` where this user may not make one, or `ip` (iproute2) is missing.
    fn of(nodes: usize) -> Option<Network> {
        let id = std::process::id();
        let network = Network {
            bridge: format!("pb{id}"),
            nodes: (0..nodes).map(|at| format!("palisade-{id}-{at}")).collect(),
            prefix: format!("198.18.{}", id % 256),
        };
        let Network { bridge, prefix, .. } = &network;
        let mut commands = vec![
            format!("link add {bridge} type bridge"),
            format!("addr add {prefix}.254/24 dev {bridge}"),
            format!("link set {bridge} up"),
        ];
        for (at, name) in network.nodes.iter().enumerate() {
            let (cable, address) = (format!("pb{id}n{at}"), network.address(at));
            commands.extend([
                format!("netns add {name}"),
                format!("link add {cable} type veth peer name far netns {name}"),
                format!("link set {cable} master {bridge} up"),
                format!("-n {name} addr add {address}/24 dev far"),
                format!("-n {name} link set far up"),
            ]);
        }
        commands
            .iter()
            .all(|command| ip(command))
            .then_some(network)
    }

    fn address(&self, node: usize) -> String {
        format!("{}.{}", self.prefix, node + 1)
    }

    /// From now on, no packet gets from this node to another one, or back.
    fn cut_off(&self, node: usize) {
        let others = (0..self.nodes.len()).filter(|other| *other != node);
        for (from, to) in others.flat_map(|other| [(node, other), (other, node)]) {
            let (name, to) = (&self.nodes[from], self.address(to));
            let nobody = "lladdr 02:00:00:00:00:01 dev far nud permanent";
            assert!(ip(&format!("-n {name} neigh replace {to} {nobody}")));
        }
    }

    /// A cluster in it.
    fn cluster(&self) -> Cluster {
        let mut cluster = Cluster::planned(self.nodes.len());
        let key = cluster.dir.path().join("cluster.key");
        std::fs::write(&key, [b'k'; 32]).unwrap();
        for (at, node) in cluster.nodes.iter_mut().enumerate() {
            node.namespace = Some(self.nodes[at].clone());
            node.listen = format!("{}:7420", self.address(at));
            node.peer = format!("{}:7421", self.address(at));
        }
        let peers: Vec<&str> = cluster.nodes.iter().map(|node| &*node.peer).collect();
        let (list, key) = (peers.join(","), key.to_str().unwrap());
        for node in &mut cluster.nodes {
            node.start(&["--cluster", &list, "--cluster-key-file", key, "--insecure"]);
        }
        cluster.until_ready();
        cluster
    }
}

impl Drop for Network {
    fn drop(&mut self) {
        for (at, name) in self.nodes.iter().enumerate() {
            // A namespace exists as long as the kernel still sends a node's unsent data.
            ip(&format!("link del {}n{at}", self.bridge));
            ip(&format!("netns del {name}"));
        }
        ip(&format!("link del {}", self.bridge));
    }
}

fn ip(arguments: &str) -> bool {
    let mut command = Command::new("ip");
    command.args(arguments.split(' ')).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// By then the leader has lost the node, and 2 s more are over. By the connection of the request alone it would take 42 s.
const NOTICED: Duration = Duration::from_secs(30);

/// The control is the second arm: a client that does not come back before the leader has noticed, and 2 s more.
#[test]
fn a_wait_through_a_node_that_is_cut_off_goes_on_at_another_one_in_its_place() {
    for comes_back in [true, false] {
        let Some(network) = Network::of(3) else {
            eprintln!(
                "NOT RUN: no network namespaces and bridge could be made (root and iproute2 are needed)"
            );
            return;
        };
        let queue = Queue::of(network.cluster());
        let first = acquire("first", 1, 600_000, 60_000);
        scope(|on| {
            let (attempt, second) = queue.line_up(on, &first);
            network.cut_off(queue.a);
            let noticed = now().after(NOTICED.into());
            // The node no longer has a leader, and tells its client the next step.
            let (status, told) = attempt.join().unwrap().unwrap();
            assert_eq!(
                (status, &told["error"]["code"]),
                (504, &"unknown_outcome".into()),
                "{told}"
            );
            if !comes_back {
                queue.waiting(1);
                assert!(
                    now() < noticed,
                    "the leader does not notice it by its own connection to that node"
                );
            }
            let again = on.spawn(|| queue.token(queue.b, &first));
            if !comes_back {
                queue.waiting(2);
            }
            queue.release(&queue.held);
            let (next, last) = if comes_back {
                (again, second)
            } else {
                (second, again)
            };
            let next = next.join().unwrap();
            assert_eq!(next["fencing_token"], 2, "{next}");
            queue.release(next["lock_token"].as_str().unwrap());
            assert_eq!(last.join().unwrap()["fencing_token"], 3);
        });
    }
}
