//! A cluster in which one node is of an older build (R21). There is none at hand, so that node is of this build and reads no
//! newer batches than an older one does: the feature `testing`.

use crate::common::cluster::{Cluster, ELECTION};
use crate::common::until_in;

/// The batches that the first build with clusters read.
const OLD: u8 = 3;

/// Three nodes of which the last one is old; another one leads.
fn mixed() -> (Cluster, usize) {
    let mut cluster = Cluster::planned(3);
    cluster.nodes[2].reads = Some(OLD);
    (0..3).for_each(|at| cluster.start(at));
    cluster.until_ready();
    let new = cluster.nodes[0].get("/v1/cluster").unwrap().1["node"].clone();
    until_in(ELECTION, "a leader that is new", || {
        let leads = cluster.leader().is_some_and(|leader| leader != 2);
        if !leads {
            cluster.output(&["cluster", "transfer-leader", new.as_str().unwrap()]);
        }
        leads
    });
    let leader = cluster.until_ready();
    (cluster, leader)
}

fn shared(cluster: &Cluster, at: usize, lock: &str) -> (u16, serde_json::Value) {
    let body = r#"{"client_id": "c", "lease_duration_ms": 600000, "mode": "shared"}"#;
    cluster.nodes[at].post_settled(&format!("/v1/locks/{lock}/acquire"), body)
}

#[test]
fn the_leader_writes_nothing_that_an_older_node_does_not_read() {
    let (mut cluster, leader) = mixed();
    until_in(ELECTION, "what the older node reads", || {
        let (status, refused) = shared(&cluster, leader, "a");
        assert_ne!(status, 200, "{refused}");
        refused["error"]["code"] == "refused"
    });
    let (_, refused) = shared(&cluster, leader, "a");
    let why = refused["error"]["message"].as_str().unwrap();
    for part in ["runs an older version", &cluster.nodes[2].peer, "upgrade"] {
        assert!(why.contains(part), "{why}: {part}");
    }
    // Everything else goes on, and the older node has it.
    assert_eq!(cluster.token(leader, "b"), 1);
    assert_eq!(cluster.token(2, "c"), 2);
    until_in(ELECTION, "the older node's copy", || {
        cluster.nodes[2]
            .text("/metrics")
            .contains("\npalisade_locks 2\n")
    });

    // It is upgraded.
    cluster.nodes[2].kill();
    cluster.nodes[2].reads = None;
    cluster.start(2);
    let leader = cluster.until_ready();
    until_in(ELECTION, "a shared grant", || {
        shared(&cluster, leader, "a").0 == 200
    });

    // The control, which is what would have become of it: it goes back, and does not skip what it does not know.
    cluster.nodes[2].kill();
    cluster.nodes[2].reads = Some(OLD);
    cluster.start(2);
    assert_ne!(cluster.nodes[2].end(), Some(0));
    let log = cluster.nodes[2].log();
    assert!(log.contains("has an unknown version"), "{log}");
}
