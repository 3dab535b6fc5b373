//! A cluster out of a backup, and out of the one disk that is left.

use std::path::Path;

use rustix::process::Signal;
use serde_json::Value;

use crate::common::cluster::{Cluster, ELECTION};
use crate::common::{json, palisade, text, until, until_in};

/// A restore or a recovery moves the counter at least so far.
const LEAP: u64 = 1 << 44;

fn hold(cluster: &Cluster, lock: &str) -> u64 {
    let held = cluster.json(&["acquire", lock, "--ttl", "1h"]);
    held["fencing_token"].as_u64().unwrap()
}

/// Each lock is held under the token of its grant.
fn assert_held(cluster: &Cluster, held: &[(&str, u64)]) {
    for (lock, token) in held {
        let shown = cluster.json(&["show", lock]);
        assert_eq!(shown["holder"]["fencing_token"], *token, "{lock}: {shown}");
    }
}

fn of_node(cluster: &Cluster, at: usize) -> Value {
    cluster.nodes[at].get("/v1/cluster").unwrap().1
}

/// Three voters, all of which serve.
fn until_three(cluster: &Cluster) {
    until_in(ELECTION, "three voters", || {
        let view = cluster.output(&["cluster", "status", "--json"]);
        let view: Value = serde_json::from_slice(&view.stdout).unwrap_or_default();
        let members = view["members"].as_array().cloned().unwrap_or_default();
        members
            .iter()
            .filter(|member| member["voter"] == true)
            .count()
            == 3
    });
    cluster.until_ready();
}

/// A node comes back with its directory of the old cluster, at its old address. The two others serve on.
fn assert_refused(cluster: &mut Cluster, at: usize, old: &Path) {
    let incarnation = of_node(cluster, at)["incarnation"]
        .as_str()
        .unwrap()
        .to_owned();
    cluster.nodes[at].kill();
    let kept = cluster.nodes[at].data.with_extension("new");
    std::fs::rename(&cluster.nodes[at].data, kept).unwrap();
    std::fs::rename(old, &cluster.nodes[at].data).unwrap();
    let before = cluster.nodes[at].log().len();
    cluster.start(at);
    until("the refusal", || {
        let log = cluster.nodes[at].log().split_off(before);
        log.contains(&incarnation)
            && log.contains("the newer one")
            && log.contains("another --data")
    });
    let other = (at + 1) % 3;
    until_in(ELECTION, "the others serve", || {
        cluster.nodes[other]
            .get("/readyz")
            .is_some_and(|(status, _)| status == 200)
    });
    let token = cluster.token(other, "beside-the-old-one");
    assert!(token > LEAP, "{token}");
    let ready = cluster.nodes[at].get("/readyz");
    assert!(
        ready.is_none_or(|(status, _)| status != 200),
        "it must not serve"
    );
}

#[test]
fn a_follower_s_backup_becomes_a_cluster_again() {
    let mut cluster = Cluster::of(3);
    let held = ["a", "b", "c"].map(|lock| (lock, hold(&cluster, lock)));
    let leader = cluster.until_ready();
    let follower = (leader + 1) % 3;
    let last = of_node(&cluster, leader)["committed"].as_u64();
    until_in(ELECTION, "the follower has all of it", || {
        of_node(&cluster, follower)["applied"].as_u64() >= last
    });
    // The backup is taken at once, while the node serves, and contains every applied entry.
    let data = cluster.nodes[follower].data.display().to_string();
    let saved = cluster.json(&["backup", "saved", "--data", &data]);
    let before = cluster.json(&["cluster", "status"]);
    assert_eq!(saved["authority"], before["authority"]);

    let behind = (0..20).map(|n| cluster.token(n % 3, &format!("behind-{n}")));
    let highest = behind.max().unwrap();
    (0..3).for_each(|at| cluster.nodes[at].kill());
    let refused = cluster.output(&["restore", &data, "--data", "restored"]);
    let stderr = text(&refused.stderr);
    assert!(stderr.contains("palisade backup TO --data"), "{stderr}");
    let restored = cluster.json(&["restore", "saved", "--data", "restored"]);
    assert_eq!(restored["authority"], before["authority"]);
    assert_ne!(restored["incarnation"], before["incarnation"]);
    assert_eq!(restored["locks"], 3);
    assert!(restored["next_token"].as_u64().unwrap() > highest + (LEAP >> 1));

    // Two blank nodes beside it.
    let old = cluster.dir.path().join("old");
    std::fs::rename(&cluster.nodes[1].data, &old).unwrap();
    for at in [0, 2] {
        std::fs::remove_dir_all(&cluster.nodes[at].data).unwrap();
    }
    std::fs::rename(cluster.dir.path().join("restored"), &cluster.nodes[0].data).unwrap();
    (0..3).for_each(|at| cluster.start(at));
    until_three(&cluster);
    assert_held(&cluster, &held);
    let token = cluster.token(2, "next");
    assert!(token > highest && token >= LEAP, "{token}");
    let after = cluster.json(&["cluster", "status"]);
    assert_eq!(after["authority"], before["authority"]);
    assert_ne!(after["incarnation"], before["incarnation"]);
    assert_refused(&mut cluster, 1, &old);
}

#[test]
fn one_disk_of_three_is_enough_for_a_recovery_without_a_loss() {
    let mut cluster = Cluster::of(3);
    let mut held = vec![("a", hold(&cluster, "a")), ("b", hold(&cluster, "b"))];
    let leader = cluster.until_ready();
    let (left, paused) = ((leader + 1) % 3, (leader + 2) % 3);
    // Only the leader and the node that will be left can have acknowledged this, and the latter may not know that yet.
    cluster.nodes[paused].send(Signal::STOP);
    let body = r#"{"client_id": "c", "lease_duration_ms": 3600000}"#;
    let (status, last) = cluster.nodes[leader]
        .post("/v1/locks/last/acquire", body)
        .unwrap();
    assert_eq!(status, 200, "{last}");
    for at in [left, leader, paused] {
        cluster.nodes[at].kill();
    }
    held.push(("last", last["fencing_token"].as_u64().unwrap()));
    let highest = held[2].1;
    let old = cluster.dir.path().join("old");
    std::fs::rename(&cluster.nodes[leader].data, &old).unwrap();
    std::fs::remove_dir_all(&cluster.nodes[paused].data).unwrap();

    let data = cluster.nodes[left].data.display().to_string();
    let recover = |more: &[&str]| {
        let arguments = [&["cluster", "recover", "--data", &data, "--json"], more].concat();
        let mut command = palisade();
        command.args(arguments).output().unwrap()
    };
    let look = json(&recover(&["--look"]).stdout);
    assert_eq!(look["members"].as_array().unwrap().len(), 3, "{look}");
    assert!(
        look["last"]["index"].as_u64() >= look["committed"]["index"].as_u64(),
        "{look}"
    );
    let refused = recover(&[]);
    assert_eq!(refused.status.code(), Some(2), "nobody confirmed it");
    assert!(
        text(&refused.stderr).contains("--yes"),
        "{}",
        text(&refused.stderr)
    );
    assert_eq!(json(&recover(&["--look"]).stdout), look, "nothing changed");
    let recovered = json(&recover(&["--yes"]).stdout);
    assert_eq!(recovered["authority"], look["authority"]);
    assert_ne!(recovered["incarnation"], look["incarnation"]);
    assert_eq!(recovered["locks"], 3, "nothing acknowledged is missing");
    let again = recover(&["--yes"]);
    assert!(
        text(&again.stderr).contains("--cluster"),
        "{}",
        text(&again.stderr)
    );

    (0..3).for_each(|at| cluster.start(at));
    until_three(&cluster);
    assert_held(&cluster, &held);
    let token = cluster.token(leader, "next");
    assert!(token > highest && token >= LEAP, "{token}");
    let ids: Vec<Value> = (0..3)
        .map(|at| of_node(&cluster, at)["node"].clone())
        .collect();
    assert!(!ids.contains(&look["node"]), "a node's id is used once");
    assert_refused(&mut cluster, leader, &old);
}

#[test]
fn a_recovered_node_serves_alone_and_does_not_form_a_cluster_beside_the_old_one() {
    let mut cluster = Cluster::of(3);
    let token = hold(&cluster, "a");
    let leader = cluster.until_ready();
    let (left, back) = ((leader + 1) % 3, (leader + 2) % 3);
    let data = cluster.nodes[left].data.display().to_string();
    let recover = |cluster: &Cluster, more: &str| {
        cluster.output(&["cluster", "recover", "--data", &data, more, "--json"])
    };
    let look = json(&recover(&cluster, "--look").stdout);
    assert_eq!(look["node"], of_node(&cluster, left)["node"], "it runs");
    let in_use = recover(&cluster, "--yes");
    assert!(
        text(&in_use.stderr).contains("in use"),
        "{}",
        text(&in_use.stderr)
    );

    until("it has all of it", || {
        json(&recover(&cluster, "--look").stdout)["last"]["index"].as_u64()
            >= of_node(&cluster, leader)["last"].as_u64()
    });
    (0..3).for_each(|at| cluster.nodes[at].kill());
    assert!(recover(&cluster, "--yes").status.success());
    // One of the old nodes runs again: the recovered one says so and does nothing.
    cluster.start(back);
    until("the old node", || {
        cluster.nodes[back].get("/v1/cluster").is_some()
    });
    cluster.start(left);
    assert_ne!(cluster.nodes[left].end(), Some(0));
    let log = cluster.nodes[left].log();
    assert!(log.contains("of the older one of the two"), "{log}");

    cluster.nodes[left].start(&[]);
    assert_eq!(
        cluster.nodes[left].started()["authority"],
        look["authority"]
    );
    let (_, shown) = cluster.nodes[left].get("/v1/locks/a").unwrap();
    assert_eq!(shown["holder"]["fencing_token"], token, "{shown}");
    assert!(cluster.token(left, "next") >= LEAP);
}
