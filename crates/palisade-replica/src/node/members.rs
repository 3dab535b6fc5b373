//! Changes of the members and of the leader, with the checks that an operator expects (rules R18, R19).

use std::collections::BTreeSet;
use std::time::Duration;

use crate::engine::{Engine, Progress, Refused, Role, Runtime};
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
    /// The message names the obstacle and the next step.
    #[error("{0}")]
    Refused(String),
}

impl From<Refused> for NotChanged {
    fn from(refused: Refused) -> NotChanged {
        match refused {
            Refused::NotLeader => NotChanged::NotLeader,
            Refused::Busy | Refused::Because(_) => NotChanged::Refused(refused.to_string()),
        }
    }
}

fn refuse<T>(why: impl Into<String>) -> Result<T, NotChanged> {
    Err(NotChanged::Refused(why.into()))
}

/// The leader's way to change its cluster.
pub struct Membership<'a, R: Runtime> {
    engine: &'a Engine<R>,
    node: NodeId,
    is_alive: &'a (dyn Fn(NodeId) -> bool + Sync),
}

impl<'a, R: Runtime> Membership<'a, R> {
    /// Of the cluster that `node` leads. `is_alive` says whether another node answered lately; a connection alone says
    /// nothing.
    pub fn new(
        engine: &'a Engine<R>,
        node: NodeId,
        is_alive: &'a (dyn Fn(NodeId) -> bool + Sync),
    ) -> Membership<'a, R> {
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
            None => {
                let _changing = self.engine.change_members().await?;
                self.engine.add_learner(node, peer).await?;
            }
        }
        let until = progress.last;
        let caught_up = async {
            loop {
                let progress = self.leading()?;
                let matched = progress.matched.get(&node).copied().flatten();
                if matched.map(|id| id.index) >= until {
                    return Ok(());
                }
                R::sleep(LOOK).await;
            }
        };
        match R::timeout(CATCH_UP, caught_up).await {
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
                "node {node} is not a member; start it with --join, or add it first"
            ));
        }
        if instead_of == Some(self.node) {
            self.transfer(None).await?;
            return Err(NotChanged::NotLeader);
        }
        self.set_voters(|voters| {
            voters.insert(node);
            if let Some(old) = instead_of {
                voters.remove(&old);
            }
        })
        .await
    }

    /// One change after the other: each starts from the voters that the one before left.
    async fn set_voters(&self, change: impl Fn(&mut BTreeSet<NodeId>)) -> Result<(), NotChanged> {
        let _changing = self.engine.change_members().await?;
        let mut tries = 0;
        loop {
            let now = self.leading()?;
            let mut after = voters(&now);
            change(&mut after);
            if after.is_empty() {
                return refuse("the last node cannot be removed; stop it instead");
            }
            // The change itself needs a majority of those before, too; and of two such sets, if a former leader left a change half made.
            for before in &now.members.voters {
                self.check_majority(before, "vote now")?;
            }
            self.check_majority(&after, "would vote then")?;
            tries += 1;
            let mut changed = self.engine.complete_change().await;
            if changed.is_ok() {
                changed = self.engine.set_voters(after).await;
            }
            match changed {
                // One that another leader began.
                Err(Refused::Busy) if tries < BUSY => R::sleep(LOOK).await,
                changed => return Ok(changed?),
            }
        }
    }

    /// Removes a node. A leader hands over first; then the new leader has to be asked.
    ///
    /// # Errors
    /// [`NotChanged`], also if the nodes that stay and are alive would be no majority (rule R19).
    pub async fn remove(&self, node: NodeId) -> Result<(), NotChanged> {
        let progress = self.leading()?;
        if !progress.members.nodes.contains_key(&node) {
            return refuse(format!(
                "node {node} is not a member; see `palisade cluster status`"
            ));
        }
        let mut rest = voters(&progress);
        if !rest.remove(&node) {
            let _changing = self.engine.change_members().await?;
            return Ok(self.engine.remove_learner(node).await?);
        }
        if node == self.node && !rest.is_empty() {
            self.check_majority(&rest, "would vote then")?;
            self.transfer(None).await?;
            return Err(NotChanged::NotLeader);
        }
        self.set_voters(|voters| voters.retain(|voter| *voter != node))
            .await
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
                None => return refuse("no other node that votes has answered lately"),
            },
        };
        if !voters(&progress).contains(&to) {
            return refuse(format!("node {to} has no vote, so it cannot lead"));
        }
        if !(self.is_alive)(to) {
            return refuse(format!(
                "node {to} has not answered lately: see `palisade cluster status`"
            ));
        }
        self.engine.hand_over(to).await;
        let handed_over = async {
            while self.engine.progress().role == Role::Leader {
                R::sleep(LOOK).await;
            }
        };
        if R::timeout(HAND_OVER, handed_over).await.is_err() {
            return refuse(format!("node {to} did not take over; this one still leads"));
        }
        // Wait for the new leader, so that callers that ask now can be sent to it.
        let known = async {
            while self.engine.progress().leader.is_none() {
                R::sleep(LOOK).await;
            }
        };
        // It is elected, or the others go on without it.
        let _ = R::timeout(HAND_OVER, known).await;
        Ok(())
    }

    fn furthest(&self, progress: &Progress) -> Option<NodeId> {
        let others = voters(progress)
            .into_iter()
            .filter(|node| *node != self.node);
        let alive = others.filter(|node| (self.is_alive)(*node));
        alive.max_by_key(|node| progress.matched.get(node).copied().flatten())
    }

    fn answers(&self, node: NodeId) -> bool {
        node == self.node || (self.is_alive)(node)
    }

    fn check_majority(&self, voters: &BTreeSet<NodeId>, which: &str) -> Result<(), NotChanged> {
        let alive = |node: &&NodeId| self.answers(**node);
        let (all, alive) = (voters.len(), voters.iter().filter(alive).count());
        if alive > all / 2 {
            return Ok(());
        }
        let silent = voters.iter().filter(|node| !self.answers(**node));
        let silent: Vec<String> = silent.map(NodeId::to_string).collect();
        refuse(format!(
            "of the {all} nodes that {which}, {alive} answer the leader: no majority, so the cluster would stand still. \
             {} answered nothing lately: bring back what hangs or is down, or remove that first",
            silent.join(", ")
        ))
    }
}

/// How often a change is tried again while another one is in progress.
const BUSY: u32 = 500;

/// The voters; those after a change that is half made.
fn voters(progress: &Progress) -> BTreeSet<NodeId> {
    progress.members.voters.last().cloned().unwrap_or_default()
}
