//! A request to a table, with owned data, so that it can wait in a queue.

use palisade_core::fence::{Op, Pass, Rearm, Sequence};
use palisade_core::{AuthorityId, LockName, Token};

use crate::fence::Edit;
use crate::name::{ObjectPath, ResourceId};

/// One operation at one resource.
#[derive(Clone, Debug)]
pub(crate) struct Request {
    pub(crate) resource: ResourceId,
    /// `None`: a write by code without a token.
    pub(crate) by: Option<Credentials>,
    pub(crate) operation: Operation,
}

/// A [`Pass`] that owns its names.
#[derive(Clone, Debug)]
pub(crate) struct Credentials {
    token: Token,
    authority: Option<AuthorityId>,
    lock: Option<LockName>,
    signed: bool,
}

#[derive(Clone, Debug)]
pub(crate) enum Operation {
    Claim,
    Read(ObjectPath),
    Write {
        path: ObjectPath,
        alter: Alter,
        numbered: Option<Numbered>,
    },
    /// An operator's request for the fence alone.
    Rearm {
        floor: Token,
        authority: Option<AuthorityId>,
        lower_from: Option<Token>,
    },
    /// A write whose effect is elsewhere, behind the fence: only its mark is kept here.
    #[cfg(feature = "http")]
    Effect(Option<Numbered>),
}

/// A sequence number and the digest of the first write under it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Numbered {
    pub(crate) sequence: Sequence,
    pub(crate) digest: u64,
}

/// An [`Edit`] that owns its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Alter {
    Put(Vec<u8>),
    Append(Vec<u8>),
    Delete,
}

/// Distinguishes a repeated write from another write under the same number: a checksum of its content and length. It
/// detects a caller's mistake, not an attack.
pub(crate) fn digest(path: &ObjectPath, alter: &Alter) -> u64 {
    let mut crc = crc32fast::Hasher::new();
    crc.update(path.as_str().as_bytes());
    // A path has no control characters, so this byte both ends it and names the kind.
    crc.update(&[alter.kind()]);
    let bytes = alter.bytes();
    crc.update(bytes);
    u64::from(crc.finalize()) << 32 | bytes.len() as u64 & 0xffff_ffff
}

impl Request {
    /// Creates an operator's request to re-arm a fence.
    pub(crate) fn rearm(resource: ResourceId, with: &Rearm<'_>) -> Request {
        let Rearm {
            floor,
            authority,
            lower_from,
        } = *with;
        Request {
            resource,
            by: None,
            operation: Operation::Rearm {
                floor,
                authority: authority.cloned(),
                lower_from,
            },
        }
    }
}

#[cfg(feature = "store")]
impl Request {
    /// An upper bound on the size of its record in a log, and roughly its size in a queue.
    pub(crate) fn size(&self) -> usize {
        let by = self.by.as_ref().map_or(0, Credentials::size);
        RECORD_BYTES + self.resource.as_str().len() + by + self.operation.size()
    }
}

impl Credentials {
    pub(crate) fn as_pass(&self) -> Pass<'_> {
        Pass {
            authority: self.authority.as_ref(),
            lock: self.lock.as_ref(),
            signed: self.signed,
            ..Pass::new(self.token)
        }
    }
}

#[cfg(feature = "store")]
impl Credentials {
    fn size(&self) -> usize {
        let authority = self.authority.as_ref().map_or(0, |name| name.len());
        authority + self.lock.as_ref().map_or(0, |name| name.len())
    }
}

impl From<Pass<'_>> for Credentials {
    fn from(pass: Pass<'_>) -> Credentials {
        let Pass {
            token,
            authority,
            lock,
            signed,
            ..
        } = pass;
        Credentials {
            token,
            signed,
            authority: authority.cloned(),
            lock: lock.cloned(),
        }
    }
}

impl Operation {
    /// Creates a write. Its digest is computed here, by the caller, so that no other request waits for it.
    pub(crate) fn write(path: ObjectPath, alter: Alter, sequence: Option<Sequence>) -> Operation {
        let numbered = sequence.map(|sequence| Numbered {
            sequence,
            digest: digest(&path, &alter),
        });
        Operation::Write {
            path,
            alter,
            numbered,
        }
    }

    /// Returns the object that a read with a token requests.
    pub(crate) const fn reads(&self) -> Option<&ObjectPath> {
        match self {
            Operation::Read(path) => Some(path),
            _ => None,
        }
    }

    pub(crate) const fn numbered(&self) -> Option<&Numbered> {
        match self {
            Operation::Claim | Operation::Read(_) | Operation::Rearm { .. } => None,
            Operation::Write { numbered, .. } => numbered.as_ref(),
            #[cfg(feature = "http")]
            Operation::Effect(numbered) => numbered.as_ref(),
        }
    }

    pub(crate) const fn op(&self) -> Op {
        match self {
            Operation::Claim | Operation::Rearm { .. } => Op::Claim,
            Operation::Read(_) => Op::Read,
            _ => match self.numbered() {
                None => Op::Write(None),
                Some(numbered) => Op::Write(Some(numbered.sequence)),
            },
        }
    }
}

#[cfg(feature = "store")]
impl Operation {
    fn size(&self) -> usize {
        match self {
            Operation::Claim | Operation::Rearm { .. } => 0,
            #[cfg(feature = "http")]
            Operation::Effect(_) => 0,
            Operation::Read(path) => path.as_str().len(),
            Operation::Write { path, alter, .. } => path.as_str().len() + alter.bytes().len(),
        }
    }
}

impl Alter {
    /// Returns the tag of the change in the log.
    pub(crate) const fn kind(&self) -> u8 {
        match self {
            Alter::Put(_) => 1,
            Alter::Append(_) => 2,
            Alter::Delete => 3,
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Alter::Put(bytes) | Alter::Append(bytes) => bytes,
            Alter::Delete => &[],
        }
    }
}

impl From<Edit<'_>> for Alter {
    fn from(change: Edit<'_>) -> Alter {
        match change {
            Edit::Put(bytes) => Alter::Put(bytes.to_vec()),
            Edit::Append(bytes) => Alter::Append(bytes.to_vec()),
            Edit::Delete => Alter::Delete,
        }
    }
}

/// The largest size of a record without its names and bytes. Most of it allows for a fence with more names
/// than the request has (because it was bound before).
#[cfg(feature = "store")]
const RECORD_BYTES: usize = 1_024;
