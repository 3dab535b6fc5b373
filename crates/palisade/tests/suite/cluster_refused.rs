//! Clusters that must not be formed, and nodes that must not come in: each gets the reason and the next step.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use crate::common::cluster::{Cluster, ELECTION};
use crate::common::{palisade, text, until, until_in};

/// Copies a directory of files.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join(entry.file_name())).unwrap();
    }
}

#[test]
fn a_node_with_another_key_or_none_stays_outside() {
    let mut cluster = Cluster::planned(3);
    let key = |name: &str, secret: &str| {
        let path = cluster.dir.path().join(name);
        std::fs::write(&path, secret).unwrap();
        path.display().to_string()
    };
    let (right, wrong) = (
        key("right", "0123456789abcdef-right"),
        key("wrong", "0123456789abcdef-wrong"),
    );
    let list = cluster.list.clone();
    for (at, key) in [(0, Some(&right)), (1, Some(&wrong)), (2, None)] {
        let mut flags = vec!["--cluster", &list];
        flags.extend(
            key.iter()
                .flat_map(|key| ["--cluster-key-file", key.as_str()]),
        );
        cluster.nodes[at].start(&flags);
    }
    // Both sides report the next step.
    let advice = "give every node the same --cluster-key-file";
    until("the refusals", || {
        let logs = [0, 1, 2].map(|at| cluster.nodes[at].log());
        let says = |at: usize, why: &str| logs[at].contains(&format!("{why}: {advice}"));
        says(0, "have different cluster keys")
            && says(0, "has none")
            && says(1, "have different cluster keys")
            && says(2, "has none")
    });
    assert!(
        cluster.nodes[0]
            .get("/readyz")
            .is_none_or(|(status, _)| status != 200)
    );
}

#[test]
fn lists_that_differ_form_nothing() {
    let mut cluster = Cluster::planned(3);
    let (all, two) = (
        cluster.list.clone(),
        format!("{},{}", cluster.nodes[0].peer, cluster.nodes[1].peer),
    );
    cluster.nodes[0].start(&["--cluster", &all]);
    cluster.nodes[1].start(&["--cluster", &two]);
    assert_ne!(cluster.nodes[1].end(), Some(0));
    let log = cluster.nodes[1].log();
    assert!(
        log.contains(&all) || log.contains(&cluster.nodes[2].peer),
        "{log}"
    );
}

#[test]
fn a_member_of_another_cluster_is_refused_by_name() {
    let one = Cluster::of(1);
    let mut other = Cluster::of(1);
    let id = other.nodes[0].get("/v1/cluster").unwrap().1["node"]
        .as_str()
        .unwrap()
        .to_owned();
    let refused = one.output(&["cluster", "promote", &id]);
    assert!(
        text(&refused.stderr).contains("is not a member"),
        "{}",
        text(&refused.stderr)
    );
    let last = one.nodes[0].get("/v1/cluster").unwrap().1["node"]
        .as_str()
        .unwrap()
        .to_owned();
    let refused = one.output(&["cluster", "remove", &last]);
    assert!(
        text(&refused.stderr).contains("the last node"),
        "{}",
        text(&refused.stderr)
    );
    let refused = one.output(&["cluster", "promote", "nonsense"]);
    assert!(
        text(&refused.stderr).contains("16 hexadecimal digits"),
        "{}",
        text(&refused.stderr)
    );
    // A single server cannot use a member's directory.
    other.nodes[0].kill();
    let mut alone = palisade();
    alone
        .args(["serve", "--listen", "127.0.0.1:0", "--data"])
        .arg(&other.nodes[0].data);
    let refused = alone.output().unwrap();
    assert_ne!(refused.status.code(), Some(0));
    assert!(
        text(&refused.stderr).contains("--cluster"),
        "{}",
        text(&refused.stderr)
    );
}

/// At the address of a member stands a node of another cluster. The control is the member, put back.
#[test]
fn a_node_of_another_cluster_at_a_member_s_address_is_refused_on_both_sides() {
    let mut cluster = Cluster::of(3);
    let mut other = Cluster::of(1);
    let away = (cluster.until_ready() + 1) % 3;
    cluster.nodes[away].kill();
    other.nodes[0].kill();
    let own = std::mem::replace(&mut cluster.nodes[away].data, other.nodes[0].data.clone());
    cluster.start(away);
    let says = |at: usize| {
        let log = cluster.nodes[at].log();
        log.contains("belongs to cluster") && log.contains("correct the addresses")
    };
    until_in(ELECTION, "the refusals", || (0..3).all(says));
    let rest = (away + 1) % 3;
    assert_eq!(cluster.token(rest, "without-it"), 1);
    cluster.nodes[away].kill();
    cluster.nodes[away].data = own;
    cluster.start(away);
    cluster.until_ready();
    assert_eq!(cluster.token(away, "with-it"), 2);
}

/// Each node was first started with a list of its own. From then on it ignores lists: started again with the right one it
/// serves as before, and its log explains it. The control is a start with the old list.
#[test]
fn two_clusters_that_were_formed_by_mistake_are_told_apart_in_their_logs() {
    let mut cluster = Cluster::planned(2);
    let own = |cluster: &Cluster, at: usize| cluster.nodes[at].peer.clone();
    for at in 0..2 {
        let alone = own(&cluster, at);
        cluster.nodes[at].start(&["--cluster", &alone]);
        until_in(ELECTION, "a cluster of one", || {
            let ready = cluster.nodes[at].get("/readyz");
            ready.is_some_and(|(status, _)| status == 200)
        });
    }
    let mistaken = "If two clusters were formed by mistake";
    let says = |cluster: &Cluster, at: usize| cluster.nodes[at].log().contains(mistaken);
    assert!(!says(&cluster, 0) && !says(&cluster, 1));
    cluster.nodes[1].kill();
    cluster.start(1);
    until_in(ELECTION, "the reason, on both sides", || {
        says(&cluster, 0) && says(&cluster, 1)
    });
    assert!(cluster.nodes[1].log().contains("--join and another --data"));
    assert_eq!(cluster.token(1, "a"), 1, "it goes on by itself");
}

/// A directory is copied before the cluster is formed, so that two nodes have one id; the list is even, besides.
#[test]
fn two_nodes_with_one_id_form_nothing() {
    let mut cluster = Cluster::planned(2);
    cluster.start(0);
    until_in(ELECTION, "an id", || {
        cluster.nodes[0].data.join("node").exists()
    });
    cluster.nodes[0].kill();
    copy(&cluster.nodes[0].data, &cluster.nodes[1].data);
    (0..2).for_each(|at| cluster.start(at));
    until_in(ELECTION, "the refusals", || {
        (0..2).all(|at| {
            cluster.nodes[at]
                .log()
                .contains("one of the two directories is a copy")
        })
    });
    for at in 0..2 {
        let log = cluster.nodes[at].log();
        assert!(log.contains("another --data"), "{log}");
        assert!(
            log.contains("a majority of 2 is 2") && log.contains("use 1 or 3"),
            "{log}"
        );
    }
}

/// A copy of a member's directory, and an older one that is put back in its place. The control is the directory itself.
#[test]
fn a_copied_or_older_directory_of_a_member_does_not_start() {
    let mut cluster = Cluster::of(3);
    let at = (cluster.until_ready() + 1) % 3;
    cluster.nodes[at].kill();
    let (data, older) = (
        cluster.nodes[at].data.clone(),
        cluster.dir.path().join("older"),
    );
    copy(&data, &older);
    let refused = |cluster: &mut Cluster| {
        cluster.start(at);
        assert_ne!(cluster.nodes[at].end(), Some(0));
        let log = cluster.nodes[at].log();
        assert!(log.contains("palisade cluster replace"), "{log}");
    };
    cluster.nodes[at].data = older.clone();
    refused(&mut cluster);
    cluster.nodes[at].data = data.clone();
    cluster.start(at);
    cluster.until_ready();
    assert_eq!(cluster.token(at, "a"), 1);
    cluster.nodes[at].kill();
    std::fs::remove_dir_all(&data).unwrap();
    copy(&older, &data);
    refused(&mut cluster);
}

#[test]
fn flags_that_cannot_work_are_refused_before_anything_is_opened() {
    for (flags, expected) in [
        (
            &["--cluster", "10.0.0.1:7421,10.0.0.2:7421"][..],
            "--peer-listen",
        ),
        (
            &[
                "--listen",
                "0.0.0.0:7420",
                "--peer-listen",
                "0.0.0.0:7421",
                "--cluster",
                "10.0.0.1:7421",
            ],
            "--cluster-key-file",
        ),
        (
            &["--cluster", "127.0.0.1:1", "--join", "http://127.0.0.1:2"],
            "--join",
        ),
        (
            &["--cluster", "127.0.0.1:1", "--clock", "manual"],
            "--clock",
        ),
        (
            &[
                "--cluster",
                "127.0.0.1:1,127.0.0.1:1",
                "--peer-listen",
                "127.0.0.1:1",
            ],
            "twice",
        ),
        (
            &["--cluster", "127.0.0.1:1", "--cluster-key-file", "/nowhere"],
            "/nowhere",
        ),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let mut command = palisade();
        command
            .args(["serve", "--data", "data"])
            .args(flags)
            .current_dir(dir.path());
        let output = command.output().unwrap();
        assert_ne!(output.status.code(), Some(0), "{flags:?}");
        let stderr = text(&output.stderr);
        assert!(stderr.contains(expected), "{flags:?}: {stderr}");
        assert!(!dir.path().join("data/identity").exists(), "{flags:?}");
    }
}

/// The current log file, and its content.
fn log_file(data: &Path) -> (PathBuf, Vec<u8>) {
    let files = std::fs::read_dir(data).unwrap();
    let logs = files
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|kind| kind == "seg"))
        .filter(|path| !path.ends_with("next.seg"));
    let last = logs.max().unwrap();
    let bytes = std::fs::read(&last).unwrap();
    (last, bytes)
}

/// All nodes die; one of them is set back to an earlier state of the same run, as a virtual machine may be, and the
/// former leader remembers its acknowledgements. In the second arm, the control, the leader has forgotten it, and they go
/// on together (R14).
#[test]
fn a_member_that_lost_what_it_had_acknowledged_is_refused_also_after_a_restart() {
    let lost = "lost what it had acknowledged, so it must not vote";
    for remembers in [true, false] {
        let mut cluster = Cluster::of(3);
        let first = cluster.until_ready();
        assert_eq!(cluster.token(first, "a"), 1);
        // A node that is late may get all of it in a snapshot, which no earlier log goes with.
        until_in(ELECTION, "members that have everything", || {
            let last = |at: usize| cluster.nodes[at].get("/v1/cluster").unwrap().1["last"].clone();
            last(0) == last(1) && last(1) == last(2)
        });
        let logs = [0, 1, 2].map(|at| log_file(&cluster.nodes[at].data));
        assert_eq!(cluster.token(first, "b"), 2);
        // Only a leader agrees with both of the others. On a busy machine it may be another one by now.
        let mut leader = None;
        until_in(ELECTION, "what the leader remembers", || {
            let remembers_both = |at: &usize| {
                let view = cluster.nodes[*at].get("/v1/cluster").unwrap().1;
                let members = view["members"].as_array().unwrap();
                let file = cluster.nodes[*at].data.join("peers");
                let text = std::fs::read_to_string(file).unwrap_or_default();
                let last = format!("agreed {}.", view["last"]);
                members.len() == 3 && text.matches(&last).count() == 2
            };
            leader = (0..3).find(remembers_both);
            leader.is_some()
        });
        let leader = leader.unwrap();
        let (behind, third) = ((leader + 1) % 3, (leader + 2) % 3);
        let (log, earlier) = &logs[behind];
        let remembered = cluster.nodes[leader].data.join("peers");
        (0..3).for_each(|at| cluster.nodes[at].kill());
        // In its place: any other way is noticed by the node itself.
        let (now, later) = log_file(&cluster.nodes[behind].data);
        assert!(now == *log && later != *earlier);
        let mut file = std::fs::File::options().write(true).open(log).unwrap();
        file.write_all(earlier).unwrap();
        if !remembers {
            std::fs::remove_file(remembered).unwrap();
        }
        cluster.start(leader);
        cluster.start(behind);
        if remembers {
            until_in(ELECTION, "the refusals", || {
                let says = |at: usize| cluster.nodes[at].log().contains(lost);
                says(leader) && says(behind)
            });
            // It has ended, and stays so.
            assert_ne!(cluster.nodes[behind].end(), Some(0));
            assert!(cluster.nodes[behind].data.join("lost").exists());
            cluster.start(behind);
            assert_ne!(cluster.nodes[behind].end(), Some(0));
            // The other two have everything.
            cluster.start(third);
            let others = [leader, third];
            until_in(ELECTION, "another leader", || {
                cluster
                    .leader()
                    .is_some_and(|leader| others.contains(&leader))
            });
            assert_eq!(cluster.token(third, "c"), 3);
        } else {
            cluster.until_ready();
            assert_eq!(cluster.token(leader, "c"), 3);
            assert!(!cluster.nodes[leader].log().contains(lost));
        }
    }
}

/// All nodes of a cluster have the same times (R6): both sides name both profiles. The control is the same node with the
/// right ones.
#[test]
fn a_node_with_other_timers_is_refused() {
    let mut cluster = Cluster::planned(3);
    let list = cluster.list.clone();
    for (at, timers) in [(0, "region"), (1, "region"), (2, "multi-region")] {
        cluster.nodes[at].start(&["--cluster", &list, "--timers", timers]);
    }
    until("the refusals", || {
        [0, 1, 2]
            .map(|at| cluster.nodes[at].log())
            .iter()
            .all(|log| {
                log.contains("--timers multi-region")
                    && log.contains("--timers region")
                    && log.contains("start every node of a cluster with the same --timers")
            })
    });
    cluster.nodes[2].kill();
    cluster.nodes[2].start(&["--cluster", &list, "--timers", "region"]);
    let leader = cluster.until_ready();
    let (_, view) = cluster.nodes[leader].get("/v1/cluster").unwrap();
    assert_eq!(view["timers"], "region");
    let status = cluster.output(&["cluster", "status"]);
    assert!(text(&status.stdout).contains("timers      region"));
    // One that joins is told at once.
    let at = cluster.plan();
    let url = cluster.nodes[leader].url();
    cluster.nodes[at].start(&["--join", &url, "--timers", "rack"]);
    assert_ne!(cluster.nodes[at].end(), Some(0));
    let log = cluster.nodes[at].log();
    assert!(log.contains("start it with --timers region"), "{log}");
}
