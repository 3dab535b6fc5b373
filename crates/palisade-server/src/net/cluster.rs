//! The cluster that a server belongs to, as its interfaces show and change it.

use std::pin::Pin;
use std::sync::Arc;

use palisade_proto::Code;
use palisade_proto::json::{AddMemberBody, ClusterReply};

/// A node's view of its cluster, and the way to change it.
pub trait Cluster: Send + Sync + 'static {
    /// The cluster as this node sees it now. Cheap.
    fn view(&self) -> ClusterReply;

    /// Changes the members or the leader. Only the leader can do this; returns when it is done.
    fn change(&self, change: MembershipChange) -> Changing<'_>;

    /// Ends when this node loses the one with this URL: it does not get through to it, though perhaps no connection was
    /// closed. One that is lost already is to be found again first.
    fn loses(&self, url: Arc<str>) -> Losing;
}

/// Waits for the loss of a node.
pub type Losing = Pin<Box<dyn Future<Output = ()> + Send>>;

/// A change on its way.
pub type Changing<'a> = Pin<Box<dyn Future<Output = Result<(), ClusterNotChanged>> + Send + 'a>>;

/// A change of the members, or of who leads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MembershipChange {
    /// A new node comes in: it gets every entry, and a vote when it has caught up if it asks for one.
    Add(AddMemberBody),
    /// A node that has caught up gets a vote.
    Promote(String),
    /// A node leaves.
    Remove(String),
    /// Another node is to lead: the one named, or the one that is furthest.
    Transfer(Option<String>),
}

/// Why the cluster did not change.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClusterNotChanged {
    /// The code to answer with.
    pub code: Code,
    /// The obstacle, and the next step.
    pub why: String,
}
