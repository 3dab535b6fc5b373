//! A node's memory of the others, by which it decides which of them to let in (rule R14).
//!
//! ```text
//!   handshakes, answered appends ──► PeerHistory ──► judge
//!                                        │  ▲
//!                             a second ──┘  └── at a start
//!                                      DATA/peers
//! ```
//!
//! The file is replaced without a sync. Its content may be a second old, or lost with the power, and is never more than the
//! node knows. A node whose log ends before the entry in this file has lost something; any other node is as it was.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;
use std::time::Duration;
use std::{fs, io};

use palisade_access::replace::{self, Durable};
use palisade_wal::Id;
use sha2::{Digest as _, Sha256};

use super::introduction::{Introduction, Known, Standing, judge};
use super::refusal::AdmissionRefusal;
use super::{Peers, hold};
use crate::entry::{Leader, LogId, NodeId};
use crate::message::Offer;

/// See the module.
#[derive(Debug, Default)]
pub struct PeerHistory {
    nodes: BTreeMap<NodeId, Met>,
    /// The last append that was sent to any node: it says how far this node has committed while it leads.
    offered: Option<Offer>,
}

#[derive(Debug, Default)]
struct Met {
    known: Option<Known>,
    /// The last append that it accepted.
    taken: Option<Offer>,
}

impl Met {
    /// Raises the entry that both have, by the last append that the node accepted and a later one.
    fn agree(&mut self, later: Option<Offer>) {
        let agreed = self.taken.and_then(|taken| taken.agreed(later));
        if agreed.is_some() {
            // A node that was met before it became a member is known by nothing else.
            let known = self.known.get_or_insert_with(Known::default);
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

    /// Decides whether a node may be talked to, as [`judge`] does, from this memory of it.
    ///
    /// # Errors
    /// As [`judge`].
    pub fn judge(
        &mut self,
        own: &Introduction,
        expected: Option<NodeId>,
        theirs: &Introduction,
    ) -> Result<(), AdmissionRefusal> {
        let offered = self.offered;
        let known = self.nodes.get_mut(&theirs.node).and_then(|met| {
            met.agree(offered);
            met.known.as_ref()
        });
        judge(own, expected, known, theirs)
    }

    /// A node led without this entry, which is committed: it had it, or those that elected it had.
    pub fn lost(&mut self, node: NodeId, committed: LogId) {
        let met = self.nodes.entry(node).or_default();
        let known = met.known.get_or_insert_with(Known::default);
        known.agreed = known.agreed.max(Some(committed));
    }

    /// Remembers a node that was accepted. Only members are compared with their earlier introductions.
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

    /// The facts about the others to remember over a restart, in this life of the cluster's log.
    #[must_use]
    pub fn to_text(&mut self, incarnation: Id) -> String {
        let mut body = format!("palisade-peers 1\nincarnation {incarnation}\n");
        let offered = self.offered;
        for (node, met) in &mut self.nodes {
            met.agree(offered);
            let Some(known) = &met.known else { continue };
            let agreed = known.agreed.map_or("nothing".to_owned(), |agreed| {
                let Leader { term, node } = agreed.leader;
                format!("{}.{term}.{node}", agreed.index)
            });
            // Writing to a text does not fail.
            let _ = writeln!(
                body,
                "node {node} starts {} agreed {agreed} at {}",
                known.starts, known.address
            );
        }
        let sum = checksum(&body);
        body + &sum
    }

    /// Reads such a text. The result is empty if the text is damaged, or from another life of the log.
    #[must_use]
    pub fn from_text(text: &str, incarnation: Id) -> PeerHistory {
        PeerHistory {
            nodes: read(text, incarnation).unwrap_or_default(),
            offered: None,
        }
    }
}

fn checksum(body: &str) -> String {
    let digest = Sha256::digest(body);
    let half = digest.iter().take(16).fold(String::new(), |mut sum, byte| {
        let _ = write!(sum, "{byte:02x}");
        sum
    });
    format!("checksum {half}\n")
}

fn read(text: &str, incarnation: Id) -> Option<BTreeMap<NodeId, Met>> {
    let (body, sum) = text.split_at_checked(text.rfind("checksum ")?)?;
    let mut lines = body.lines();
    let is_whole = sum == checksum(body) && lines.next()? == "palisade-peers 1";
    let of = lines.next()?.strip_prefix("incarnation ")?;
    (is_whole && of == incarnation.to_string()).then_some(())?;
    lines.map(line).collect()
}

fn line(line: &str) -> Option<(NodeId, Met)> {
    let (node, rest) = line.strip_prefix("node ")?.split_once(" starts ")?;
    let (starts, rest) = rest.split_once(" agreed ")?;
    let (agreed, address) = rest.split_once(" at ")?;
    let known = Known {
        address: address.to_owned(),
        starts: starts.parse().ok()?,
        agreed: match agreed {
            "nothing" => None,
            entry => Some(log_id(entry)?),
        },
    };
    let met = Met {
        known: Some(known),
        taken: None,
    };
    Some((node_id(node)?, met))
}

/// Also 0, which the lab has.
fn node_id(text: &str) -> Option<NodeId> {
    u64::from_str_radix(text, 16).ok().map(NodeId)
}

fn log_id(text: &str) -> Option<LogId> {
    let mut parts = text.splitn(3, '.');
    let index = parts.next()?.parse().ok()?;
    let term = parts.next()?.parse().ok()?;
    let node = node_id(parts.next()?)?;
    let leader = Leader { term, node };
    Some(LogId { leader, index })
}

/// How often the file is written, if there is something new.
const AGAIN: Duration = Duration::from_secs(1);

impl Peers {
    /// Reads from a file the memory from before this node was started, and returns the task that keeps the file up to date.
    /// To be called before this node calls anybody.
    ///
    /// # Errors
    /// The file cannot be read.
    pub fn remember(
        &self,
        path: PathBuf,
        incarnation: Id,
    ) -> io::Result<impl Future<Output = ()> + Send + 'static> {
        let mut written = match fs::read_to_string(&path) {
            Ok(text) => text,
            // As little is known as of a text that is damaged.
            Err(error) if error.kind() == io::ErrorKind::NotFound => String::new(),
            Err(error) if error.kind() == io::ErrorKind::InvalidData => String::new(),
            Err(error) => return Err(error),
        };
        let shared = self.shared.clone();
        *hold(&shared.history) = PeerHistory::from_text(&written, incarnation);
        Ok(async move {
            loop {
                tokio::select! {
                    () = shared.until_stopped() => return,
                    () = tokio::time::sleep(AGAIN) => {}
                }
                let text = hold(&shared.history).to_text(incarnation);
                if text == written {
                    continue;
                }
                let (to, what) = (path.clone(), text.clone());
                let done = tokio::task::spawn_blocking(move || {
                    replace::write(&to, what.as_bytes(), Durable::No)
                })
                .await;
                match done {
                    Ok(Ok(())) => written = text,
                    // Perhaps there is no room. It is tried again.
                    Ok(Err(error)) => {
                        tracing::debug!(path = %path.display(), %error, "what is known of peers was not written");
                    }
                    // The runtime ends.
                    Err(_) => return,
                }
            }
        })
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::super::introduction::tests::{entry, id, member};
    use super::*;

    fn known(agreed: Option<LogId>) -> PeerHistory {
        let mut history = PeerHistory::default();
        history.met(&Introduction {
            starts: 5,
            ..member(2)
        });
        history.met(&member(3));
        let met = history.nodes.get_mut(&NodeId(2)).unwrap();
        met.known.as_mut().unwrap().agreed = agreed;
        history
    }

    /// The control is a node that does not remember: it lets every node in.
    #[test]
    fn a_node_that_was_restarted_refuses_who_lost_what_it_had_acknowledged() {
        let text = known(Some(entry(9))).to_text(id(1));
        let judged = |history: &mut PeerHistory, last, starts| {
            let theirs = Introduction {
                last: Some(entry(last)),
                starts,
                ..member(2)
            };
            history.judge(&member(1), None, &theirs)
        };
        let mut restarted = PeerHistory::from_text(&text, id(1));
        assert_eq!(restarted.to_text(id(1)), text);
        assert_eq!(judged(&mut restarted, 9, 6), Ok(()));
        let why = judged(&mut restarted, 8, 6).unwrap_err().why;
        assert!(
            why.contains("entry 9") && why.contains("must not vote"),
            "{why}"
        );
        let why = judged(&mut restarted, 9, 4).unwrap_err().why;
        assert!(why.contains("is an older copy, or was lost"), "{why}");
        let mut forgetful = PeerHistory::from_text(&text, id(2));
        assert_eq!(judged(&mut forgetful, 8, 6), Ok(()), "another life");
        assert_eq!(judged(&mut PeerHistory::default(), 8, 6), Ok(()));
    }

    #[test]
    fn a_text_that_is_damaged_says_nothing() {
        for agreed in [None, Some(entry(9))] {
            let text = known(agreed).to_text(id(1));
            assert_eq!(PeerHistory::from_text(&text, id(1)).nodes.len(), 2);
            for at in 0..text.len() {
                let cut = PeerHistory::from_text(&text[..at], id(1));
                assert!(cut.nodes.is_empty(), "{at}");
                let mut damaged = text.clone().into_bytes();
                damaged[at] ^= 1;
                let damaged = String::from_utf8(damaged).unwrap();
                let damaged = PeerHistory::from_text(&damaged, id(1));
                assert!(damaged.nodes.is_empty(), "{at}");
            }
        }
    }

    #[tokio::test]
    async fn what_is_known_is_in_the_file_and_comes_back() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("peers");
        let peers = || Peers::new(None, super::super::Settings::default(), member(1));
        let before = peers();
        let keep = before.remember(path.clone(), id(1)).unwrap();
        tokio::spawn(keep);
        *hold(&before.shared.history) = known(Some(entry(9)));
        while !path.exists() {
            tokio::time::sleep(AGAIN).await; // real time: the file is written once a second
        }
        before.stop();
        let after = peers();
        drop(after.remember(path.clone(), id(1)).unwrap());
        let text = hold(&after.shared.history).to_text(id(1));
        assert_eq!(text, known(Some(entry(9))).to_text(id(1)));
        // A node starts even if the file contains something else.
        fs::write(&path, [0xff, 0xfe]).unwrap();
        drop(peers().remember(path, id(1)).unwrap());
    }
}
