//! How log ids, votes, members and entries are written as bytes: in the log, in snapshots and between nodes.
//!
//! Numbers are little-endian, lengths are 32 bits, an option is a byte and perhaps a value. Nothing read here
//! is trusted: lengths are bounded by the bytes that are there.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::entry::{Entry, Leader, LogId, Members, NodeId, Payload, Vote};

/// Bytes that are not in the format.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Malformed(pub(crate) &'static str);

/// Writes.
pub(crate) trait Put {
    fn u8(&mut self, value: u8);
    fn u64(&mut self, value: u64);
    fn bytes(&mut self, bytes: &[u8]);

    fn option<T>(&mut self, value: Option<T>, put: impl FnOnce(&mut Self, T)) {
        self.u8(value.is_some().into());
        if let Some(value) = value {
            put(self, value);
        }
    }

    fn log_id(&mut self, id: LogId) {
        self.u64(id.leader.term);
        self.u64(id.leader.node.0);
        self.u64(id.index);
    }

    fn vote(&mut self, vote: Vote) {
        self.u64(vote.leader.term);
        self.u64(vote.leader.node.0);
        self.u8(vote.committed.into());
    }

    fn members(&mut self, members: &Members) {
        self.u64(members.voters.len() as u64);
        for voters in &members.voters {
            self.u64(voters.len() as u64);
            for node in voters {
                self.u64(node.0);
            }
        }
        self.u64(members.nodes.len() as u64);
        for (node, address) in &members.nodes {
            self.u64(node.0);
            self.bytes(address.as_bytes());
        }
    }

    fn entry(&mut self, entry: &Entry) {
        self.log_id(entry.id);
        match &entry.payload {
            Payload::Blank => self.u8(0),
            Payload::Batch(batch) => {
                self.u8(1);
                self.bytes(batch);
            }
            Payload::Members(members) => {
                self.u8(2);
                self.members(members);
            }
        }
    }
}

impl Put for Vec<u8> {
    fn u8(&mut self, value: u8) {
        self.push(value);
    }

    fn u64(&mut self, value: u64) {
        self.extend_from_slice(&value.to_le_bytes());
    }

    /// Everything in the log and on the transport is far shorter than 4 GiB.
    fn bytes(&mut self, bytes: &[u8]) {
        let Ok(length) = u32::try_from(bytes.len()) else {
            unreachable!("an entry takes 4 GiB");
        };
        self.extend_from_slice(&length.to_le_bytes());
        self.extend_from_slice(bytes);
    }
}

/// Reads, from the front, the values that [`Put`] wrote.
pub(crate) struct Take<'a>(pub(crate) &'a [u8]);

impl<'a> Take<'a> {
    /// Nothing may be left.
    pub(crate) fn end(self) -> Result<(), Malformed> {
        match self.0.is_empty() {
            true => Ok(()),
            false => Err(Malformed("bytes are left over")),
        }
    }

    fn slice(&mut self, length: usize) -> Result<&'a [u8], Malformed> {
        let (head, tail) = self
            .0
            .split_at_checked(length)
            .ok_or(Malformed("it ends too early"))?;
        self.0 = tail;
        Ok(head)
    }

    pub(crate) fn u8(&mut self) -> Result<u8, Malformed> {
        Ok(self.slice(1)?[0])
    }

    pub(crate) fn flag(&mut self) -> Result<bool, Malformed> {
        match self.u8()? {
            0 => Ok(false),
            1 => Ok(true),
            _ => Err(Malformed("a flag is neither 0 nor 1")),
        }
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Malformed> {
        let bytes = self.slice(8)?;
        let bytes = bytes
            .try_into()
            .map_err(|_| Malformed("it ends too early"))?;
        Ok(u64::from_le_bytes(bytes))
    }

    pub(crate) fn bytes(&mut self) -> Result<&'a [u8], Malformed> {
        let length = self.slice(4)?;
        let length = length
            .try_into()
            .map_err(|_| Malformed("it ends too early"))?;
        self.slice(u32::from_le_bytes(length) as usize)
    }

    pub(crate) fn option<T>(
        &mut self,
        take: impl FnOnce(&mut Self) -> Result<T, Malformed>,
    ) -> Result<Option<T>, Malformed> {
        match self.flag()? {
            true => take(self).map(Some),
            false => Ok(None),
        }
    }

    pub(crate) fn log_id(&mut self) -> Result<LogId, Malformed> {
        Ok(LogId {
            leader: self.leader()?,
            index: self.u64()?,
        })
    }

    pub(crate) fn vote(&mut self) -> Result<Vote, Malformed> {
        Ok(Vote {
            leader: self.leader()?,
            committed: self.flag()?,
        })
    }

    fn leader(&mut self) -> Result<Leader, Malformed> {
        Ok(Leader {
            term: self.u64()?,
            node: NodeId(self.u64()?),
        })
    }

    pub(crate) fn members(&mut self) -> Result<Members, Malformed> {
        let mut voters = Vec::new();
        for _ in 0..self.u64()? {
            let mut set = BTreeSet::new();
            for _ in 0..self.u64()? {
                set.insert(NodeId(self.u64()?));
            }
            voters.push(set);
        }
        let mut nodes = BTreeMap::new();
        for _ in 0..self.u64()? {
            let node = NodeId(self.u64()?);
            let address = std::str::from_utf8(self.bytes()?);
            let address = address.map_err(|_| Malformed("an address is not UTF-8"))?;
            nodes.insert(node, address.to_owned());
        }
        Ok(Members { voters, nodes })
    }

    /// Reads an entry's place in the log, and skips the rest of the entry.
    pub(crate) fn skip_entry(&mut self) -> Result<LogId, Malformed> {
        let id = self.log_id()?;
        match self.u8()? {
            0 => {}
            1 => drop(self.bytes()?),
            2 => drop(self.members()?),
            _ => return Err(Malformed("an entry is of an unknown kind")),
        }
        Ok(id)
    }

    pub(crate) fn entry(&mut self) -> Result<Entry, Malformed> {
        let id = self.log_id()?;
        let payload = match self.u8()? {
            0 => Payload::Blank,
            1 => Payload::Batch(Arc::from(self.bytes()?)),
            2 => Payload::Members(self.members()?),
            _ => return Err(Malformed("an entry is of an unknown kind")),
        };
        Ok(Entry { id, payload })
    }
}
