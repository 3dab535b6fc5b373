//! The introductions that two nodes exchange when they meet, and whether they may talk (rule R14).

use std::collections::BTreeMap;

use palisade_wal::Id;

use super::refusal::{AdmissionRefusal, LostState};
use crate::codec::{Malformed, Put, Take};
use crate::entry::{LogId, NodeId};
use crate::timers::Profile;

/// A cluster has no more nodes than this, and no longer list.
pub const MOST_NODES: usize = 64;

/// The most leaderships of its log that a node names.
pub const HISTORY: usize = 64;

/// The longest address or URL, in bytes.
const LONGEST: usize = 255;

/// One node, as it introduces itself.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Introduction {
    /// Which node.
    pub node: NodeId,
    /// Where its peers reach it.
    pub address: String,
    /// Where clients reach it.
    pub url: String,
    /// The newest version of a batch that it reads (rule R21).
    pub reads: u8,
    /// The times that it runs on, which all nodes share.
    pub timers: Profile,
    /// How often its log was opened in this life; 0 if there is none.
    pub starts: u64,
    /// The last entry of its log.
    pub last: Option<LogId>,
    /// The first entry of each of the newest [`HISTORY`] leaderships in its log ([`Log::history`](crate::Log::history)).
    pub history: Vec<LogId>,
    /// The state of its directory.
    pub standing: Standing,
}

/// The state of a node's directory, as far as the others must know it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// There is no log in it.
    Blank {
        /// An authority and an incarnation, drawn at random, for the case that this node's are the ones that are used.
        draft: (Id, Id),
        /// The nodes that are to form a cluster, if any were listed; in ascending order.
        list: Option<Vec<String>>,
        /// The digest of the founding that this node has put together from the introductions that it heard.
        proposal: Option<[u8; 32]>,
    },
    /// A single server's.
    Single {
        /// Its authority.
        authority: Id,
        /// As for a blank one.
        list: Option<Vec<String>>,
    },
    /// A member's.
    Member {
        /// The cluster.
        authority: Id,
        /// The life of its log.
        incarnation: Id,
        /// The members of the cluster and their addresses, as far as this node knows.
        members: BTreeMap<NodeId, String>,
    },
}

impl Standing {
    /// The nodes that it was asked to form a cluster with.
    #[must_use]
    pub fn list(&self) -> Option<&[String]> {
        match self {
            Standing::Blank { list, .. } | Standing::Single { list, .. } => list.as_deref(),
            Standing::Member { .. } => None,
        }
    }

    /// The digest of the founding that a blank node announces.
    pub(crate) fn proposal(&self) -> Option<[u8; 32]> {
        match self {
            Standing::Blank { proposal, .. } => *proposal,
            Standing::Single { .. } | Standing::Member { .. } => None,
        }
    }
}

impl Introduction {
    /// As bytes.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        out.u64(self.node.0);
        out.bytes(self.address.as_bytes());
        out.bytes(self.url.as_bytes());
        out.u8(self.reads);
        out.u8(self.timers.code());
        out.u64(self.starts);
        out.option(self.last, Vec::log_id);
        out.u64(self.history.len() as u64);
        self.history.iter().for_each(|start| out.log_id(*start));
        match &self.standing {
            Standing::Blank {
                draft,
                list,
                proposal,
            } => {
                out.u8(0);
                out.bytes(draft.0.as_bytes());
                out.bytes(draft.1.as_bytes());
                out.option(list.as_deref(), put_list);
                out.option(*proposal, |out, digest| out.bytes(&digest));
            }
            Standing::Single { authority, list } => {
                out.u8(1);
                out.bytes(authority.as_bytes());
                out.option(list.as_deref(), put_list);
            }
            Standing::Member {
                authority,
                incarnation,
                members,
            } => {
                out.u8(2);
                out.bytes(authority.as_bytes());
                out.bytes(incarnation.as_bytes());
                out.u64(members.len() as u64);
                for (node, address) in members {
                    out.u64(node.0);
                    out.bytes(address.as_bytes());
                }
            }
        }
        out
    }

    /// From bytes.
    ///
    /// # Errors
    /// `Malformed`.
    pub fn decode(bytes: &[u8]) -> Result<Introduction, Malformed> {
        let mut from = Take(bytes);
        let introduction = Introduction {
            node: NodeId(from.u64()?),
            address: text(&mut from)?,
            url: text(&mut from)?,
            reads: from.u8()?,
            timers: Profile::of_code(from.u8()?)?,
            starts: from.u64()?,
            last: from.option(Take::log_id)?,
            history: history(&mut from)?,
            standing: match from.u8()? {
                0 => Standing::Blank {
                    draft: (id(&mut from)?, id(&mut from)?),
                    list: from.option(take_list)?,
                    proposal: from.option(array)?,
                },
                1 => Standing::Single {
                    authority: id(&mut from)?,
                    list: from.option(take_list)?,
                },
                2 => Standing::Member {
                    authority: id(&mut from)?,
                    incarnation: id(&mut from)?,
                    members: members(&mut from)?,
                },
                _ => return Err(Malformed("a directory is of an unknown kind")),
            },
        };
        from.end()?;
        match introduction.node.0 {
            0 => Err(Malformed("0 is no node")),
            _ => Ok(introduction),
        }
    }

    /// Whether its log contains a committed entry, as far as the introduction shows. A log never loses such an entry: one
    /// that ends before it, or has an entry of another leadership in its place, lost it. Entries older than the
    /// introduction's history count as there.
    #[must_use]
    pub fn contains(&self, committed: LogId) -> bool {
        let reaches =
            |last: LogId| last.index >= committed.index && last.leader >= committed.leader;
        let mut starts = self.history.iter().rev();
        let within = starts.find(|start| start.index <= committed.index);
        self.last.is_some_and(reaches)
            && within.is_none_or(|start| start.leader == committed.leader)
    }

    /// A summary of its directory, for people.
    pub(crate) fn summary(&self) -> String {
        let last = self
            .last
            .map_or("nothing".to_owned(), |last| last.to_string());
        format!("{} starts, and a log that ends with {last}", self.starts)
    }
}

fn put_list(out: &mut Vec<u8>, list: &[String]) {
    out.u64(list.len() as u64);
    list.iter()
        .for_each(|address| out.bytes(address.as_bytes()));
}

fn array<const N: usize>(from: &mut Take<'_>) -> Result<[u8; N], Malformed> {
    let wrong = |_| Malformed("an id or a digest is of another length");
    from.bytes()?.try_into().map_err(wrong)
}

fn id(from: &mut Take<'_>) -> Result<Id, Malformed> {
    array(from).map(Id::from_bytes)
}

/// Printable: it is logged, and shown to people.
fn text(from: &mut Take<'_>) -> Result<String, Malformed> {
    let text = std::str::from_utf8(from.bytes()?).map_err(|_| Malformed("a text is not UTF-8"))?;
    if text.len() <= LONGEST && !text.chars().any(char::is_control) {
        Ok(text.to_owned())
    } else {
        Err(Malformed("an address is too long or not printable"))
    }
}

fn count(from: &mut Take<'_>) -> Result<usize, Malformed> {
    let count = usize::try_from(from.u64()?).ok();
    let allowed = count.filter(|count| *count <= MOST_NODES);
    allowed.ok_or(Malformed("there are too many nodes"))
}

fn take_list(from: &mut Take<'_>) -> Result<Vec<String>, Malformed> {
    (0..count(from)?).map(|_| text(from)).collect()
}

fn history(from: &mut Take<'_>) -> Result<Vec<LogId>, Malformed> {
    let starts = usize::try_from(from.u64()?).ok();
    let starts = starts.filter(|starts| *starts <= HISTORY);
    let starts = starts.ok_or(Malformed("a log has too many leaderships"))?;
    (0..starts).map(|_| from.log_id()).collect()
}

fn members(from: &mut Take<'_>) -> Result<BTreeMap<NodeId, String>, Malformed> {
    let count = count(from)?;
    (0..count)
        .map(|_| Ok((NodeId(from.u64()?), text(from)?)))
        .collect()
}

/// The facts that a node remembers about another one that it has met.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// Its address.
    pub address: String,
    /// How many times it had started.
    pub starts: u64,
    /// Up to here both have the same entries, and they are committed.
    pub agreed: Option<LogId>,
}

/// Decides whether a node may be talked to. `expected` is the node that was to be reached, if one was.
///
/// # Errors
/// The reason, with both values and the remedy. It is for both sides.
pub fn judge(
    own: &Introduction,
    expected: Option<NodeId>,
    known: Option<&Known>,
    theirs: &Introduction,
) -> Result<(), AdmissionRefusal> {
    let (node, address) = (theirs.node, &theirs.address);
    let expected = expected.filter(|expected| *expected != node);
    if let Some(expected) = expected
        && let Some(place) = own.place_of(node)
    {
        // Nothing is lost: the directory at this address is good, and belongs elsewhere.
        return Err(AdmissionRefusal::from(format!(
            "{address} should be node {expected} and is node {node}, which the cluster has at {place}: two directories, or \
             two addresses, were exchanged. Stop the nodes at both addresses, and start each with its own directory and \
             its own --peer-address; both directories are good"
        )));
    }
    if node == own.node {
        return Err(AdmissionRefusal::from(format!(
            "node {node} at {address} has the same id as the node at {}: one of the two directories is a copy. Stop the node \
             that runs on the copy, and start it with another --data",
            own.address
        )));
    }
    same_cluster(own, theirs)?;
    if let Some(expected) = expected {
        return Err(AdmissionRefusal::from(format!(
            "{address} should be node {expected} and is node {node}: if the disk of node {expected} was lost, type \
             `palisade cluster replace {expected} {node}`"
        )));
    }
    // A node hears of a loss before anything else: it must not vote, whatever its timers are.
    known.map_or(Ok(()), |known| not_behind(known, theirs))?;
    same_timers(own, theirs)
}

fn same_timers(own: &Introduction, theirs: &Introduction) -> Result<(), AdmissionRefusal> {
    if own.timers == theirs.timers {
        return Ok(());
    }
    Err(AdmissionRefusal::from(format!(
        "{} runs with --timers {}, {} with --timers {}: start every node of a cluster with the same --timers",
        place(own),
        own.timers,
        place(theirs),
        theirs.timers
    )))
}

impl Introduction {
    /// Where this node's cluster has a member.
    fn place_of(&self, node: NodeId) -> Option<&String> {
        match &self.standing {
            Standing::Member { members, .. } => members.get(&node),
            Standing::Blank { .. } | Standing::Single { .. } => None,
        }
    }
}

fn same_cluster(own: &Introduction, theirs: &Introduction) -> Result<(), AdmissionRefusal> {
    let (
        Standing::Member {
            authority,
            incarnation,
            ..
        },
        Standing::Member {
            authority: their_authority,
            incarnation: their_incarnation,
            ..
        },
    ) = (&own.standing, &theirs.standing)
    else {
        return Ok(());
    };
    let (here, there) = (place(own), place(theirs));
    if authority != their_authority {
        return Err(AdmissionRefusal::from(format!(
            "{here} belongs to cluster {authority}, {there} to cluster {their_authority}: correct the addresses of one \
             of them. If two clusters were formed by mistake, decide which one stays, and start the nodes of the other one \
             with --join and another --data"
        )));
    }
    if incarnation != their_incarnation {
        return Err(AdmissionRefusal::from(format!(
            "{here} is of incarnation {incarnation} of its cluster, {there} of incarnation {their_incarnation}: a \
             restore or a recovery began the newer one. Stop the nodes of the older one, and start them with --join and \
             another --data"
        )));
    }
    Ok(())
}

fn place(of: &Introduction) -> String {
    format!("node {} at {}", of.node, of.address)
}

fn not_behind(known: &Known, theirs: &Introduction) -> Result<(), AdmissionRefusal> {
    let Introduction {
        node,
        address,
        starts,
        ..
    } = theirs;
    let replace = format!(
        "It stops by itself. Keep its directory: if no majority is left without it, that may be needed. Start a new node with \
         --join and another --data, and type `palisade cluster replace {node} NEW` with the id that it reports"
    );
    if known.address != *address && *starts <= known.starts {
        return Err(AdmissionRefusal::from(format!(
            "node {node} was met at {} after {} starts and is now at {address} after {starts}: one of the two \
             directories is a copy. Stop the node that runs on the copy; if you need it, start it with --join and another \
             --data",
            known.address, known.starts
        )));
    }
    let loss = Some(LostState {
        starts: known.starts,
        agreed: known.agreed,
    });
    if *starts < known.starts {
        let why = format!(
            "node {node} at {address} was started {} times and says {starts}: its directory is an older copy, or was \
             lost. {replace}",
            known.starts
        );
        return Err(AdmissionRefusal { why, loss });
    }
    if let Some(agreed) = known.agreed.filter(|agreed| !theirs.contains(*agreed)) {
        let last = theirs
            .last
            .map_or("nothing".to_owned(), |last| last.to_string());
        let why = format!(
            "node {node} at {address} acknowledged {agreed}, which its log does not contain; it ends with {last}: it lost \
             what it had acknowledged, so it must not vote. {replace}"
        );
        return Err(AdmissionRefusal { why, loss });
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
pub(crate) mod tests;
