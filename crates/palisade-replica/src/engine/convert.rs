//! Between this crate's words and the engine's.

use openraft::impls::leader_id_adv::LeaderId;
use openraft::{AsyncRuntime, EntryPayload, Membership, StoredMembership};

use super::types::{Batch, Types};
use crate::entry::{Entry, Leader, LogId, Members, NodeId, Payload, Vote};

type EngineLeaderId = LeaderId<u64, NodeId>;
type RaftEntry<R> = <Types<R> as openraft::RaftTypeConfig>::Entry;

fn leader(id: EngineLeaderId) -> Leader {
    Leader {
        term: id.term,
        node: id.node_id,
    }
}

pub(super) fn raft_leader(leader: Leader) -> EngineLeaderId {
    EngineLeaderId {
        term: leader.term,
        node_id: leader.node,
    }
}

pub(super) fn log_id(id: openraft::LogId<EngineLeaderId>) -> LogId {
    LogId {
        leader: leader(id.leader_id),
        index: id.index,
    }
}

pub(super) fn raft_log_id(id: LogId) -> openraft::LogId<EngineLeaderId> {
    openraft::LogId {
        leader_id: raft_leader(id.leader),
        index: id.index,
    }
}

pub(super) fn vote(vote: openraft::Vote<EngineLeaderId>) -> Vote {
    Vote {
        leader: leader(*vote.leader_id()),
        committed: vote.is_committed(),
    }
}

pub(super) fn raft_vote(vote: Vote) -> openraft::Vote<EngineLeaderId> {
    let Leader { term, node } = vote.leader;
    if vote.committed {
        openraft::Vote::new_committed(term, node)
    } else {
        openraft::Vote::new(term, node)
    }
}

pub(super) fn members(membership: &Membership<NodeId, String>) -> Members {
    let nodes = membership.nodes();
    Members {
        voters: membership.get_joint_config().clone(),
        nodes: nodes
            .map(|(node, address)| (*node, address.clone()))
            .collect(),
    }
}

/// A membership that came from the log or from another node. One that contradicts itself is taken without the nodes
/// that it does not know.
pub(super) fn membership(members: Members) -> Membership<NodeId, String> {
    let Members { mut voters, nodes } = members;
    for set in &mut voters {
        set.retain(|node| nodes.contains_key(node));
    }
    voters.retain(|set| !set.is_empty());
    Membership::new(voters, nodes).unwrap_or_default()
}

pub(super) fn stored(
    members: (Option<LogId>, Members),
) -> StoredMembership<EngineLeaderId, NodeId, String> {
    StoredMembership::new(members.0.map(raft_log_id), membership(members.1))
}

pub(super) fn entry<R: AsyncRuntime>(entry: RaftEntry<R>) -> Entry {
    Entry {
        id: log_id(entry.log_id),
        payload: match entry.payload {
            EntryPayload::Blank => Payload::Blank,
            EntryPayload::Normal(Batch(batch)) => Payload::Batch(batch),
            EntryPayload::Membership(membership) => Payload::Members(members(&membership)),
        },
    }
}

pub(super) fn raft_entry<R: AsyncRuntime>(entry: Entry) -> RaftEntry<R> {
    openraft::Entry {
        log_id: raft_log_id(entry.id),
        payload: match entry.payload {
            Payload::Blank => EntryPayload::Blank,
            Payload::Batch(batch) => EntryPayload::Normal(Batch(batch)),
            Payload::Members(members) => EntryPayload::Membership(membership(members)),
        },
    }
}
