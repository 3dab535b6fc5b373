//! The meaning of several nodes' answers together.

use std::collections::BTreeSet;

use palisade_client::without_secrets;
use palisade_proto::json::{ClusterReply, ClusterRole};
use serde_json::json;

use super::finding::Finding;
use super::node::AskedNode;

/// The findings about all nodes together. `given` are the addresses of --authority; others are known from the cluster.
pub(super) fn all(nodes: &[AskedNode], given: &[String], client: &str) -> Vec<Finding> {
    let mut findings = versions(nodes, client);
    findings.extend(authorities(nodes));
    if let Some(view) = best_view(nodes) {
        findings.extend(cluster(view));
        findings.extend(addresses(view, given));
    }
    findings.extend(full_disks(nodes));
    findings.extend(keys(nodes));
    findings
}

fn shown(node: &AskedNode) -> String {
    without_secrets(&node.url)
}

/// A node's version, as far as it may be known to this client.
fn version(node: &AskedNode) -> Option<&str> {
    node.answers()?.version.as_deref()
}

fn versions(nodes: &[AskedNode], client: &str) -> Vec<Finding> {
    let known: Vec<(String, &str)> = nodes
        .iter()
        .filter_map(|node| Some((shown(node), version(node)?)))
        .collect();
    let all: BTreeSet<&str> = known.iter().map(|(_, version)| *version).collect();
    let list: Vec<String> = known
        .iter()
        .map(|(at, version)| format!("{at} {version}"))
        .collect();
    let data = json!({"client": client, "servers": all});
    let finding = match (all.len(), all.first()) {
        (0, _) | (_, None) => return Vec::new(),
        (1, Some(server)) if *server == client => {
            Finding::ok("version", "all", format!("client and servers have {client}"))
        }
        (1, Some(server)) => {
            Finding::note("version", "all", format!("this client has {client}, and the servers have {server}"))
                .next("install the same version here when it suits: servers and clients of different versions work together")
        }
        _ => Finding::warning("version", "all", format!("the nodes have different versions: {}", list.join(", ")))
            .next("finish the upgrade, one node after the other: palisade cluster check NODE; docs: operate/cluster.md"),
    };
    vec![finding.data(data)]
}

/// All addresses must lead to one authority: tokens of two are not to be compared.
fn authorities(nodes: &[AskedNode]) -> Option<Finding> {
    let known = nodes.iter().filter_map(|node| {
        let told = node
            .introduction()
            .map(|told| (&*told.reply.authority, &*told.reply.incarnation));
        let (authority, incarnation) = told.or_else(|| {
            node.cluster()
                .map(|view| (&*view.authority, &*view.incarnation))
        })?;
        Some((shown(node), authority, incarnation))
    });
    let known: Vec<_> = known.collect();
    let all: BTreeSet<_> = known
        .iter()
        .map(|(_, authority, incarnation)| (authority, incarnation))
        .collect();
    if all.len() < 2 {
        return None;
    }
    let list: Vec<String> = known
        .iter()
        .map(|(at, authority, incarnation)| {
            format!("{at} is of {authority}, incarnation {incarnation}")
        })
        .collect();
    let what = format!(
        "these addresses lead to different authorities: {}",
        list.join("; ")
    );
    Some(
        Finding::problem("identity", "all", what)
            .next("name the nodes of one cluster only: --authority URL,URL; if one was restored, the old nodes must not run"),
    )
}

/// The leader's view, or else that of a node with the highest term.
fn best_view(nodes: &[AskedNode]) -> Option<&ClusterReply> {
    let views = nodes.iter().filter_map(AskedNode::cluster);
    views.max_by_key(|view| {
        (
            view.role == ClusterRole::Leader && view.leader.is_some(),
            view.term,
        )
    })
}

fn cluster(view: &ClusterReply) -> Vec<Finding> {
    let voters = view.members.iter().filter(|member| member.voter).count();
    let is_leader = view.role == ClusterRole::Leader && view.leader.is_some();
    let silent: Vec<&str> = view
        .members
        .iter()
        .filter(|member| is_leader && !member.is_alive())
        .map(|member| &*member.node)
        .collect();
    let alive = voters
        - view
            .members
            .iter()
            .filter(|member| is_leader && member.voter && !member.is_alive())
            .count();
    let data = json!({"leader": view.leader, "voters": voters, "alive": alive, "term": view.term, "timers": view.timers});
    let at = &*view.authority;
    let finding = match (&view.leader, silent.is_empty()) {
        (None, _) => Finding::problem(
            "cluster",
            at,
            "no node leads: nothing is granted until a majority is connected",
        )
        .next("start the nodes that are down; docs: operate/runbook/no-majority.md"),
        (Some(_), false) => {
            let what = format!(
                "{} of {voters} nodes that vote are alive; silent: {}",
                alive,
                silent.join(", ")
            );
            Finding::warning("cluster", at, what).next(
                "palisade cluster status says where they are; docs: operate/runbook/hung-node.md",
            )
        }
        (Some(leader), true) if is_leader => Finding::ok(
            "cluster",
            at,
            format!("{leader} leads, and all {voters} nodes that vote are alive"),
        ),
        (Some(leader), true) => {
            let what = format!(
                "{leader} leads; it did not answer this client, so the other nodes' states are not known"
            );
            Finding::note("cluster", at, what)
                .next("give this client a way to every node: --authority URL,URL,URL")
        }
    };
    let mut findings = vec![finding.data(data)];
    let far = view.members.iter().filter_map(|member| {
        let why = member.too_far.as_ref()?;
        let what = format!("node {} is too far away: {why}", member.node);
        let finding = Finding::warning("cluster", &member.peer, what);
        Some(finding.next("docs: operate/cluster.md"))
    });
    findings.extend(far);
    if voters == 2 || (voters > 2 && voters % 2 == 0) {
        let what = format!(
            "{voters} nodes vote: no more may fail than with {}",
            voters - 1
        );
        findings.push(
            Finding::note("cluster", at, what)
                .next("add one: palisade serve --join URL, then palisade cluster add"),
        );
    }
    findings
}

/// Whether the addresses that were given are those of the members.
fn addresses(view: &ClusterReply, given: &[String]) -> Option<Finding> {
    let is_given = |url: &str| {
        given
            .iter()
            .any(|one| one.trim_end_matches('/') == url.trim_end_matches('/'))
    };
    let missing: Vec<&str> = view
        .members
        .iter()
        .filter_map(|member| member.url.as_deref())
        .filter(|url| !is_given(url))
        .collect();
    if missing.is_empty() {
        return None;
    }
    let what = format!("--authority does not name {}", missing.join(", "));
    let all: Vec<&str> = given.iter().map(|url| &**url).chain(missing).collect();
    let all = without_secrets(&all.join(","));
    Some(Finding::note("address", "all", what).next(format!(
        "so that a client finds the leader whichever node is down: --authority {all}"
    )))
}

fn full_disks(nodes: &[AskedNode]) -> Vec<Finding> {
    let full = nodes.iter().filter_map(|node| {
        let why = node.cluster()?.disk_full.as_ref()?;
        Some(
            Finding::problem(
                "disk",
                &shown(node),
                format!("its log finds no room: {why}"),
            )
            .next("free some of the disk; docs: operate/runbook/disk-full.md"),
        )
    });
    full.collect()
}

/// A node that lacks a key of another one refuses the renewals of the leases that this key is for.
fn keys(nodes: &[AskedNode]) -> Option<Finding> {
    let known = nodes.iter().filter_map(|node| {
        let keys = &node.metrics()?.keys;
        (!keys.is_empty()).then(|| (shown(node), keys))
    });
    let known: Vec<_> = known.collect();
    if known.len() < 2 {
        return None;
    }
    let all: BTreeSet<&String> = known.iter().flat_map(|(_, keys)| keys.iter()).collect();
    let lacking: Vec<String> = known
        .iter()
        .filter(|(_, keys)| keys.len() < all.len())
        .map(|(at, keys)| {
            let lacks: Vec<&str> = all
                .iter()
                .filter(|key| !keys.contains(key))
                .map(|key| &***key)
                .collect();
            format!("{at} lacks {}", lacks.join(", "))
        })
        .collect();
    let data = json!({"fingerprints": all});
    let finding = if lacking.is_empty() {
        Finding::ok("keys", "all", "every node accepts the same lock_tokens")
    } else {
        let what = format!(
            "the nodes do not accept the same lock_tokens: {}; holders of such a lease lose it when that node leads",
            lacking.join("; ")
        );
        Finding::warning("keys", "all", what)
            .next("copy lock_token.key from the data directory of the node that has it, and restart the others; or remove it \
                   from all once no lease from before the cluster is left")
    };
    Some(finding.data(data))
}

#[cfg(test)]
mod tests {
    use palisade_core::Span;
    use palisade_proto::json::{ClusterMember, HealthReply, WhoamiReply};

    use super::super::finding::Severity;
    use super::super::node::{Metrics, NodeAnswers, Whoami};
    use super::super::others;
    use super::*;
    use crate::cluster::Error;

    fn nothing<T>() -> Result<T, Error> {
        Err(Error::Unreachable("x".to_owned()))
    }

    /// A node of this authority and version, with these keys.
    fn node(at: usize, authority: &str, version: &str, keys: &[&str]) -> AskedNode {
        let keys: Vec<String> = keys
            .iter()
            .map(|key| format!("palisade_lock_token_key_info{{fingerprint=\"{key}\"}} 1\n"))
            .collect();
        AskedNode {
            url: format!("http://127.0.0.{at}:7420"),
            addresses: Vec::new(),
            answers: Ok(Box::new(NodeAnswers {
                health: Ok(HealthReply {
                    status: "serving".to_owned(),
                    log_full: false,
                    certificate_expires_at: None,
                }),
                took: Span::ZERO,
                ready: nothing(),
                whoami: Ok(Whoami {
                    reply: WhoamiReply {
                        principal: None,
                        authority: authority.to_owned(),
                        incarnation: "i".to_owned(),
                        version: version.to_owned(),
                        time: String::new(),
                    },
                    asked_ms: 0,
                    heard_ms: 0,
                }),
                cluster: nothing(),
                metrics: Ok(Metrics::of(&keys.concat())),
                version: Some(version.to_owned()),
                strange: Vec::new(),
            })),
        }
    }

    fn states(findings: &[Finding], about: &str) -> Vec<Severity> {
        let of = findings.iter().filter(|finding| finding.about == about);
        of.map(|finding| finding.state).collect()
    }

    #[test]
    fn versions_authorities_and_keys_that_differ_are_found() {
        let three = |at: usize| (format!("http://127.0.0.{at}:7420"), ["a", "1.0", "k"]);
        let judge = |odd: [&str; 3]| {
            let usual = |at| node(at, three(at).1[0], three(at).1[1], &[three(at).1[2]]);
            let nodes = [usual(1), usual(2), node(3, odd[0], odd[1], &[odd[2]])];
            all(&nodes, &[], "1.0")
        };
        let well = judge(["a", "1.0", "k"]);
        assert!(
            well.iter().all(|finding| finding.state == Severity::Ok),
            "{well:?}"
        );
        assert_eq!(states(&well, "keys"), [Severity::Ok]);
        assert_eq!(
            states(&judge(["b", "1.0", "k"]), "identity"),
            [Severity::Problem]
        );
        assert_eq!(
            states(&judge(["a", "1.1", "k"]), "version"),
            [Severity::Warning]
        );
        assert_eq!(
            states(&judge(["a", "1.0", "l"]), "keys"),
            [Severity::Warning]
        );
        let newer = all(&[node(1, "a", "1.1", &[])], &[], "1.0");
        assert_eq!(states(&newer, "version"), [Severity::Note]);
    }

    /// The leader of three, and the silence of the others.
    fn view(leads: bool, silent: [u64; 2]) -> ClusterReply {
        let member = |at: usize| ClusterMember {
            node: at.to_string(),
            peer: String::new(),
            url: Some(format!("http://127.0.0.{at}:7420")),
            voter: true,
            matched: None,
            connected: (at > 1).then_some(true),
            problem: None,
            round_trip_us: None,
            too_far: None,
            silent_ms: (at > 1).then(|| silent[at - 2]),
        };
        ClusterReply {
            authority: "a".into(),
            incarnation: "i".into(),
            node: "1".into(),
            role: if leads {
                ClusterRole::Leader
            } else {
                ClusterRole::Candidate
            },
            term: 1,
            timers: Some("region".to_owned()),
            leader: leads.then(|| "1".into()),
            leader_url: None,
            leader_changes: 0,
            takeover: None,
            last: None,
            committed: None,
            applied: None,
            snapshot: None,
            disk_full: None,
            changing: false,
            members: (1..=3).map(member).collect(),
        }
    }

    #[test]
    fn a_silent_node_and_a_missing_leader_are_found() {
        for (view, expected) in [
            (view(true, [20, 20]), Severity::Ok),
            (view(true, [20, 9_000]), Severity::Warning),
            (view(false, [20, 20]), Severity::Problem),
        ] {
            assert_eq!(states(&cluster(&view), "cluster"), [expected]);
        }
    }

    #[test]
    fn a_node_that_knows_the_leader_alone_leads_to_all_of_them() {
        let seen = |at: usize, view: ClusterReply| {
            let mut node = node(at, "a", "1.0", &[]);
            if let Ok(answers) = &mut node.answers {
                answers.cluster = Ok(view);
            }
            node
        };
        let urls = |ats: &[usize]| -> Vec<String> {
            ats.iter()
                .map(|at| format!("http://127.0.0.{at}:7420"))
                .collect()
        };
        let leader = view(true, [20, 20]);
        let joined = ClusterReply {
            node: "2".into(),
            role: ClusterRole::Follower,
            leader_url: Some("http://127.0.0.1:7420".into()),
            members: Vec::new(),
            ..leader.clone()
        };
        let mut asked = vec![seen(2, joined)];
        assert_eq!(others(&asked), urls(&[1]));
        asked.push(seen(1, leader));
        assert_eq!(others(&asked), urls(&[3]));
    }

    #[test]
    fn an_address_that_a_client_does_not_have_is_named() {
        let view = view(true, [20, 20]);
        let all = [1, 2, 3].map(|at| format!("http://127.0.0.{at}:7420"));
        assert_eq!(addresses(&view, &all), None);
        let found = addresses(&view, &all[..2]).unwrap();
        assert!(found.what.ends_with(&all[2]), "{}", found.what);
        assert!(found.next.unwrap().ends_with(&all.join(",")));
    }
}
