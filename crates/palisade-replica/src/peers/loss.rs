//! A node that lost entries it had acknowledged: how it learns of the loss, and how it reacts (rules R14, R24).
//!
//! ```text
//!   the others: Known ──judge──► AdmissionRefusal with a LostState ──handshake, proved by the key──► the node
//!                                                                                        │ looks into its own log
//!                                    it lacks that: no connection any more, Peers::lost ◄┤
//!                                    it has that: the other one is wrong, and refused   ◄┘
//! ```

use std::collections::BTreeMap;
use std::time::Duration;

use futures_util::future::join_all;
use tokio::sync::watch;

use super::handshake::Lane;
use super::introduction::{Introduction, Standing};
use super::refusal::{AdmissionRefusal, LostState};
use super::{Peers, Shared, hold};
use crate::entry::{LogId, NodeId};

impl LostState {
    /// Whether this node did lose that, according to its own directory.
    #[must_use]
    pub fn is_of(&self, own: &Introduction) -> bool {
        let is_member = matches!(own.standing, Standing::Member { .. });
        let has = |agreed| own.contains(agreed);
        is_member && (own.starts < self.starts || !self.agreed.is_none_or(has))
    }
}

/// The longest time that a starting node waits for the others' knowledge of it.
const ASKING: Duration = Duration::from_secs(1);

impl Peers {
    /// Meets the members before this node votes. A member that knows more about this node than its directory
    /// does tells it.
    ///
    /// # Errors
    /// A message for the operator, if this node must not vote: see [`lost`](Peers::lost).
    pub async fn ask_members(&self, members: &BTreeMap<NodeId, String>) -> Result<(), String> {
        let own = self.shared.own().node;
        let others = members.iter().filter(|(node, _)| **node != own);
        let meet = others.map(|(node, address)| async {
            let met = self.shared.dial(Some(*node), address, Lane::Meeting);
            // One that is not there says nothing.
            let _ = tokio::time::timeout(ASKING, met).await;
        });
        join_all(meet).await;
        let lost = self.lost().borrow().clone();
        lost.map_or(Ok(()), Err)
    }

    /// Shows the reason once another member has proved that this node lost entries which it had acknowledged. All
    /// connections are closed by then, so that this node votes no longer: it must end, and not be started again.
    #[must_use]
    pub fn lost(&self) -> watch::Receiver<Option<String>> {
        self.shared.lost.subscribe()
    }

    /// A node led without an entry that this one knows to be committed, so it lost that entry. It hears of the loss at
    /// the next meeting, and is dialled for it.
    pub async fn tell_of_loss(&self, node: NodeId, address: &str, committed: LogId) {
        hold(&self.shared.history).lost(node, committed);
        let met = self.shared.dial(Some(node), address, Lane::Meeting);
        // It may be gone.
        let _ = met.await;
    }
}

impl Shared {
    /// Another node has proved that it knows the key, and says that this one lost something. Returns the message about
    /// it.
    pub(super) fn told(
        &self,
        by: NodeId,
        AdmissionRefusal { why, loss }: AdmissionRefusal,
    ) -> String {
        let own = self.own();
        let Some(loss) = loss else { return why };
        if !loss.is_of(&own) {
            return format!(
                "node {by} says that node {} {loss}, and lost that. This node has it, so what node {by} knows of it is wrong: \
                 stop node {by}, and look whether its disk was set back",
                own.node
            );
        }
        let why = format!(
            "this node ({}) has lost what it had acknowledged, so it must not vote: node {by} has seen that it {loss}, and its \
             directory says {}. Its disk lost writes, or was set back to an older state. Keep the directory. If more than half \
             of the other nodes run, start a new node with --join and another --data, and type `palisade cluster replace {} \
             NEW` with the id that it reports. If not, compare the directories of all nodes: palisade cluster recover --data \
             DIR --look",
            own.node,
            own.summary(),
            own.node
        );
        // Before anything else: nobody hears from this node any more.
        self.stopped.send_replace(true);
        self.lost.send_if_modified(|lost| {
            let is_new = lost.is_none();
            lost.get_or_insert_with(|| why.clone());
            is_new
        });
        why
    }
}
