//! Clusters that must not be formed, and nodes that must not come in: each is told why, and what to do.

use crate::common::cluster::Cluster;
use crate::common::{palisade, text, until};

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
    until("the refusals", || {
        cluster.nodes[0].log().matches("key").count() >= 2
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
        text(&refused.stderr).contains("is no member"),
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
    // A member's directory is no single server's.
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
