//! A node is alive if it answers: one that hangs keeps its connections, and counts for nothing.

use rustix::process::Signal;

use crate::common::cluster::{Cluster, ELECTION};
use crate::common::{text, until_in};

fn id(cluster: &Cluster, at: usize) -> String {
    let view = cluster.nodes[at].get("/v1/cluster").unwrap().1;
    view["node"].as_str().unwrap().to_owned()
}

/// The control is the same cluster before the node hangs, and after it goes on.
#[test]
fn a_hung_node_is_seen_and_no_removal_counts_on_it() {
    let cluster = Cluster::of(3);
    let leader = cluster.until_ready();
    let (hung, live) = ((leader + 1) % 3, (leader + 2) % 3);
    let (hung_id, live_id) = (id(&cluster, hung), id(&cluster, live));
    let may_go = |of: &str| {
        let checked = cluster.output(&["cluster", "check", of, "--json"]);
        checked.status.success()
    };
    until_in(ELECTION, "a cluster that bears a loss", || may_go(&live_id));
    cluster.nodes[hung].send(Signal::STOP);
    until_in(ELECTION, "the silence, wherever it is shown", || {
        let view = cluster.nodes[leader].get("/v1/cluster").unwrap().1;
        let members = view["members"].as_array().unwrap();
        let member = members.iter().find(|member| member["node"] == *hung_id);
        let member = member.unwrap();
        let is_silent = member["silent_ms"].as_u64().is_some_and(|ms| ms > 3_000);
        let problem = member["problem"].as_str().unwrap_or_default();
        let metric = format!("palisade_cluster_peer_alive{{node=\"{hung_id}\"}} 0");
        is_silent
            && problem.contains("silent for")
            && cluster.nodes[leader].text("/metrics").contains(&metric)
            && cluster.nodes[leader].log().contains("has answered nothing")
    });
    // One of these addresses is that of the hung node.
    let shown = cluster.output(&["cluster", "status"]);
    assert!(
        text(&shown.stdout).contains("SILENT for"),
        "{}",
        text(&shown.stdout)
    );
    let refused = cluster.output(&["cluster", "remove", &live_id]);
    let why = text(&refused.stderr);
    assert!(
        !refused.status.success() && why.contains("no majority"),
        "{why}"
    );
    assert!(why.contains(&hung_id), "it names the node: {why}");
    assert!(!may_go(&live_id), "the others would be no majority");
    assert_eq!(cluster.token(leader, "beside-it"), 1, "nothing has changed");
    let logged = cluster.nodes[leader].log();
    let lines = logged
        .lines()
        .filter(|line| line.contains("has answered nothing"));
    assert_eq!(
        lines.filter(|line| line.contains(&hung_id)).count(),
        1,
        "{logged}"
    );

    cluster.nodes[hung].send(Signal::CONT);
    until_in(ELECTION, "a cluster that bears a loss again", || {
        may_go(&live_id)
    });
}

#[test]
fn a_follower_of_a_leader_without_a_majority_is_not_ready() {
    let mut cluster = Cluster::of(5);
    let leader = cluster.until_ready();
    let follower = (leader + 1) % 5;
    let left = [leader, follower];
    (0..5)
        .filter(|at| !left.contains(at))
        .for_each(|at| cluster.nodes[at].kill());
    until_in(ELECTION, "the news that nobody leads, at both", || {
        left.iter().all(|at| {
            let node = &cluster.nodes[*at];
            let (status, _) = node.get("/readyz").unwrap();
            let view = node.get("/v1/cluster").unwrap().1;
            let metrics = node.text("/metrics");
            status == 503
                && view["leader"].is_null()
                && metrics.contains("palisade_cluster_has_leader 0")
        })
    });
}

/// Two changes at once: one waits for the other, or gets an error that asks it to try again. The engine has texts of its
/// own.
#[test]
fn two_changes_of_the_members_at_once_are_told_in_sentences() {
    let cluster = Cluster::of(5);
    let leader = cluster.until_ready();
    let others = (0..5).filter(|at| *at != leader).take(2);
    let ids: Vec<String> = others.map(|at| id(&cluster, at)).collect();
    let removals: Vec<_> = std::thread::scope(|scope| {
        let cluster = &cluster;
        let remove = |id: &String| {
            let id = id.clone();
            scope.spawn(move || cluster.output(&["cluster", "remove", &id]))
        };
        let removals: Vec<_> = ids.iter().map(remove).collect();
        removals
            .into_iter()
            .map(|one| one.join().unwrap())
            .collect()
    });
    for removed in removals {
        let said = text(&removed.stdout) + &text(&removed.stderr);
        assert!(!said.contains("Some(") && !said.contains("LogId"), "{said}");
        assert!(!said.contains("log id"), "{said}");
        assert!(removed.status.success(), "{said}");
    }
}
