//! A cluster whose nodes run two successive builds (R21). There is no next build yet, so some of the nodes read the next
//! version of the log and the others do not: the feature `testing`. An acquire with certain metadata needs it.

use std::fs;
use std::process::{Child, Command};

use rustix::process::Signal;
use serde_json::Value;

use crate::common::cluster::{Cluster, ELECTION};
use crate::common::until_in;

/// Sends a request that only the next version can write to the log.
fn next(cluster: &Cluster, at: usize, lock: &str) -> (u16, Value) {
    let body =
        r#"{"client_id": "c", "lease_duration_ms": 600000, "metadata": "next version: new"}"#;
    cluster.nodes[at].post_settled(&format!("/v1/locks/{lock}/acquire"), body)
}

fn refusal(cluster: &Cluster, at: usize, code: &str) -> String {
    let (status, refused) = next(cluster, at, "a");
    assert_ne!(status, 200, "{refused}");
    assert_eq!(refused["error"]["code"], code, "{refused}");
    refused["error"]["message"].as_str().unwrap().to_owned()
}

/// Makes a node lead.
fn lead(cluster: &Cluster, at: usize) {
    let node = cluster.nodes[at].get("/v1/cluster").unwrap().1["node"].clone();
    until_in(ELECTION, "the other leader", || {
        let leads = cluster.leader() == Some(at);
        if !leads {
            cluster.output(&["cluster", "transfer-leader", node.as_str().unwrap()]);
        }
        leads
    });
    cluster.until_ready();
}

/// Stops a node as an operator does, and starts it as another build.
fn restart(cluster: &mut Cluster, at: usize, next: bool) {
    cluster.nodes[at].send(Signal::TERM);
    assert_eq!(cluster.nodes[at].end(), Some(0));
    cluster.nodes[at].next = next;
    cluster.start(at);
    cluster.until_ready();
}

/// Jobs that take one of two locks in turn, and note their tokens while they hold it.
struct Load(Vec<Child>);

impl Load {
    const LOCKS: [&str; 2] = ["load-a", "load-b"];

    fn start(cluster: &Cluster) -> Load {
        let jobs = Load::LOCKS.iter().cycle().take(4).map(|lock| {
            let job = format!(
                "while [ ! -e stop ]; do {} run --wait 5m {lock} -- \
                 sh -c 'echo $PALISADE_FENCING_TOKEN >> {lock}' || exit 1; done",
                env!("CARGO_BIN_EXE_palisade")
            );
            Command::new("sh")
                .args(["-c", &job])
                .env("PALISADE_AUTHORITY", cluster.urls())
                .current_dir(cluster.dir.path())
                .spawn()
                .unwrap()
        });
        Load(jobs.collect())
    }

    /// Waits until each lock was taken some times more.
    fn goes_on(cluster: &Cluster) {
        let taken = |lock| Load::tokens(cluster, lock).len();
        let before = Load::LOCKS.map(taken);
        until_in(ELECTION, "more grants", || {
            let now = Load::LOCKS.map(taken);
            before.iter().zip(now).all(|(before, now)| now > before + 2)
        });
    }

    fn tokens(cluster: &Cluster, lock: &str) -> Vec<u64> {
        let lines = fs::read_to_string(cluster.dir.path().join(lock)).unwrap_or_default();
        lines.lines().filter_map(|line| line.parse().ok()).collect()
    }

    /// Every job ends well, and no token was granted twice or out of order.
    fn end(self, cluster: &Cluster) {
        fs::write(cluster.dir.path().join("stop"), "").unwrap();
        for mut job in self.0 {
            assert!(job.wait().unwrap().success());
        }
        for lock in Load::LOCKS {
            let tokens = Load::tokens(cluster, lock);
            assert!(tokens.is_sorted_by(|one, next| one < next), "{tokens:?}");
        }
    }
}

#[test]
fn nodes_are_upgraded_one_after_another_under_load_and_back_again_while_nothing_new_was_used() {
    let mut cluster = Cluster::of(3);
    let load = Load::start(&cluster);
    Load::goes_on(&cluster);
    for upgraded in 0..2 {
        restart(&mut cluster, upgraded, true);
        // It leads, too, and writes nothing that the others do not read.
        lead(&cluster, upgraded);
        until_in(ELECTION, "what the others read", || {
            next(&cluster, upgraded, "a").1["error"]["code"] == "refused"
        });
        let why = refusal(&cluster, upgraded, "refused");
        assert!(
            why.contains("runs an older version") && why.contains("upgrade"),
            "{why}"
        );
        assert!(
            (upgraded + 1..3).any(|older| why.contains(&cluster.nodes[older].peer)),
            "{why}"
        );
        Load::goes_on(&cluster);
    }
    // One goes back: nothing is in its log that it does not know.
    restart(&mut cluster, 1, false);
    Load::goes_on(&cluster);
    restart(&mut cluster, 1, true);
    restart(&mut cluster, 2, true);
    let leader = cluster.until_ready();
    until_in(ELECTION, "what is new", || {
        next(&cluster, leader, "a").0 == 200
    });
    Load::goes_on(&cluster);
    load.end(&cluster);

    // The control shows the danger: a node goes back to the old version, and does not skip entries that it does not know.
    cluster.nodes[2].kill();
    cluster.nodes[2].next = false;
    cluster.start(2);
    assert_ne!(cluster.nodes[2].end(), Some(0));
    let log = cluster.nodes[2].log();
    assert!(log.contains("has an unknown version"), "{log}");
}

/// A member that has not reported may have an older version, which could not read new entries.
#[test]
fn a_kind_of_request_is_new_until_every_member_is_known_to_read_it() {
    let mut cluster = Cluster::planned(3);
    cluster.nodes.iter_mut().for_each(|node| node.next = true);
    (0..3).for_each(|at| cluster.start(at));
    cluster.until_ready();
    (0..3).for_each(|at| cluster.nodes[at].kill());
    (0..2).for_each(|at| cluster.start(at));
    let leader = cluster.until_ready();
    // The other one that runs is heard of first.
    until_in(ELECTION, "the name of the node that is away", || {
        refusal(&cluster, leader, "unavailable").contains(&cluster.nodes[2].peer)
    });
    let why = refusal(&cluster, leader, "unavailable");
    assert!(why.contains("palisade cluster remove"), "{why}");
    assert_eq!(cluster.token(leader, "b"), 1, "everything else goes on");

    cluster.start(2);
    until_in(ELECTION, "what is new", || {
        next(&cluster, leader, "a").0 == 200
    });
    // Every current member must be able to read the log.
    (0..3).for_each(|at| cluster.nodes[at].kill());
    (0..2).for_each(|at| cluster.start(at));
    let leader = cluster.until_ready();
    let (status, granted) = next(&cluster, leader, "c");
    assert_eq!(status, 200, "{granted}");
}
