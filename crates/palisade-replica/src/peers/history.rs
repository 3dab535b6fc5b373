//! What a node remembers of the others since it was started, and whom it lets in (rule R14).

use std::collections::BTreeMap;

use super::introduction::{Introduction, Known, Standing, judge};
use crate::entry::NodeId;
use crate::message::Offer;

/// See the module. It is in memory only: a node that was restarted has met nobody.
#[derive(Debug, Default)]
pub struct PeerHistory {
    nodes: BTreeMap<NodeId, Met>,
    /// The last append that was sent to any node: it says how far this node has committed while it leads.
    offered: Option<Offer>,
}

#[derive(Debug, Default)]
struct Met {
    known: Option<Known>,
    /// The last append that it took in.
    taken: Option<Offer>,
}

impl Met {
    /// Raises what both have to what the last append that it took in shows, with a later one.
    fn agree(&mut self, later: Option<Offer>) {
        let agreed = self.taken.and_then(|taken| taken.agreed(later));
        if let Some(known) = &mut self.known {
            known.agreed = known.agreed.max(agreed);
        }
    }
}

impl PeerHistory {
    /// This node sends an append, to whichever node.
    pub fn offered(&mut self, offer: Offer) {
        self.offered = Some(offer);
    }

    /// A node answered an append.
    pub fn answered(&mut self, node: NodeId, offer: Offer, answer: &[u8]) {
        let met = self.nodes.entry(node).or_default();
        if let Some(taken) = offer.taken(answer, met.taken) {
            met.agree(Some(taken));
            met.taken = Some(taken);
        }
    }

    /// Decides whether a node may be talked to, as [`judge`] does with what is known of it.
    ///
    /// # Errors
    /// As [`judge`].
    pub fn judge(
        &mut self,
        own: &Introduction,
        expected: Option<NodeId>,
        theirs: &Introduction,
    ) -> Result<(), String> {
        let offered = self.offered;
        let known = self.nodes.get_mut(&theirs.node).and_then(|met| {
            met.agree(offered);
            met.known.as_ref()
        });
        judge(own, expected, known, theirs)
    }

    /// Remembers a node that was accepted. Only members are measured by what they said before.
    pub fn met(&mut self, theirs: &Introduction) {
        if let Standing::Member { .. } = theirs.standing {
            let met = self.nodes.entry(theirs.node).or_default();
            met.known = Some(Known {
                address: theirs.address.clone(),
                starts: theirs.starts,
                agreed: met.known.as_ref().and_then(|known| known.agreed),
            });
        }
    }
}
