//! The data that the nodes of a cluster agree on, in the words of Raft (Ongaro and Ousterhout, "In Search of an
//! Understandable Consensus Algorithm", 2014).

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

/// A node of a cluster. Drawn at random when its directory is made, and never used again: a node that lost its log
/// comes back under another id.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId(pub u64);

impl fmt::Display for NodeId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for NodeId {
    type Err = &'static str;

    fn from_str(text: &str) -> Result<NodeId, Self::Err> {
        let digits = text.len() == 16 && text.bytes().all(|byte| byte.is_ascii_hexdigit());
        let raw = u64::from_str_radix(text, 16)
            .ok()
            .filter(|raw| digits && *raw != 0);
        raw.map(NodeId)
            .ok_or("a node's id is 16 hexadecimal digits")
    }
}

impl From<u64> for NodeId {
    fn from(raw: u64) -> NodeId {
        NodeId(raw)
    }
}

/// One leadership: a term, and the node that was a candidate or a leader in it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct Leader {
    /// Rises with every election.
    pub term: u64,
    /// The node.
    pub node: NodeId,
}

/// A place in the log. Two entries with the same one are the same.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct LogId {
    /// The leadership that wrote it.
    pub leader: Leader,
    /// From 0, without gaps.
    pub index: u64,
}

impl fmt::Display for LogId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Leader { term, node } = self.leader;
        write!(f, "entry {} of term {term}, node {node}", self.index)
    }
}

/// The candidate that a node last voted for, or the leader that it follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Vote {
    /// The candidate.
    pub leader: Leader,
    /// Whether a quorum elected it.
    pub committed: bool,
}

/// The members of the cluster.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    /// The voters: one set, or two while the cluster changes from one to the other (joint consensus).
    pub voters: Vec<BTreeSet<NodeId>>,
    /// The address at which its peers reach each node, learners included.
    pub nodes: BTreeMap<NodeId, String>,
}

/// An entry of the log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    /// Its place in the log.
    pub id: LogId,
    /// Its content.
    pub payload: Payload,
}

/// The content of an entry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Payload {
    /// Nothing: a new leader's first entry.
    Blank,
    /// A batch of the pipeline.
    Batch(Arc<[u8]>),
    /// The members of the cluster from here on.
    Members(Members),
}

impl Payload {
    /// About how many bytes its entry takes, in memory and in the log; an upper bound for the log.
    #[must_use]
    pub fn bytes(&self) -> usize {
        64 + match self {
            Payload::Blank => 0,
            Payload::Batch(batch) => batch.len(),
            Payload::Members(Members { voters, nodes }) => {
                let voters = voters.iter().map(|set| 16 + set.len() * 10);
                let nodes = nodes.values().map(|address| 20 + address.len());
                voters.chain(nodes).sum()
            }
        }
    }
}
