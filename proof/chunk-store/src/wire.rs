//! The messages between the processes: one JSON object in each request and each answer, over HTTP.

use std::net::SocketAddr;

use palisade_core::AuthorityId;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::name::{ChunkId, ServerId};
use crate::version::{Position, Version};

/// The longest chunk, in bytes. GFS has 64 MiB; here a mutation rewrites the file.
pub(crate) const MAX_CHUNK: usize = 1 << 20;

/// A refusal, or the lack of an answer.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, thiserror::Error)]
#[error("{message}")]
pub struct Problem {
    /// The kind, by the caller's next step.
    pub code: ProblemCode,
    /// The message for people.
    pub message: String,
    /// The version at the replica that refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<Version>,
}

/// The kinds of [`Problem`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ProblemCode {
    /// The request is not valid: fix it.
    Invalid,
    /// There is no such chunk or replica.
    NotFound,
    /// There is a chunk of this name already.
    Exists,
    /// This server is not the primary, or no longer: ask the master again.
    NotPrimary,
    /// The version is over, a later one was installed: give up.
    Stale,
    /// The replica has not recorded this version: it admits only its own.
    NotInstalled,
    /// The replica lacks a mutation, or has one that others lack.
    OutOfOrder,
    /// The record is not at all replicas. It was not acknowledged, and may be found by readers.
    Incomplete,
    /// The chunk server is live, or has the only replica of a chunk: stop it or keep it, or insist.
    InUse,
    /// The chunk server was retired: end its process.
    Retired,
    /// Nobody can do it now: ask again later.
    Unavailable,
    /// There was no answer, so the outcome is unknown.
    NoAnswer,
}

impl ProblemCode {
    /// The HTTP status of an answer with this code.
    #[must_use]
    pub const fn status(self) -> u16 {
        match self {
            ProblemCode::Invalid => 400,
            ProblemCode::NotFound => 404,
            ProblemCode::Exists | ProblemCode::NotPrimary | ProblemCode::InUse => 409,
            ProblemCode::Retired => 410,
            ProblemCode::Stale | ProblemCode::NotInstalled | ProblemCode::OutOfOrder => 412,
            ProblemCode::Incomplete | ProblemCode::Unavailable => 503,
            ProblemCode::NoAnswer => 504,
        }
    }
}

impl Problem {
    /// A problem without a version.
    pub fn new(code: ProblemCode, message: impl Into<String>) -> Problem {
        Problem {
            code,
            message: message.into(),
            version: None,
        }
    }

    /// Adds the version at the replica.
    #[must_use]
    pub fn at(self, version: Version) -> Problem {
        Problem {
            version: Some(version),
            ..self
        }
    }
}

/// An authority's id in JSON: its name.
pub(crate) mod authority {
    use super::{AuthorityId, Deserialize as _, Deserializer, Serializer};

    pub(crate) fn serialize<S: Serializer>(id: &AuthorityId, to: S) -> Result<S::Ok, S::Error> {
        to.serialize_str(id.as_str())
    }

    pub(crate) fn deserialize<'de, D: Deserializer<'de>>(from: D) -> Result<AuthorityId, D::Error> {
        let name = String::deserialize(from)?;
        AuthorityId::new(&name).map_err(serde::de::Error::custom)
    }
}

/// A replica's server and where it listens.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Location {
    /// The chunk server.
    pub server: ServerId,
    /// Its address.
    pub address: SocketAddr,
}

/// An answer without content.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {}

// To the master, from chunk servers.

/// `/v1/heartbeat`: the replicas of a chunk server (rule K5).
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Heartbeat {
    pub(crate) server: ServerId,
    pub(crate) address: SocketAddr,
    pub(crate) replicas: Vec<Reported>,
}

/// A replica in a heartbeat.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Reported {
    pub(crate) chunk: ChunkId,
    pub(crate) version: Version,
}

/// The master's answer to each replica of a heartbeat.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Judged {
    pub(crate) replicas: Vec<(ChunkId, Standing)>,
}

/// The verdict about a reported replica (rule K5).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// It took part in the chunk's version.
    Current,
    /// It did not: it may lack acknowledged mutations.
    Stale,
    /// The master has no such chunk.
    Unknown,
    /// Its version is higher than any that was granted, which a durable authority rules out. An alarm.
    Ahead,
}

// To the master, from clients.

/// `/v1/create`, `/v1/delete`, `/v1/lookup`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Named {
    pub(crate) chunk: ChunkId,
}

/// `/v1/primary`: the primary of a chunk; one is chosen if there is none.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WantPrimary {
    pub(crate) chunk: ChunkId,
    /// The primary of this version did not want to be it.
    #[serde(default)]
    pub(crate) refused: Option<Version>,
}

/// The primary of a chunk, and its version.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct PrimaryOf {
    /// The version under which it takes mutations.
    pub version: Version,
    /// The primary.
    pub primary: Location,
}

/// The current replicas of a chunk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Replicas {
    /// The chunk's version.
    pub version: Version,
    /// Where current replicas are. Stale ones are not among them (rule K6).
    pub replicas: Vec<Location>,
}

/// `/v1/snapshot`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Snapshot {
    pub(crate) from: ChunkId,
    pub(crate) to: ChunkId,
}

/// `/v1/retire`: a chunk server is gone for good.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Retire {
    pub(crate) server: ServerId,
    /// Also if it is live, or has the only replica of a chunk.
    #[serde(default)]
    pub(crate) force: bool,
}

/// The chunk that a snapshot made, and its version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Cloned {
    /// The version at which the content was copied.
    pub version: Version,
}

/// The master's view.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Status {
    /// The chunk servers that send heartbeats.
    pub live: Vec<ServerId>,
    /// Whether every chunk server has reported since the master started.
    pub all_reported: bool,
    /// Those that have not: nothing is collected before they report or are retired (rule K6).
    pub missing: Vec<ServerId>,
    /// The chunk servers that were retired.
    pub retired: Vec<ServerId>,
    /// Replicas ahead of their chunk that were reported since the master started (rule K5). Not 0 is an alarm.
    pub alarms: u64,
}

// To chunk servers, from the master.

/// `/v1/grant`: take the chunk's lock, and answer with its version.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Grant {
    pub(crate) chunk: ChunkId,
    /// How long to wait for the former lease to end.
    pub(crate) wait_ms: u64,
}

/// The grant of a chunk's lock.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Granted {
    pub(crate) version: Version,
    #[serde(with = "authority")]
    pub(crate) authority: AuthorityId,
}

/// `/v1/install`: record a version before anybody may use it (rule K3).
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Install {
    pub(crate) chunk: ChunkId,
    #[serde(with = "authority")]
    pub(crate) authority: AuthorityId,
    /// The version so far; a replica below it is stale and may not take part. `None` makes the first replicas.
    pub(crate) from: Option<Version>,
    pub(crate) version: Version,
    pub(crate) expected: Expected,
}

/// The last mutation that a replica must have to take part in a version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Expected {
    /// Any mutation: the others are compared with this replica.
    Any,
    /// The same as the first one's.
    Last(Option<Position>),
}

/// A version is recorded, durably.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct Installed {
    /// The replica's last mutation.
    pub(crate) last: Option<Position>,
}

/// `/v1/publish`: every replica has recorded the version; the primary may take mutations.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Publish {
    pub(crate) chunk: ChunkId,
    pub(crate) version: Version,
    pub(crate) secondaries: Vec<Location>,
}

/// `/v1/revoke`: stop being the primary. The answer is the acknowledgement (rule K2).
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Revoke {
    pub(crate) chunk: ChunkId,
}

/// `/v1/add`, to the primary: make a replica anew at a server, and send it all mutations from now on.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Add {
    pub(crate) chunk: ChunkId,
    pub(crate) version: Version,
    pub(crate) target: Location,
}

/// `/v1/clone`: copy a chunk at a version under another name (rule K7).
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CloneChunk {
    pub(crate) from: ChunkId,
    pub(crate) to: ChunkId,
    pub(crate) version: Version,
}

/// `/v1/collect`: delete a replica, if it still has this version (rule K6).
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Collect {
    pub(crate) chunk: ChunkId,
    pub(crate) version: Version,
}

// To chunk servers, from clients and primaries.

/// `/v1/append`, to the primary.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Append {
    pub(crate) chunk: ChunkId,
    pub(crate) version: Version,
    pub(crate) data: String,
}

/// An acknowledged record: it is durable at every replica of the version.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Appended {
    /// Its place in the order of all mutations.
    pub position: Position,
    /// Where it begins in the chunk, in bytes.
    pub offset: u64,
}

/// `/v1/apply`, from the primary to each secondary.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Mutation {
    pub(crate) chunk: ChunkId,
    #[serde(with = "authority")]
    pub(crate) authority: AuthorityId,
    pub(crate) position: Position,
    /// The mutation right before it: a replica that lacks it must not go on.
    pub(crate) after: Option<Position>,
    pub(crate) offset: u64,
    pub(crate) data: String,
}

/// `/v1/read`.
#[derive(Clone, Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Read {
    pub(crate) chunk: ChunkId,
    pub(crate) version: Version,
}

/// The content of a chunk.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Content {
    /// The version at which it was read.
    pub version: Version,
    /// The last mutation in it.
    pub last: Option<Position>,
    /// The records.
    pub data: String,
}
