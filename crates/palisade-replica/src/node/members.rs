//! Changes of the members, and of who leads, with the checks that an operator expects (rules R18, R19).

use std::collections::BTreeSet;
use std::time::Duration;

use tokio::time::{sleep, timeout};

use crate::engine::{Engine, Progress, Refused, Role, Tokio};
use crate::entry::NodeId;

/// A new node that has not caught up in this time stays a learner.
const CATCH_UP: Duration = Duration::from_secs(120);

/// A node that is asked to lead does so in this time, or not at all.
const HAND_OVER: Duration = Duration::from_secs(3);

/// How often progress is looked at.
const LOOK: Duration = Duration::from_millis(20);

/// Why the members did not change.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NotChanged {
    /// Another node leads, so it has to be asked.
    #[error("this node does not lead")]
    NotLeader,
    /// The message says what is in the way, and the next step.
    #[error("{0}")]
    Refused(String),
}

impl From<Refused> for NotChanged {
    fn from(Refused(why): Refused) -> NotChanged {
        NotChanged::Refused(why)
    }
}

fn refuse<T>(why: impl Into<String>) -> Result<T, NotChanged> {
    Err(NotChanged::Refused(why.into()))
}

/// The leader's way to change its cluster.
pub struct Membership<'a> {
    engine: &'a Engine<Tokio>,
    node: NodeId,
    is_alive: &'a (dyn Fn(NodeId) -> bool + Sync),
}

impl<'a> Membership<'a> {
    /// Of the cluster that `node` leads. `is_alive` says whether a connection to another node stands.
    pub fn new(
        engine: &'a Engine<Tokio>,
        node: NodeId,
        is_alive: &'a (dyn Fn(NodeId) -> bool + Sync),
    ) -> Membership<'a> {
        Membership {
            engine,
            node,
            is_alive,
        }
    }

    fn leading(&self) -> Result<Progress, NotChanged> {
        let progress = self.engine.progress();
        match progress.role {
            Role::Leader => Ok(progress),
            _ => Err(NotChanged::NotLeader),
        }
    }

    /// Adds a node, which gets every entry and has no vote. Returns when it has caught up. Harmless to repeat. The
    /// address must be no other member's, except that of the one it `replaces`.
    ///
    /// # Errors
    /// [`NotChanged`]. A node that did not catch up stays a learner.
    pub async fn add(
        &self,
        node: NodeId,
        peer: &str,
        replaces: Option<NodeId>,
    ) -> Result<(), NotChanged> {
        let progress = self.leading()?;
        let others = progress.members.nodes.iter();
        let mut others = others.filter(|(id, _)| **id != node && Some(**id) != replaces);
        if let Some((other, _)) = others.find(|(_, at)| *at == peer) {
            return refuse(format!(
                "{peer} is the address of node {other}; if its disk is lost, replace it: \
                 `palisade cluster replace {other} {node}`"
            ));
        }
        match progress.members.nodes.get(&node) {
            Some(known) if known == peer => {}
            Some(known) => {
                return refuse(format!(
                    "node {node} is a member already, at {known}, not at {peer}"
                ));
            }
            None => self.engine.add_learner(node, peer).await?,
        }
        let until = progress.last;
        let caught_up = async {
            loop {
                let progress = self.leading()?;
                let matched = progress.matched.get(&node).copied().flatten();
                if matched.map(|id| id.index) >= until {
                    return Ok(());
                }
                sleep(LOOK).await;
            }
        };
        match timeout(CATCH_UP, caught_up).await {
            Ok(done) => done,
            Err(_) => refuse(format!(
                "node {node} is a learner now and has not caught up yet: see `palisade cluster status`, then \
                 `palisade cluster promote {node}`"
            )),
        }
    }

    /// Gives a node a vote, and takes it from another one that leaves. Harmless to repeat.
    ///
    /// # Errors
    /// [`NotChanged`].
    pub async fn promote(
        &self,
        node: NodeId,
        instead_of: Option<NodeId>,
    ) -> Result<(), NotChanged> {
        let progress = self.leading()?;
        if !progress.members.nodes.contains_key(&node) {
            return refuse(format!(
                "node {node} is no member; start it with --join, or add it first"
            ));
        }
        if instead_of == Some(self.node) {
            self.transfer(None).await?;
            return Err(NotChanged::NotLeader);
        }
        let mut voters = voters(&progress);
        voters.insert(node);
        if let Some(old) = instead_of {
            voters.remove(&old);
        }
        self.check_majority(&voters)?;
        Ok(self.engine.set_voters(voters).await?)
    }

    /// Removes a node. A leader hands over first; then the new leader has to be asked.
    ///
    /// # Errors
    /// [`NotChanged`], also if the nodes that stay and are alive would be no majority (rule R19).
    pub async fn remove(&self, node: NodeId) -> Result<(), NotChanged> {
        let progress = self.leading()?;
        if !progress.members.nodes.contains_key(&node) {
            return refuse(format!(
                "node {node} is no member; see `palisade cluster status`"
            ));
        }
        let mut voters = voters(&progress);
        if !voters.remove(&node) {
            return Ok(self.engine.remove_learner(node).await?);
        }
        if voters.is_empty() {
            return refuse("the last node cannot be removed; stop it instead");
        }
        self.check_majority(&voters)?;
        if node == self.node {
            self.transfer(None).await?;
            return Err(NotChanged::NotLeader);
        }
        Ok(self.engine.set_voters(voters).await?)
    }

    /// Lets another node lead: `to`, or the voter that is furthest. Returns when this one leads no longer.
    ///
    /// # Errors
    /// [`NotChanged`], also if the other node does not take over.
    pub async fn transfer(&self, to: Option<NodeId>) -> Result<(), NotChanged> {
        let progress = self.leading()?;
        let to = match to {
            Some(to) if to == self.node => return Ok(()),
            Some(to) => to,
            None => match self.furthest(&progress) {
                Some(furthest) => furthest,
                None => return refuse("no other node that votes is connected to this one"),
            },
        };
        if !voters(&progress).contains(&to) {
            return refuse(format!("node {to} has no vote, so it cannot lead"));
        }
        if !(self.is_alive)(to) {
            return refuse(format!("node {to} is not connected to this one"));
        }
        self.engine.hand_over(to).await;
        let handed_over = async {
            while self.engine.progress().role == Role::Leader {
                sleep(LOOK).await;
            }
        };
        match timeout(HAND_OVER, handed_over).await {
            Ok(()) => Ok(()),
            Err(_) => refuse(format!("node {to} did not take over; this one still leads")),
        }
    }

    fn furthest(&self, progress: &Progress) -> Option<NodeId> {
        let others = voters(progress)
            .into_iter()
            .filter(|node| *node != self.node);
        let alive = others.filter(|node| (self.is_alive)(*node));
        alive.max_by_key(|node| progress.matched.get(node).copied().flatten())
    }

    fn check_majority(&self, voters: &BTreeSet<NodeId>) -> Result<(), NotChanged> {
        let alive = |node: &&NodeId| **node == self.node || (self.is_alive)(**node);
        let (all, alive) = (voters.len(), voters.iter().filter(alive).count());
        if alive > all / 2 {
            return Ok(());
        }
        refuse(format!(
            "of the {all} nodes that would vote then, {alive} are connected to the leader: no majority, so the \
             cluster would stand still; start the others first"
        ))
    }
}

fn voters(progress: &Progress) -> BTreeSet<NodeId> {
    progress.members.voters.iter().flatten().copied().collect()
}
