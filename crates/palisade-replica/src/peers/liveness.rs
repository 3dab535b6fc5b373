//! Decides which nodes are alive: those that answered lately, not those with a connection. The kernel keeps the connections of
//! a process that hangs, and a node with a stalled disk still answers questions, but no entries.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use futures_util::future::join_all;

use super::{PeerStatus, Peers, Seen, clock};
use crate::engine::Transport as _;
use crate::entry::NodeId;
use crate::message::{PROBE, probed_by};

/// A node that has answered nothing for this long counts as absent.
pub const SILENT: Duration = Duration::from_secs(2);

/// A node that is alive answers a question within this time.
const PROBE_TIME: Duration = Duration::from_secs(2);

/// Since when a node owes an answer to entries, and when it was asked last.
#[derive(Clone, Copy, Debug)]
pub(super) struct Owed {
    first: Duration,
    latest: Duration,
}

impl Seen {
    /// Entries are sent to it.
    pub(super) fn owes(&mut self, now: Duration) {
        let first = self.owed.map_or(now, |owed| owed.first);
        self.owed = Some(Owed { first, latest: now });
    }

    /// It answered; `entries` says whether it was asked to write any.
    pub(super) fn answers(&mut self, now: Duration, entries: bool) {
        self.answered = Some(now);
        if entries {
            self.owed = None;
        }
    }

    /// For how long it has answered nothing, or no entries; nothing if it never answered.
    pub(super) fn silent(&self, now: Duration) -> Option<Duration> {
        let answered = self.answered?;
        // One that leads no longer asks no more.
        let asked = |owed: &Owed| now.saturating_sub(owed.latest) < SILENT;
        let owed = self.owed.filter(asked).map(|owed| owed.first);
        Some(now.saturating_sub(owed.map_or(answered, |first| first.min(answered))))
    }
}

impl PeerStatus {
    /// Whether it answered lately.
    #[must_use]
    pub fn is_alive(&self) -> bool {
        self.connected && self.silent.is_some_and(|silent| silent < SILENT)
    }
}

impl Peers {
    /// Asks a node whether it is there; gives whether it leads with a quorum. `None` if it did not answer, or is of a build
    /// that does not say.
    pub async fn probe(&self, node: NodeId, address: &str) -> Option<bool> {
        let answer = self.call(node, address, PROBE.to_vec(), PROBE_TIME).await;
        probed_by(&answer.ok()?)
    }

    /// Asks all of these nodes at once; gives those that answered, and that owe no answer to entries.
    pub async fn answering(&self, nodes: &BTreeMap<NodeId, String>) -> BTreeSet<NodeId> {
        let own = self.shared.own().node;
        let ask = nodes.iter().map(|(node, address)| async {
            let asked = clock::now();
            if *node != own {
                self.probe(*node, address).await;
            }
            (*node, asked)
        });
        let asked = join_all(ask).await;
        // As of its answer: another one may have been waited for since.
        let answered = |(node, asked): &(NodeId, Duration)| {
            let is_alive = |seen: &mut Seen| {
                let answered = seen.answered.filter(|answered| answered >= asked);
                let silent = answered.and_then(|answered| seen.silent(answered));
                silent.is_some_and(|silent| silent < SILENT)
            };
            *node == own || self.shared.with(*node, is_alive)
        };
        let answering = asked.into_iter().filter(answered);
        answering.map(|(node, _)| node).collect()
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;

    /// A connection is no sign of life, and neither is an answer to a question while entries wait for a disk. The control is
    /// the same node with its entries answered.
    #[test]
    fn alive_is_who_answered_lately() {
        let at = Duration::from_secs;
        let mut seen = Seen::default();
        seen.status.connected = true;
        assert_eq!(seen.silent(at(9)), None, "it never answered");
        seen.answers(at(10), false);
        assert_eq!(seen.silent(at(11)), Some(at(1)));
        assert_eq!(seen.silent(at(22)), Some(at(12)));
        for second in 20..30 {
            seen.owes(at(second));
            seen.answers(at(second), false);
        }
        assert_eq!(seen.silent(at(30)), Some(at(10)), "it owes entries");
        assert_eq!(seen.silent(at(32)), Some(at(3)), "nobody asks any more");
        seen.answers(at(30), true);
        assert_eq!(seen.silent(at(30)), Some(at(0)));
    }

    #[test]
    fn only_a_connected_node_that_answers_is_alive() {
        let status = |connected, silent| PeerStatus {
            connected,
            silent,
            ..PeerStatus::default()
        };
        assert!(status(true, Some(Duration::ZERO)).is_alive());
        assert!(!status(true, Some(SILENT)).is_alive());
        assert!(!status(true, None).is_alive());
        assert!(!status(false, Some(Duration::ZERO)).is_alive());
    }
}
