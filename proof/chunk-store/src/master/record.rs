//! The master's durable state: the chunks, their versions and the servers that take part. One file, replaced as a whole.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::name::{ChunkId, ServerId};
use crate::version::Version;

/// The master's durable state.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct MasterRecord {
    /// Every chunk server that ever reported, except those that were retired.
    pub(crate) servers: BTreeSet<ServerId>,
    /// The chunk servers that were retired. Their names are refused for ever.
    #[serde(default, skip_serializing_if = "BTreeSet::is_empty")]
    pub(crate) retired: BTreeSet<ServerId>,
    /// All chunks.
    pub(crate) chunks: BTreeMap<ChunkId, Chunk>,
}

/// One chunk.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Chunk {
    /// The version that clients may know; `None` before the first one is published.
    pub(crate) published: Option<Version>,
    /// A version that replicas may have recorded, and that is not published. It is recorded here before it is installed
    /// anywhere, so no replica is ever ahead of this record.
    pub(crate) installing: Option<Version>,
    /// The replicas that took part in the published version, or the servers chosen for the first one.
    pub(crate) members: BTreeSet<ServerId>,
    /// The primary of the published version.
    pub(crate) primary: Option<ServerId>,
    /// The server that may have the chunk's lock. It is recorded before it is asked to take it.
    pub(crate) asked: Option<ServerId>,
}

impl Chunk {
    /// A chunk without a version, and the servers of its first replicas.
    pub(crate) fn new(members: BTreeSet<ServerId>) -> Chunk {
        Chunk {
            members,
            ..Chunk::default()
        }
    }

    /// The highest version that a replica can have.
    pub(crate) fn highest(&self) -> Option<Version> {
        self.published.max(self.installing)
    }

    /// Whether a replica with this version took part in the chunk's version (rule K5). Between the published version and
    /// one that is being installed nobody writes, so a replica that has recorded the latter lacks nothing.
    pub(crate) fn is_current(&self, server: &ServerId, version: Version) -> bool {
        self.members.contains(server)
            && self.highest().is_some_and(|highest| version <= highest)
            && self.published.is_none_or(|published| version >= published)
    }
}
