//! The bodies about a cluster.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// The role of a node in a cluster.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum ClusterRole {
    /// It carries out requests.
    Leader,
    /// It follows the leader, and votes.
    Follower,
    /// It stands for election.
    Candidate,
    /// It gets every entry, and does not vote.
    Learner,
    /// Replication has stopped on it.
    Stopped,
}

/// A cluster as one of its nodes sees it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterReply {
    /// The authority that the nodes are together.
    pub authority: String,
    /// Changes with every restore from a backup.
    pub incarnation: String,
    /// The node that answers: 16 hexadecimal digits.
    #[schema(pattern = "^[0-9a-f]{16}$")]
    pub node: String,
    /// Its role.
    pub role: ClusterRole,
    /// The term; it rises with every election.
    pub term: u64,
    /// The profile of times that all nodes share: `rack`, `region` or `multi-region`.
    #[serde(default)]
    pub timers: Option<String>,
    /// The node that leads, as far as this one knows.
    pub leader: Option<String>,
    /// The leader's URL for clients.
    pub leader_url: Option<String>,
    /// How many leaders this node has seen since it started.
    pub leader_changes: u64,
    /// How long the phases of this node's latest take-over took; `null` if it has not led since it started.
    #[serde(default)]
    pub takeover: Option<ClusterTakeover>,
    /// The last entry of this node's log.
    pub last: Option<u64>,
    /// The last entry that is known to be committed.
    pub committed: Option<u64>,
    /// The last entry that is applied.
    pub applied: Option<u64>,
    /// The last entry that this node's newest snapshot contains.
    pub snapshot: Option<u64>,
    /// Why this node's log takes nothing, if its disk is full.
    pub disk_full: Option<String>,
    /// Whether a change of its voters is half made: until it ends, a majority of those before it is needed, and one of
    /// those after it.
    #[serde(default)]
    pub changing: bool,
    /// The members, by node id.
    pub members: Vec<ClusterMember>,
}

/// The phases of a node's take-over in milliseconds of its own clock, one after the other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterTakeover {
    /// The term in which it leads.
    pub term: u64,
    /// From the former leader's last message until this node asked for votes; `null` if it had heard no leader.
    pub silence_ms: Option<u64>,
    /// Until a majority had voted; `null` if nobody had to vote.
    pub vote_ms: Option<u64>,
    /// Until an entry of its own term was committed, and everything before it applied.
    pub log_ms: u64,
    /// Until every live lease had its full time again: it serves.
    pub grace_ms: u64,
}

/// A member of a cluster.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterMember {
    /// Its id: 16 hexadecimal digits.
    #[schema(pattern = "^[0-9a-f]{16}$")]
    pub node: String,
    /// The address at which other nodes reach it.
    pub peer: String,
    /// Its URL for clients, if this node has heard it.
    pub url: Option<String>,
    /// Whether it votes.
    pub voter: bool,
    /// The last entry that it has on stable storage; known to the leader alone.
    pub matched: Option<u64>,
    /// Whether this node is connected to it; `null` for itself.
    pub connected: Option<bool>,
    /// Why not, or why it was refused.
    pub problem: Option<String>,
    /// The round trip of the last message to it, in microseconds.
    pub round_trip_us: Option<u64>,
    /// Why `timers` do not suit the round trips to it of the last seconds, and what to do.
    #[serde(default)]
    pub too_far: Option<String>,
    /// For how long it has answered nothing, or no entries, in milliseconds; `null` for the node that answers, and for one that
    /// never answered it. A node counts as alive up to 2,000.
    #[serde(default)]
    pub silent_ms: Option<u64>,
}

impl ClusterTakeover {
    /// The phases that took place, in their order, each with its milliseconds.
    pub fn phases(self) -> impl Iterator<Item = (&'static str, u64)> {
        let phases = [
            ("silence", self.silence_ms),
            ("vote", self.vote_ms),
            ("log", Some(self.log_ms)),
            ("grace", Some(self.grace_ms)),
        ];
        phases
            .into_iter()
            .filter_map(|(name, ms)| Some((name, ms?)))
    }
}

impl ClusterMember {
    /// A node that was silent for longer counts as one that is not there.
    pub const SILENT_MS: u64 = 2_000;

    /// Whether it answered lately, or is the node that shows this.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        let answers = self.silent_ms.is_some_and(|ms| ms < Self::SILENT_MS);
        self.connected.is_none_or(|connected| connected && answers)
    }
}

/// A new node.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddMemberBody {
    /// Its id, as it printed it: 16 hexadecimal digits.
    #[schema(pattern = "^[0-9a-f]{16}$")]
    pub node: String,
    /// The address at which other nodes reach it, such as `10.0.0.4:7421`.
    pub peer: String,
    /// Whether it gets a vote as soon as it has caught up.
    #[serde(default)]
    pub promote: bool,
    /// A member that it takes the place of, and that leaves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub replaces: Option<String>,
}

/// A member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct MemberBody {
    /// Its id: 16 hexadecimal digits.
    #[schema(pattern = "^[0-9a-f]{16}$")]
    pub node: String,
}

/// The node that is to lead.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct TransferBody {
    /// Its id; without it, the follower that is furthest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(pattern = "^[0-9a-f]{16}$")]
    pub to: Option<String>,
}

/// Whether this server can serve a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ReadyReply {
    /// `leading`, or `forwarding` to the leader.
    pub status: String,
    /// The leader's URL, if this server forwards.
    pub leader: Option<String>,
}
