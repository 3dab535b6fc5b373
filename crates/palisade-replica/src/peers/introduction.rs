//! What two nodes tell each other about themselves when they meet, and whether they may talk (rule R14).

use std::collections::BTreeMap;

use palisade_wal::Id;

use crate::codec::{Malformed, Put, Take};
use crate::entry::{LogId, NodeId};

/// A cluster has no more nodes than this, and no longer list.
pub const MOST_NODES: usize = 64;

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
    /// How often its log was opened in this life; 0 if there is none.
    pub starts: u64,
    /// The last entry of its log.
    pub last: Option<LogId>,
    /// What its directory is.
    pub standing: Standing,
}

/// What a node's directory is, as far as the others must know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Standing {
    /// There is no log in it.
    Blank {
        /// An authority and an incarnation, drawn at random, for the case that this node's are the ones that are used.
        draft: (Id, Id),
        /// The nodes that are to form a cluster, if it was told; in ascending order.
        list: Option<Vec<String>>,
        /// The digest of the founding that this node has put together from what it heard.
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
    /// The nodes that it was told to form a cluster with.
    #[must_use]
    pub fn list(&self) -> Option<&[String]> {
        match self {
            Standing::Blank { list, .. } | Standing::Single { list, .. } => list.as_deref(),
            Standing::Member { .. } => None,
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
        out.u64(self.starts);
        out.option(self.last, Vec::log_id);
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
            starts: from.u64()?,
            last: from.option(Take::log_id)?,
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
    match text.len() <= LONGEST && !text.chars().any(char::is_control) {
        true => Ok(text.to_owned()),
        false => Err(Malformed("an address is too long or not printable")),
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

fn members(from: &mut Take<'_>) -> Result<BTreeMap<NodeId, String>, Malformed> {
    let count = count(from)?;
    (0..count)
        .map(|_| Ok((NodeId(from.u64()?), text(from)?)))
        .collect()
}

/// What a node remembers of another one that it has met.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Known {
    /// Where.
    pub address: String,
    /// After how many starts.
    pub starts: u64,
    /// Up to here both have the same entries, and they are committed.
    pub agreed: Option<LogId>,
}

/// Decides whether a node may be talked to. `expected` is the node that was to be reached, if one was.
///
/// # Errors
/// Why not, with both values, and what to do. It is for both sides.
pub fn judge(
    own: &Introduction,
    expected: Option<NodeId>,
    known: Option<&Known>,
    theirs: &Introduction,
) -> Result<(), String> {
    let (node, address) = (theirs.node, &theirs.address);
    if node == own.node {
        return Err(format!(
            "node {node} at {address} has the same id as the node at {}: one of the two directories is a copy. Stop \
             that node, and start it with an empty directory",
            own.address
        ));
    }
    same_cluster(own, theirs)?;
    if let Some(expected) = expected.filter(|expected| *expected != node) {
        return Err(format!(
            "{address} should be node {expected} and is node {node}: if the disk of node {expected} was lost, type \
             `palisade cluster replace {expected} {node}`"
        ));
    }
    known.map_or(Ok(()), |known| not_behind(known, theirs))
}

fn same_cluster(own: &Introduction, theirs: &Introduction) -> Result<(), String> {
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
        return Err(format!(
            "{here} belongs to cluster {authority}, {there} to cluster {their_authority}: correct the addresses of one \
             of them. If two clusters were formed by mistake, decide which one stays, and start the nodes of the other one \
             with --join on empty directories"
        ));
    }
    if incarnation != their_incarnation {
        return Err(format!(
            "{here} is of incarnation {incarnation} of its cluster, {there} of incarnation {their_incarnation}: a \
             restore or a recovery began the newer one. Stop the nodes of the older one, and start them with empty \
             directories"
        ));
    }
    Ok(())
}

fn place(of: &Introduction) -> String {
    format!("node {} at {}", of.node, of.address)
}

fn not_behind(known: &Known, theirs: &Introduction) -> Result<(), String> {
    let Introduction {
        node,
        address,
        starts,
        last,
        ..
    } = theirs;
    let replace = format!(
        "Stop it, start it with an empty directory, and type `palisade cluster replace {node} NEW` with the id that it \
         reports then"
    );
    if known.address != *address && *starts <= known.starts {
        return Err(format!(
            "node {node} was met at {} after {} starts and is now at {address} after {starts}: one of the two \
             directories is a copy. {replace}",
            known.address, known.starts
        ));
    }
    if *starts < known.starts {
        return Err(format!(
            "node {node} at {address} was started {} times and says {starts}: its directory is an older copy, or was \
             lost. {replace}",
            known.starts
        ));
    }
    if let Some(agreed) = known.agreed.filter(|agreed| *last < Some(*agreed)) {
        let last = last.map_or("nothing".to_owned(), |last| last.to_string());
        return Err(format!(
            "node {node} at {address} acknowledged {agreed} and its log ends with {last}: it lost what it had \
             acknowledged, so it must not vote. {replace}"
        ));
    }
    Ok(())
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
pub(crate) mod tests {
    use super::*;
    use crate::entry::Leader;

    pub(crate) fn id(byte: u8) -> Id {
        Id::from_bytes([byte; 16])
    }

    pub(crate) fn entry(index: u64) -> LogId {
        let leader = Leader {
            term: 3,
            node: NodeId(7),
        };
        LogId { leader, index }
    }

    pub(crate) fn member(node: u64) -> Introduction {
        Introduction {
            node: NodeId(node),
            address: format!("10.0.0.{node}:7421"),
            url: format!("http://10.0.0.{node}:7420"),
            starts: 5,
            last: Some(entry(9)),
            standing: Standing::Member {
                authority: id(0xaa),
                incarnation: id(1),
                members: [(NodeId(node), "10.0.0.1:7421".into())].into(),
            },
        }
    }

    fn all() -> [Introduction; 4] {
        let list = Some(vec!["a:1".to_owned(), "b:2".to_owned()]);
        let blank = Standing::Blank {
            draft: (id(2), id(3)),
            list: list.clone(),
            proposal: Some([9; 32]),
        };
        let single = Standing::Single {
            authority: id(4),
            list,
        };
        let joins = Standing::Blank {
            draft: (id(2), id(3)),
            list: None,
            proposal: None,
        };
        let with = |standing| Introduction {
            standing,
            starts: 0,
            last: None,
            ..member(2)
        };
        [member(1), with(blank), with(single), with(joins)]
    }

    #[test]
    fn an_introduction_is_read_as_it_was_written_and_damaged_bytes_do_no_harm() {
        for introduction in all() {
            let bytes = introduction.encode();
            assert_eq!(Introduction::decode(&bytes).as_ref(), Ok(&introduction));
            for at in 0..bytes.len() {
                assert!(Introduction::decode(&bytes[..at]).is_err());
                for bit in 0..8 {
                    let mut damaged = bytes.clone();
                    damaged[at] ^= 1 << bit;
                    assert_ne!(Introduction::decode(&damaged).as_ref(), Ok(&introduction));
                }
            }
        }
    }

    #[test]
    fn an_introduction_is_bounded() {
        let mut long = member(1);
        long.url = "x".repeat(256);
        assert!(Introduction::decode(&long.encode()).is_err());
        let mut unprintable = member(1);
        unprintable.url = "http://a\n10 locks were revoked".into();
        assert!(Introduction::decode(&unprintable.encode()).is_err());
        let mut crowded = member(1);
        if let Standing::Member { members, .. } = &mut crowded.standing {
            members.extend((2..=65).map(|node| (NodeId(node), "x".repeat(255))));
        }
        assert!(Introduction::decode(&crowded.encode()).is_err());
        if let Standing::Member { members, .. } = &mut crowded.standing {
            members.pop_last();
        }
        let largest = crowded.encode();
        assert_eq!(Introduction::decode(&largest), Ok(crowded));
        assert!(largest.len() < super::super::handshake::LONGEST_CLAIM);
    }

    /// Each refusal, with what it must name.
    #[test]
    fn who_must_not_be_talked_to() {
        let own = member(1);
        let known = Known {
            address: "10.0.0.2:7421".into(),
            starts: 5,
            agreed: Some(entry(9)),
        };
        let judged = |change: fn(&mut Introduction)| {
            let mut theirs = member(2);
            change(&mut theirs);
            judge(&own, Some(NodeId(2)), Some(&known), &theirs)
        };
        fn of_six() -> Standing {
            Standing::Member {
                authority: id(0xaa),
                incarnation: id(6),
                members: BTreeMap::new(),
            }
        }
        let of_incarnation = |them: &mut Introduction| them.standing = of_six();
        assert_eq!(judged(|_| ()), Ok(()));
        assert_eq!(judged(|them| them.starts = 6), Ok(()));
        assert_eq!(
            judged(|them| (them.starts, them.address) = (6, "elsewhere:1".into())),
            Ok(()),
            "it moved"
        );
        assert_eq!(judged(|them| them.last = Some(entry(10))), Ok(()));
        let (a, b, one, six) = (
            "aa".repeat(16),
            "bb".repeat(16),
            "01".repeat(16),
            "06".repeat(16),
        );
        type Case<'a> = (fn(&mut Introduction), [&'a str; 3]);
        let cases: [Case<'_>; 9] = [
            (
                |them| them.node = NodeId(1),
                ["same id", "10.0.0.1:7421", "empty directory"],
            ),
            (
                |them| them.node = NodeId(3),
                [
                    "0000000000000002",
                    "0000000000000003",
                    "cluster replace 0000000000000002",
                ],
            ),
            (
                |them| {
                    them.standing = Standing::Member {
                        authority: id(0xbb),
                        incarnation: id(1),
                        members: BTreeMap::new(),
                    };
                },
                [&a, &b, "correct the addresses"],
            ),
            (of_incarnation, [&one, &six, "empty directories"]),
            (
                |them| (them.node, them.standing) = (NodeId(3), of_six()),
                [&one, &six, "empty directories"],
            ),
            (
                |them| them.starts = 4,
                ["5 times", "says 4", "cluster replace 0000000000000002"],
            ),
            (
                |them| them.address = "elsewhere:1".into(),
                ["elsewhere:1", "10.0.0.2:7421", "is a copy"],
            ),
            (
                |them| them.last = Some(entry(8)),
                ["entry 9", "entry 8", "must not vote"],
            ),
            (
                |them| them.last = None,
                ["entry 9", "nothing", "must not vote"],
            ),
        ];
        for (change, parts) in cases {
            let why = judged(change).unwrap_err();
            for part in parts {
                assert!(why.contains(part), "{why}: {part}");
            }
        }
    }
}
