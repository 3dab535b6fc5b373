//! The cluster as the server's interfaces show and change it.

use std::collections::BTreeSet;
use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use palisade_proto::Code;
use palisade_proto::json::{ClusterMember, ClusterReply, ClusterRole, ClusterTakeover};
use palisade_replica::node;
use palisade_replica::peers::{self, PeerStatus};
use palisade_replica::{NodeId, Role};
use palisade_server::net::{Changing, Cluster, ClusterNotChanged, Losing, MembershipChange};

use super::ClusterView;

/// A node's problem, described for people.
fn problem(peer: &PeerStatus) -> Option<String> {
    let silent = peer.silent.filter(|silent| *silent >= peers::SILENT);
    let silent = silent.map(|silent| format!("silent for {} s", silent.as_secs()));
    peer.refusal.clone().or(silent)
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

impl Cluster for ClusterView {
    fn view(&self) -> ClusterReply {
        let progress = self.progress();
        let status = self.peers.status();
        let voters: BTreeSet<NodeId> = progress.members.voters.iter().flatten().copied().collect();
        let leads = progress.role == Role::Leader;
        let leader = progress.leader;
        let members = progress.members.nodes.iter().map(|(node, address)| {
            let own = *node == self.node;
            let peer = status.get(node);
            ClusterMember {
                node: node.to_string(),
                peer: address.clone(),
                url: self.url_of(*node),
                voter: voters.contains(node),
                matched: if own && leads {
                    progress.last
                } else {
                    progress
                        .matched
                        .get(node)
                        .copied()
                        .flatten()
                        .map(|id| id.index)
                },
                connected: (!own).then(|| peer.is_some_and(|peer| peer.connected)),
                problem: peer.and_then(problem),
                too_far: peer
                    .filter(|_| !own)
                    .and_then(|peer| self.timers.contradicts(peer.shortest_round_trip?)),
                silent_ms: peer
                    .and_then(|peer| peer.silent)
                    .filter(|_| !own)
                    .map(millis),
                round_trip_us: peer
                    .and_then(|peer| peer.round_trip)
                    .map(|took| u64::try_from(took.as_micros()).unwrap_or(u64::MAX)),
            }
        });
        ClusterReply {
            authority: self.authority.to_string(),
            incarnation: self.incarnation.clone(),
            node: self.node.to_string(),
            role: match progress.role {
                Role::Leader => ClusterRole::Leader,
                Role::Follower => ClusterRole::Follower,
                Role::Candidate => ClusterRole::Candidate,
                Role::Learner => ClusterRole::Learner,
                Role::Stopped => ClusterRole::Stopped,
            },
            term: progress.vote.term,
            timers: Some(self.timers.to_string()),
            leader: leader.map(|leader| leader.to_string()),
            leader_url: leader.and_then(|leader| self.url_of(leader)),
            leader_changes: self.leader_changes.load(Ordering::Relaxed),
            takeover: self.engine.takeover().map(|takeover| ClusterTakeover {
                term: takeover.term,
                silence_ms: takeover.silence.map(millis),
                vote_ms: takeover.vote.map(millis),
                log_ms: millis(takeover.log),
                grace_ms: millis(takeover.grace),
            }),
            last: progress.last,
            committed: progress.committed.map(|id| id.index),
            applied: progress.applied.map(|id| id.index),
            snapshot: progress.snapshot.map(|id| id.index),
            disk_full: self.disk.full(),
            changing: progress.members.voters.len() > 1,
            members: members.collect(),
        }
    }

    fn change(&self, change: MembershipChange) -> Changing<'_> {
        Box::pin(async move {
            self.carry_out(change)
                .await
                .map_err(|error| ClusterNotChanged {
                    code: match error {
                        node::NotChanged::NotLeader => Code::NotLeader,
                        node::NotChanged::Refused(_) => Code::Refused,
                    },
                    why: error.to_string(),
                })
        })
    }

    fn loses(&self, url: Arc<str>) -> Losing {
        let mut lost = self.lost.subscribe();
        Box::pin(async move {
            for is_lost in [false, true] {
                let changed = lost.wait_for(|urls| urls.contains(&*url) == is_lost);
                // An error means that this node has ended.
                if changed.await.is_err() {
                    return pending().await;
                }
            }
        })
    }
}
