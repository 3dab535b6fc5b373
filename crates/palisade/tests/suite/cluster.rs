//! Three processes that are one lock server: killed, paused, stopped, added, replaced.
//!
//! real time: these tests also pass beside busy loops (`cargo xtask test --loaded`).

use palisade_testbed::SmallDisk;
use rustix::process::Signal;
use serde_json::Value;

use crate::common::cluster::{Cluster, ELECTION};
use crate::common::{Run, Server, until_in};
use crate::traces;

/// The node ids of the members that vote.
fn voters(view: &Value) -> Vec<String> {
    let members = view["members"].as_array().unwrap();
    let voters = members.iter().filter(|member| member["voter"] == true);
    let ids = voters.map(|member| member["node"].as_str().unwrap().to_owned());
    ids.collect()
}

#[test]
fn three_nodes_form_one_authority_that_outlives_each_of_them() {
    let mut cluster = Cluster::of(3);
    let tokens: Vec<u64> = (0..3)
        .map(|at| cluster.token(at, &format!("through-{at}")))
        .collect();
    assert_eq!(tokens, [1, 2, 3], "each node is a way to the same counter");
    let before = cluster.json(&["cluster", "status"]);
    assert_eq!(voters(&before).len(), 3);

    // Losing any one of them loses nothing.
    for round in 0..3 {
        let leader = cluster.until_ready();
        cluster.nodes[leader].kill();
        cluster.until_ready();
        let other = (leader + 1) % 3;
        assert_eq!(cluster.token(other, &format!("after-{round}")), 4 + round);
        let shown = cluster.json(&["show", "through-0"]);
        assert_eq!(shown["holder"]["fencing_token"], 1, "{shown}");
        cluster.start(leader);
    }

    // All at once: acknowledged entries are on disk.
    cluster.until_ready();
    (0..3).for_each(|at| cluster.nodes[at].kill());
    (0..3).for_each(|at| cluster.start(at));
    cluster.until_ready();
    assert_eq!(cluster.token(0, "after-all"), 7);
    let after = cluster.json(&["cluster", "status"]);
    assert_eq!(after["authority"], before["authority"]);
    assert_eq!(voters(&after), voters(&before));
}

#[test]
fn a_job_does_not_notice_that_the_leader_dies_and_a_waiter_keeps_its_place() {
    let mut cluster = Cluster::of(3);
    let go = cluster.dir.path().join("go");
    let script = "while [ ! -e go ]; do sleep 0.05; done; echo $PALISADE_FENCING_TOKEN >> order";
    let job = |cluster: &Cluster| {
        let arguments = [
            "run", "orders", "--ttl", "30s", "--wait", "60s", "--", "sh", "-c", script,
        ];
        Run::start(&mut cluster.palisade(&arguments))
    };
    let waiting = |cluster: &Cluster, count: usize| {
        until_in(ELECTION, "the queue", || {
            let shown = cluster.output(&["show", "orders", "--json"]);
            let shown: Value = serde_json::from_slice(&shown.stdout).unwrap_or_default();
            shown["waiters"].as_u64() == Some(count as u64)
        });
    };
    let first = job(&cluster);
    until_in(ELECTION, "the first grant", || {
        cluster.json(&["show", "orders"])["holder"]["fencing_token"] == 1
    });
    let second = job(&cluster);
    waiting(&cluster, 1);
    let third = job(&cluster);
    waiting(&cluster, 2);

    let leader = cluster.until_ready();
    cluster.nodes[leader].kill();
    cluster.until_ready();
    // A later request queues behind the earlier ones.
    let fourth = job(&cluster);
    waiting(&cluster, 3);
    std::fs::write(go, "").unwrap();
    for run in [first, second, third, fourth] {
        let output = run.end();
        assert!(
            output.status.success(),
            "{}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let order = std::fs::read_to_string(cluster.dir.path().join("order")).unwrap();
    assert_eq!(order, "1\n2\n3\n4\n");
}

#[test]
fn each_node_is_restarted_in_turn_and_none_holds_up_its_stop() {
    let mut cluster = Cluster::of(3);
    for round in 0..6 {
        let leader = cluster.until_ready();
        // Every second time a follower.
        let node = (leader + round % 2) % 3;
        cluster.nodes[node].send(Signal::TERM);
        assert_eq!(
            cluster.nodes[node].end(),
            Some(0),
            "{}",
            cluster.nodes[node].log()
        );
        cluster.until_ready();
        let other = (node + 1) % 3;
        assert_eq!(
            cluster.token(other, &format!("round-{round}")),
            1 + round as u64
        );
        cluster.start(node);
    }
}

#[test]
fn a_leader_whose_disk_is_full_hands_over_and_comes_back_when_there_is_room() {
    let mut cluster = Cluster::planned(3);
    let disk = SmallDisk::new(&cluster.dir.path().join("disk"), 64).unwrap();
    // Room for the first segment of its log and not for the second.
    disk.fill(Some(56)).unwrap();
    cluster.nodes[0].data = disk.data();
    (0..3).for_each(|at| cluster.start(at));
    cluster.until_ready();
    let small = cluster.nodes[0].get("/v1/cluster").unwrap().1["node"].clone();
    let small = small.as_str().unwrap();
    until_in(ELECTION, "the small node's lead", || {
        cluster.output(&["cluster", "transfer-leader", small]);
        cluster.leader() == Some(0)
    });
    // Its name and its value fill the log.
    let note = "x".repeat(256);
    let mut grants = 0;
    until_in(ELECTION, "a full disk", || {
        for _ in 0..100 {
            let body = format!(
                r#"{{"client_id": "c", "lease_duration_ms": 600000, "metadata": "{note}"}}"#
            );
            let path = format!("/v1/locks/{}/acquire", "l".repeat(200));
            grants += u64::from(
                cluster.nodes[1]
                    .post(&path, &body)
                    .is_some_and(|(status, _)| status == 200),
            );
        }
        cluster.nodes[0].log().contains("finds no room")
    });
    until_in(ELECTION, "another leader", || {
        cluster.leader().is_some_and(|leader| leader != 0)
    });
    let after = cluster.token(1, "after");
    assert!(after > grants, "{after} after {grants}");
    let (status, reply) = cluster.nodes[0].get("/readyz").unwrap();
    assert!(
        status != 503
            || reply["error"]["message"]
                .as_str()
                .unwrap()
                .contains("no room"),
        "{reply}"
    );
    // It may be stopped as it is, and it comes back when there is room.
    cluster.nodes[0].send(Signal::TERM);
    assert_eq!(
        cluster.nodes[0].end(),
        Some(0),
        "{}",
        cluster.nodes[0].log()
    );
    disk.free();
    cluster.start(0);
    cluster.until_ready();
    assert_eq!(cluster.token(0, "with-room"), after + 1);
}

#[test]
fn a_leader_that_was_paused_answers_nothing_that_another_one_has_overtaken() {
    let cluster = Cluster::of(3);
    let leader = cluster.until_ready();
    let other = (leader + 1) % 3;
    let body = r#"{"client_id": "a", "lease_duration_ms": 60000, "request_id": "0123456789abcdef0123456789abcdef"}"#;
    let (_, held) = cluster.nodes[leader].post_settled("/v1/locks/a/acquire", body);
    cluster.nodes[leader].send(Signal::STOP);
    until_in(ELECTION, "another leader", || {
        let ready = cluster.nodes[other].get("/readyz").unwrap();
        let elsewhere = ready.1["leader"].as_str() != Some(&cluster.nodes[leader].url());
        ready.0 == 200 && elsewhere
    });
    let key = held["lock_token"].as_str().unwrap();
    let release = format!(r#"{{"lock_token": "{key}"}}"#);
    let (status, released) = cluster.nodes[other].post_settled("/v1/locks/a/release", &release);
    assert_eq!(
        status, 200,
        "the lease lives on under the new leader: {released}"
    );
    assert_eq!(cluster.token(other, "a"), 2);
    cluster.nodes[leader].send(Signal::CONT);
    // It may still believe that it leads, but it asks the others before it says so.
    let (status, shown) = cluster.nodes[leader].get("/v1/locks/a").unwrap();
    assert!(
        status != 200 || shown["holder"]["fencing_token"] == 2,
        "{shown}"
    );
    cluster.until_ready();
    assert_eq!(cluster.token(leader, "b"), 3);
}

/// A load balancer asks `/readyz`, and an operator asks for the status. A cluster of one hears from no other node and needs
/// none: it serves on when a leader of three no longer does.
#[test]
fn a_node_without_a_majority_names_no_leader() {
    let one = Cluster::of(1);
    for (token, survivor_leads) in [(1, false), (2, true)] {
        let mut cluster = Cluster::of(3);
        let leader = cluster.until_ready();
        let survivor = if survivor_leads {
            leader
        } else {
            (leader + 1) % 3
        };
        (0..3)
            .filter(|at| *at != survivor)
            .for_each(|at| cluster.nodes[at].kill());
        let alone = &cluster.nodes[survivor];
        until_in(ELECTION, "the news that nobody leads", || {
            let view = alone.get("/v1/cluster").unwrap().1;
            alone.get("/readyz").unwrap().0 == 503 && view["leader"].is_null()
        });
        if survivor_leads {
            until_in(ELECTION, "the end of its lead in its log", || {
                alone.log().contains("leads no longer")
            });
        }
        assert_eq!(one.token(0, &format!("lock-{token}")), token);
    }
    let log = one.nodes[0].log();
    assert!(!log.contains("leads no longer"), "{log}");
}

#[test]
fn nodes_come_and_go_while_the_cluster_serves() {
    let mut cluster = Cluster::of(3);
    assert_eq!(cluster.token(0, "first"), 1);
    let urls = cluster.urls();
    let new = cluster.plan();
    cluster.nodes[new].start(&["--join", &urls]);
    let joined = cluster.nodes[new].started();
    let id = joined["node"].as_str().unwrap().to_owned();
    let is_voter = |cluster: &Cluster, id: &str| {
        voters(&cluster.json(&["cluster", "status"]))
            .iter()
            .any(|voter| voter == id)
    };
    until_in(ELECTION, "the new node's vote", || is_voter(&cluster, &id));
    cluster.until_ready();
    assert_eq!(cluster.token(new, "through-the-new-one"), 2);

    // The leader is removed: another one leads, and the old one is no longer a member.
    let leader = cluster.until_ready();
    let node = cluster.nodes[leader].get("/v1/cluster").unwrap().1["node"].clone();
    let view = cluster.json(&["cluster", "remove", node.as_str().unwrap()]);
    assert_eq!(voters(&view).len(), 3, "{view}");
    assert!(!voters(&view).contains(&node.as_str().unwrap().to_owned()));
    cluster.nodes[leader].kill();
    let left = (0..4).find(|at| *at != leader).unwrap();
    until_in(ELECTION, "a grant", || {
        cluster.nodes[left]
            .get("/readyz")
            .is_some_and(|(status, _)| status == 200)
    });
    assert_eq!(cluster.token(left, "without-it"), 3);
}

/// The control is the first test: a node that is still a member serves again after a kill.
#[test]
fn a_node_that_was_removed_while_it_was_down_says_so_and_does_not_come_back() {
    let mut cluster = Cluster::of(3);
    let leader = cluster.until_ready();
    let gone = (leader + 1) % 3;
    let id = cluster.nodes[gone].get("/v1/cluster").unwrap().1["node"].clone();
    let id = id.as_str().unwrap();
    // At once: it may have been the last one to form the cluster, and have heard nothing since.
    cluster.nodes[gone].kill();
    cluster.json(&["cluster", "remove", id]);

    cluster.start(gone);
    until_in(ELECTION, "what the others told it", || {
        let log = cluster.nodes[gone].log();
        log.contains("does not count this node") && log.contains("--join and another --data")
    });
    let ready = cluster.nodes[gone].get("/readyz");
    assert!(ready.is_none_or(|(status, _)| status != 200), "it serves");
    let left = voters(&cluster.json(&["cluster", "status"]));
    assert!(
        left.len() == 2 && !left.contains(&id.to_owned()),
        "{left:?}"
    );
    assert_eq!(cluster.token(leader, "without-it"), 1);
}

#[test]
fn a_node_whose_disk_is_lost_is_replaced_and_never_comes_back_by_itself() {
    let mut cluster = Cluster::of(3);
    let leader = cluster.until_ready();
    let lost = (leader + 1) % 3;
    let old = cluster.nodes[lost].get("/v1/cluster").unwrap().1["node"]
        .as_str()
        .unwrap()
        .to_owned();
    cluster.nodes[lost].kill();
    std::fs::remove_dir_all(&cluster.nodes[lost].data).unwrap();
    // With the old flags it reports the next step, and changes nothing.
    cluster.start(lost);
    assert_ne!(cluster.nodes[lost].end(), Some(0));
    let log = cluster.nodes[lost].log();
    assert!(log.contains("palisade cluster replace"), "{log}");

    let url = cluster.nodes[leader].url();
    cluster.nodes[lost].start(&["--join", &url]);
    let new = cluster.nodes[lost].started()["node"]
        .as_str()
        .unwrap()
        .to_owned();
    assert_ne!(new, old);
    let view = cluster.json(&["cluster", "replace", &old, &new]);
    let now = voters(&view);
    assert!(
        now.contains(&new) && !now.contains(&old) && now.len() == 3,
        "{view}"
    );
    cluster.until_ready();
    assert_eq!(cluster.token(lost, "through-the-replacement"), 1);
}

#[test]
fn a_single_server_becomes_the_first_member_with_all_that_it_knew() {
    let mut cluster = Cluster::planned(3);
    let mut single = Server::start();
    let held = single.output(&["acquire", "orders", "--ttl", "10m", "--json"]);
    assert!(held.status.success());
    let authority = crate::common::json(&held.stdout)["authority"].clone();
    single.kill();
    std::fs::rename(single.file("data"), &cluster.nodes[0].data).unwrap();
    (0..3).for_each(|at| cluster.start(at));
    cluster.until_ready();
    let view = || cluster.json(&["cluster", "status"]);
    until_in(ELECTION, "three voters", || voters(&view()).len() == 3);
    assert_eq!(view()["authority"], authority);
    assert_eq!(
        cluster.json(&["show", "orders"])["holder"]["fencing_token"],
        1
    );
    assert_eq!(cluster.token(2, "next"), 2);
}

#[test]
fn a_watcher_and_the_metrics_see_the_same_at_every_node() {
    let cluster = Cluster::of(3);
    let leader = cluster.until_ready();
    cluster.token(leader, "a");
    cluster.token(leader, "b");
    let told: Vec<Vec<String>> = (0..3)
        .map(|at| cluster.nodes[at].events("/v1/watch?after_revision=0", 2))
        .collect();
    assert!(
        told[0][0].contains("\"a\"") && told[0][1].contains("\"b\""),
        "{told:?}"
    );
    assert!(told.iter().all(|events| *events == told[0]), "{told:?}");
    for at in 0..3 {
        let metrics = cluster.nodes[at].text("/metrics");
        let has = |line: &str| metrics.lines().any(|known| known == line);
        assert!(
            has(&format!(
                "palisade_cluster_leader {}",
                u8::from(at == leader)
            )),
            "{metrics}"
        );
        assert!(
            has("palisade_cluster_members 3") && has("palisade_locks 2"),
            "{metrics}"
        );
    }
}

#[tokio::test]
async fn every_metric_of_the_alerts_and_the_dashboard_exists() {
    let cluster = Cluster::of(1);
    // The gateway and the states of Terraform count as the store does, under their own names.
    let dir = tempfile::tempdir().unwrap();
    let store = traces::command("store", &dir.path().join("data"));
    let (_store, caller) = traces::start(store, &dir.path().join("log"));
    let fences = caller.observe("/metrics").await.text();
    let metrics = cluster.nodes[0].text("/metrics")
        + &fences
        + &fences.replace("palisade_store_", "palisade_gateway_")
        + &fences.replace("palisade_store_", "palisade_tfstate_");
    let families: Vec<&str> = metrics
        .lines()
        .filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next())
        .collect();
    let deploy = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
    let mut seen = 0;
    for file in ["alerts.yaml", "grafana.json"] {
        let text = std::fs::read_to_string(deploy.join(file)).unwrap();
        for word in text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_') {
            if !word.starts_with("palisade_") {
                continue;
            }
            seen += 1;
            let family = word.trim_end_matches("_bucket");
            assert!(families.contains(&family), "{file}: {word}");
        }
    }
    assert!(seen > 40, "{seen}");
}
