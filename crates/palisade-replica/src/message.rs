//! The messages between nodes. The transport carries them as bytes and does not look into them.

use std::sync::Arc;

use crate::codec::{Malformed, Put, Take};
use crate::entry::{Entry, Leader, LogId, Members, NodeId, Vote};

/// The version at the start of every message.
const VERSION: u8 = 1;

/// The tag of an append, which follows the version.
const APPEND: u8 = 1;

/// A question.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Request {
    Append {
        vote: Vote,
        previous: Option<LogId>,
        entries: Vec<Entry>,
        commit: Option<LogId>,
    },
    Vote(Candidacy),
    /// Whether the node would vote that way; it does not.
    PreVote(Candidacy),
    /// A part of a snapshot. The last one has it installed.
    Snapshot {
        vote: Vote,
        applied: Option<LogId>,
        members: (Option<LogId>, Members),
        offset: u64,
        total: u64,
        part: Arc<[u8]>,
    },
    /// The leader wants `to` to lead.
    Transfer {
        from: Vote,
        to: NodeId,
        last: Option<LogId>,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Candidacy {
    pub(crate) vote: Vote,
    pub(crate) last: Option<LogId>,
    pub(crate) transfer: bool,
}

/// An answer.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Reply {
    Appended,
    AppendedTo(Option<LogId>),
    Conflict,
    HigherVote(Vote),
    Vote {
        vote: Vote,
        last: Option<LogId>,
        granted: bool,
    },
    /// A part of a snapshot was received, or the whole is installed.
    Snapshot(Vote),
    /// Whether leadership will be taken.
    Transfer(bool),
    /// This node cannot answer.
    Failed(String),
}

impl Request {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        match self {
            Request::Append {
                vote,
                previous,
                entries,
                commit,
            } => {
                out.u8(APPEND);
                out.vote(*vote);
                out.option(*previous, Vec::log_id);
                out.option(*commit, Vec::log_id);
                entries.iter().for_each(|entry| out.entry(entry));
            }
            Request::Vote(candidacy) => {
                out.u8(2);
                candidacy.put(&mut out);
            }
            Request::PreVote(candidacy) => {
                out.u8(3);
                candidacy.put(&mut out);
            }
            Request::Snapshot {
                vote,
                applied,
                members,
                offset,
                total,
                part,
            } => {
                out.u8(4);
                out.vote(*vote);
                out.option(*applied, Vec::log_id);
                out.option(members.0, Vec::log_id);
                out.members(&members.1);
                out.u64(*offset);
                out.u64(*total);
                out.bytes(part);
            }
            Request::Transfer { from, to, last } => {
                out.u8(5);
                out.vote(*from);
                out.u64(to.0);
                out.option(*last, Vec::log_id);
            }
        }
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Request, Malformed> {
        let mut from = versioned(bytes)?;
        let request = match from.u8()? {
            APPEND => {
                let (vote, previous) = (from.vote()?, from.option(Take::log_id)?);
                let commit = from.option(Take::log_id)?;
                let mut entries = Vec::new();
                while !from.0.is_empty() {
                    entries.push(from.entry()?);
                }
                Request::Append {
                    vote,
                    previous,
                    entries,
                    commit,
                }
            }
            2 => Request::Vote(Candidacy::take(&mut from)?),
            3 => Request::PreVote(Candidacy::take(&mut from)?),
            4 => Request::Snapshot {
                vote: from.vote()?,
                applied: from.option(Take::log_id)?,
                members: (from.option(Take::log_id)?, from.members()?),
                offset: from.u64()?,
                total: from.u64()?,
                part: from.bytes()?.into(),
            },
            5 => Request::Transfer {
                from: from.vote()?,
                to: NodeId(from.u64()?),
                last: from.option(Take::log_id)?,
            },
            _ => return Err(Malformed("a message is of an unknown kind")),
        };
        from.end()?;
        Ok(request)
    }
}

impl Candidacy {
    fn put(&self, out: &mut Vec<u8>) {
        out.vote(self.vote);
        out.option(self.last, Vec::log_id);
        out.u8(self.transfer.into());
    }

    fn take(from: &mut Take<'_>) -> Result<Candidacy, Malformed> {
        Ok(Candidacy {
            vote: from.vote()?,
            last: from.option(Take::log_id)?,
            transfer: from.flag()?,
        })
    }
}

impl Reply {
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut out = vec![VERSION];
        match self {
            Reply::Appended => out.u8(1),
            Reply::AppendedTo(last) => {
                out.u8(2);
                out.option(*last, Vec::log_id);
            }
            Reply::Conflict => out.u8(3),
            Reply::HigherVote(vote) => {
                out.u8(4);
                out.vote(*vote);
            }
            Reply::Vote {
                vote,
                last,
                granted,
            } => {
                out.u8(5);
                out.vote(*vote);
                out.option(*last, Vec::log_id);
                out.u8((*granted).into());
            }
            Reply::Snapshot(vote) => {
                out.u8(6);
                out.vote(*vote);
            }
            Reply::Transfer(taken) => {
                out.u8(7);
                out.u8((*taken).into());
            }
            Reply::Failed(why) => {
                out.u8(8);
                out.bytes(why.as_bytes());
            }
        }
        out
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Reply, Malformed> {
        let mut from = versioned(bytes)?;
        let reply = match from.u8()? {
            1 => Reply::Appended,
            2 => Reply::AppendedTo(from.option(Take::log_id)?),
            3 => Reply::Conflict,
            4 => Reply::HigherVote(from.vote()?),
            5 => Reply::Vote {
                vote: from.vote()?,
                last: from.option(Take::log_id)?,
                granted: from.flag()?,
            },
            6 => Reply::Snapshot(from.vote()?),
            7 => Reply::Transfer(from.flag()?),
            8 => Reply::Failed(String::from_utf8_lossy(from.bytes()?).into_owned()),
            _ => return Err(Malformed("an answer is of an unknown kind")),
        };
        from.end()?;
        Ok(reply)
    }
}

/// The question whether a node is there, and whether it leads with a quorum. A node of a build
/// that does not know it answers that it has failed, which shows that it is there.
pub(crate) const PROBE: [u8; 2] = [VERSION, 6];

/// The answer.
pub(crate) fn probed(leads: bool) -> Vec<u8> {
    vec![VERSION, 9, leads.into()]
}

/// Whether the node leads, in an answer; `None` if it is no answer to this question.
pub(crate) fn probed_by(answer: &[u8]) -> Option<bool> {
    match answer {
        [VERSION, 9, leads] => Some(*leads != 0),
        _ => None,
    }
}

/// The entries that an append offers, and how far the leader has committed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Offer {
    leader: Leader,
    last: LogId,
    committed: Option<LogId>,
    /// Whether it has entries, so that its answer needs the other node's disk.
    has_entries: bool,
}

impl Offer {
    /// Whether its answer needs the other node's disk.
    #[must_use]
    pub fn has_entries(&self) -> bool {
        self.has_entries
    }

    /// The entries that this message offers, if it is an append.
    #[must_use]
    pub fn of(message: &[u8]) -> Option<Offer> {
        let append = || -> Result<Option<Offer>, Malformed> {
            let mut from = versioned(message)?;
            if from.u8()? != APPEND {
                return Ok(None);
            }
            let leader = from.vote()?.leader;
            let mut last = from.option(Take::log_id)?;
            let committed = from.option(Take::log_id)?;
            let has_entries = !from.0.is_empty();
            while !from.0.is_empty() {
                last = Some(from.skip_entry()?);
            }
            Ok(last.map(|last| Offer {
                leader,
                last,
                committed,
                has_entries,
            }))
        };
        append().ok().flatten()
    }

    /// The entries of this offer that the other node has after this answer, or those of `before` from the same leader
    /// if they reach further.
    pub(crate) fn taken(self, answer: &[u8], before: Option<Offer>) -> Option<Offer> {
        let last = match Reply::decode(answer) {
            Ok(Reply::Appended) => self.last,
            Ok(Reply::AppendedTo(last)) => last?,
            _ => return None,
        };
        let before = before.filter(|before| before.leader == self.leader);
        Some(Offer {
            last: before.map_or(last, |before| before.last.max(last)),
            ..self
        })
    }

    /// The last committed entry that the other node is known to have, by this offer and a `later` one of the same
    /// leader to any node. A leader's log only grows, and committed entries are never truncated: a log that ends before
    /// this lost something.
    pub(crate) fn agreed(self, later: Option<Offer>) -> Option<LogId> {
        let later = later.filter(|later| later.leader == self.leader);
        let committed = self
            .committed
            .max(later.and_then(|later| later.committed))?;
        if committed.index <= self.last.index {
            Some(committed)
        } else {
            Some(self.last)
        }
    }
}

fn versioned(bytes: &[u8]) -> Result<Take<'_>, Malformed> {
    let mut from = Take(bytes);
    match from.u8()? {
        VERSION => Ok(from),
        _ => Err(Malformed("a message has an unknown version")),
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a test fails by panicking")]
mod tests {
    use super::*;
    use crate::entry::Payload;

    fn requests() -> Vec<Request> {
        let leader = Leader {
            term: 3,
            node: NodeId(7),
        };
        let (id, committed) = (LogId { leader, index: 5 }, true);
        let vote = Vote { leader, committed };
        let members = Members {
            voters: vec![[NodeId(7), NodeId(8)].into()],
            nodes: [(NodeId(7), "10.0.0.1:7421".to_owned())].into(),
        };
        let payloads = [
            Payload::Blank,
            Payload::Batch(b"batch"[..].into()),
            Payload::Members(members.clone()),
        ];
        let candidacy = Candidacy {
            vote,
            last: Some(id),
            transfer: false,
        };
        vec![
            Request::Append {
                vote,
                previous: None,
                entries: payloads.map(|payload| Entry { id, payload }).into(),
                commit: Some(id),
            },
            Request::Vote(candidacy),
            Request::PreVote(candidacy),
            Request::Snapshot {
                vote,
                applied: Some(id),
                members: (Some(id), members),
                offset: 1,
                total: 9,
                part: b"part"[..].into(),
            },
            Request::Transfer {
                from: vote,
                to: NodeId(8),
                last: None,
            },
        ]
    }

    #[test]
    fn a_message_is_read_as_it_was_written_and_damaged_bytes_do_no_harm() {
        for request in requests() {
            let bytes = request.encode();
            assert_eq!(Request::decode(&bytes).as_ref(), Ok(&request));
            for at in 0..bytes.len() {
                // A shorter one may be an append with fewer entries; it is never the same message.
                assert_ne!(Request::decode(&bytes[..at]).as_ref(), Ok(&request));
                for bit in 0..8 {
                    let mut damaged = bytes.clone();
                    damaged[at] ^= 1 << bit;
                    assert_ne!(Request::decode(&damaged).as_ref(), Ok(&request));
                }
            }
            assert!(Request::decode(&[9]).is_err(), "an unknown version");
        }
    }

    #[test]
    fn what_both_have_and_is_committed_follows_from_an_append_and_its_answer() {
        let id = |index| LogId {
            leader: Leader {
                term: 3,
                node: NodeId(7),
            },
            index,
        };
        let append = |entries: std::ops::Range<u64>, commit| {
            let vote = Vote {
                leader: id(0).leader,
                committed: true,
            };
            let entry = |index| Entry {
                id: id(index),
                payload: Payload::Batch(b"batch"[..].into()),
            };
            Request::Append {
                vote,
                previous: Some(id(4)),
                entries: entries.map(entry).collect(),
                commit: Some(id(commit)),
            }
        };
        let offer = |request: Request| Offer::of(&request.encode()).unwrap();
        let agreed = |request: Request, reply: Reply, later: Option<Offer>| {
            let taken = offer(request).taken(&reply.encode(), None);
            taken.and_then(|taken| taken.agreed(later))
        };
        for (entries, commit, reply, expect) in [
            (5..8, 5, Reply::Appended, Some(5)),
            (5..8, 9, Reply::Appended, Some(7)),
            (5..5, 9, Reply::Appended, Some(4)),
            (5..8, 9, Reply::AppendedTo(Some(id(6))), Some(6)),
            (5..8, 9, Reply::AppendedTo(None), None),
            (5..8, 9, Reply::Conflict, None),
        ] {
            let found = agreed(append(entries, commit), reply, None);
            assert_eq!(found, expect.map(id));
        }
        // An entry that was only acknowledged counts once the same leader says that it is committed.
        let later = offer(append(8..9, 6));
        let found = agreed(append(5..8, 4), Reply::Appended, Some(later));
        assert_eq!(found, Some(id(6)));
        let other = Leader {
            term: 4,
            node: NodeId(8),
        };
        let of_another = Offer {
            leader: other,
            ..later
        };
        let found = agreed(append(5..8, 4), Reply::Appended, Some(of_another));
        assert_eq!(found, Some(id(4)), "it may have been truncated");
        for request in requests() {
            let bytes = request.encode();
            let offers = matches!(request, Request::Append { .. });
            // A member's entry is the last one in the example.
            assert_eq!(Offer::of(&bytes).is_some(), offers);
        }
    }
}
