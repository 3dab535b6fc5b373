//! `palisade cluster check`: whether a node may be stopped or removed now.

use palisade_proto::Code;
use palisade_proto::json::{ClusterMember, ClusterReply, ClusterRole};
use serde_json::json;

use super::failure::Failure;
use super::output::Out;

/// It must not be stopped, or not be removed.
const NOT_NOW: u8 = 1;

/// The reason while a change of the voters is half made.
pub(super) const CHANGING: &str = "the members are being changed: until that ends, a majority of those before is needed, and one of those after";

/// The verdict of one view about one node.
struct NodeVerdict {
    /// Of the nodes that vote, those that would be left running, how many of them are needed, and how many vote.
    stopped: Majority,
    /// The same, if it were no member any more.
    removed: Majority,
}

#[derive(Clone, Copy)]
struct Majority {
    alive: usize,
    voters: usize,
}

impl Majority {
    fn holds(self) -> bool {
        self.alive > self.voters / 2
    }

    fn text(self) -> String {
        let verdict = if self.holds() { "yes" } else { "NO" };
        let Majority { alive, voters } = self;
        let needed = voters / 2 + 1;
        format!(
            "{verdict}: {alive} of {voters} nodes that vote would be alive, and {needed} are needed"
        )
    }
}

impl NodeVerdict {
    fn of(view: &ClusterReply, node: &str) -> NodeVerdict {
        let voters = view.members.iter().filter(|member| member.voter);
        let rest: Vec<&ClusterMember> = voters
            .clone()
            .filter(|member| member.node != node)
            .collect();
        let alive = rest.iter().filter(|member| member.is_alive()).count();
        let of = |voters| Majority { alive, voters };
        NodeVerdict {
            stopped: of(voters.count()),
            removed: of(rest.len()),
        }
    }
}

pub(super) fn carry_out(view: &ClusterReply, node: &str, out: Out) -> Result<(), Failure> {
    if view.role != ClusterRole::Leader || view.leader.is_none() {
        let why = "no node leads that could be asked, so no other node may be stopped or removed";
        return Err(Failure::new(NOT_NOW, Code::NotLeader, why.to_owned())
            .hint("see `palisade cluster status`, with the addresses of all nodes"));
    }
    if view.changing {
        return Err(Failure::new(NOT_NOW, Code::Refused, CHANGING.to_owned())
            .hint("type this again in a moment; if it does not end, `palisade cluster status` says which node is missing"));
    }
    if !view.members.iter().any(|member| member.node == node) {
        let why = format!("node {node} is not a member; see `palisade cluster status`");
        return Err(Failure::new(NOT_NOW, Code::Refused, why));
    }
    let NodeVerdict { stopped, removed } = NodeVerdict::of(view, node);
    let others = view.members.iter().filter(|member| member.node != node);
    let silent: Vec<&ClusterMember> = others.filter(|member| !member.is_alive()).collect();
    if out.json {
        out.value(&json!({
            "node": node,
            "may_stop": stopped.holds(),
            "may_remove": removed.holds(),
            "alive_without_it": stopped.alive,
            "voters": stopped.voters,
            "not_alive": silent.iter().map(|member| &member.node).collect::<Vec<_>>(),
        }))?;
    } else {
        let mut text = format!("stop    {}\nremove  {}", stopped.text(), removed.text());
        for member in silent {
            let silence = match member.silent_ms {
                Some(ms) => format!("silent for {} s", ms / 1_000),
                None => "it has never answered".to_owned(),
            };
            text.push_str(&format!(
                "\nnode {} at {} is not alive: {silence}",
                member.node, member.peer
            ));
        }
        out.text(&text)?;
    }
    if stopped.holds() && removed.holds() {
        Ok(())
    } else {
        let why =
            format!("node {node} must not be stopped or removed now: too few others are alive");
        Err(Failure::new(NOT_NOW, Code::Refused, why)
            .hint("start or mend the nodes that are not alive, then type this again"))
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    fn view(alive: &[bool]) -> ClusterReply {
        let member = |(at, alive): (usize, &bool)| ClusterMember {
            node: at.to_string(),
            peer: String::new(),
            url: None,
            voter: true,
            matched: None,
            connected: (at > 0).then_some(true),
            problem: None,
            round_trip_us: None,
            too_far: None,
            silent_ms: (at > 0).then_some(if *alive { 20 } else { 12_000 }),
        };
        ClusterReply {
            authority: String::new(),
            incarnation: String::new(),
            node: "0".into(),
            role: ClusterRole::Leader,
            term: 1,
            timers: Some("region".to_owned()),
            leader: Some("0".into()),
            leader_url: None,
            leader_changes: 0,
            takeover: None,
            last: None,
            committed: None,
            applied: None,
            snapshot: None,
            disk_full: None,
            changing: false,
            members: alive.iter().enumerate().map(member).collect(),
        }
    }

    /// The control is the same cluster before or after.
    #[test]
    fn no_node_may_be_stopped_while_the_members_are_changed() {
        for changing in [false, true] {
            let view = ClusterReply {
                changing,
                ..view(&[true, true, true])
            };
            let verdict = carry_out(&view, "1", Out::new(true));
            assert_eq!(verdict.is_ok(), !changing);
        }
    }

    /// Connected or not, a node that hangs is none that is left.
    #[test]
    fn a_node_may_be_stopped_or_removed_while_a_majority_is_alive_without_it() {
        for (alive, node, stop, remove) in [
            (&[true, true, true][..], "1", true, true),
            (&[true, true, false], "1", false, false),
            (&[true, true, false], "0", false, false),
            (&[true, true, false], "2", true, true),
            (&[true, true, true, false], "1", false, true),
            (&[true, true, true, false, false], "1", false, false),
            (&[true, true, true, true, false], "1", true, true),
        ] {
            let NodeVerdict { stopped, removed } = NodeVerdict::of(&view(alive), node);
            let verdict = (stopped.holds(), removed.holds());
            assert_eq!(verdict, (stop, remove), "{alive:?} without {node}");
        }
    }
}
