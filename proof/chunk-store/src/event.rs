//! The events that the processes record, one JSON line each on standard output. The story and its picture are made
//! from them.

use std::io::Write as _;
use std::net::SocketAddr;

use palisade_client::clock::{BootClock, Clock as _};
use palisade_core::Timestamp;
use serde::{Deserialize, Serialize};

use crate::name::{ChunkId, ServerId};
use crate::version::{Serial, Version};

/// An event, and when it was recorded.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// Milliseconds on CLOCK_BOOTTIME, which all processes of a machine share.
    pub at_ms: f64,
    /// The event.
    #[serde(flatten)]
    pub event: Event,
}

/// The kinds of events.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "event", rename_all = "snake_case")]
pub enum Event {
    /// A process listens.
    Listening {
        /// Where.
        address: SocketAddr,
    },
    /// A chunk server was granted a chunk's lock.
    Granted {
        /// The primary to be.
        server: ServerId,
        /// The chunk.
        chunk: ChunkId,
        /// The grant's token.
        version: Version,
    },
    /// A replica recorded a version (rule K3).
    Installed {
        /// The replica's server.
        server: ServerId,
        /// The chunk.
        chunk: ChunkId,
        /// The version.
        version: Version,
        /// Its records.
        content: Vec<String>,
    },
    /// Every replica that takes part has recorded the version; clients may learn of it (rule K3).
    Published {
        /// The chunk.
        chunk: ChunkId,
        /// Its version.
        version: Version,
        /// Its primary; none after a snapshot.
        primary: Option<ServerId>,
        /// The replicas that take part.
        members: Vec<ServerId>,
    },
    /// A primary stopped being it, and said so (rule K2).
    GaveUp {
        /// The former primary.
        server: ServerId,
        /// The chunk.
        chunk: ChunkId,
        /// Its version.
        version: Version,
    },
    /// The process stops itself: its lease was valid, and its mutation is not sent yet.
    Freezing {
        /// The primary.
        server: ServerId,
        /// The chunk.
        chunk: ChunkId,
    },
    /// A replica carried a mutation out (rule K4).
    Applied {
        /// The replica's server.
        server: ServerId,
        /// The chunk.
        chunk: ChunkId,
        /// The mutation's version.
        version: Version,
        /// Its serial number.
        serial: Serial,
        /// The record.
        data: String,
        /// All records of the replica then.
        content: Vec<String>,
    },
    /// A replica refused a mutation (rule K4).
    Refused {
        /// The replica's server.
        server: ServerId,
        /// The chunk.
        chunk: ChunkId,
        /// The mutation's version.
        version: Version,
        /// The replica's version.
        installed: Version,
        /// The record.
        data: String,
    },
    /// The master judged a replica otherwise than before (rule K5).
    Judged {
        /// The replica's server.
        server: ServerId,
        /// The chunk.
        chunk: ChunkId,
        /// The version that it reported.
        version: Version,
        /// The master's verdict about it.
        standing: crate::wire::Standing,
    },
    /// The servers that look-ups name for a chunk (rule K6).
    Located {
        /// The chunk.
        chunk: ChunkId,
        /// Its version.
        version: Version,
        /// Where current replicas are.
        servers: Vec<ServerId>,
    },
    /// A stale replica was deleted (rule K6).
    Collected {
        /// Its server.
        server: ServerId,
        /// The chunk.
        chunk: ChunkId,
        /// Its version.
        version: Version,
    },
    /// A replica was made anew from the primary's.
    Copied {
        /// Its server.
        server: ServerId,
        /// The chunk.
        chunk: ChunkId,
        /// The version.
        version: Version,
        /// Its records.
        content: Vec<String>,
    },
    /// A replica was copied under another name (rule K7).
    Cloned {
        /// Its server.
        server: ServerId,
        /// The new chunk.
        chunk: ChunkId,
        /// The version at which it was copied.
        version: Version,
        /// Its records.
        content: Vec<String>,
    },
    /// The master cannot do something now, and will try again.
    Postponed {
        /// The action, and the reason.
        message: String,
    },
}

/// Now, in milliseconds on the clock of [`Record::at_ms`].
#[must_use]
pub fn now_ms() -> f64 {
    // Microseconds are exact in an f64 for longer than any machine runs.
    (now().as_nanos() / 1_000) as f64 / 1_000.0
}

/// Now, for decisions.
pub(crate) fn now() -> Timestamp {
    BootClock.now()
}

/// Records an event.
pub(crate) fn record(event: Event) {
    let record = Record {
        at_ms: now_ms(),
        event,
    };
    if let Ok(line) = serde_json::to_string(&record) {
        // Without a reader the events are lost, and nothing else.
        let _ = writeln!(std::io::stdout().lock(), "{line}");
    }
}

impl Event {
    /// The chunk that the event is about, if any.
    #[must_use]
    pub fn chunk(&self) -> Option<&ChunkId> {
        match self {
            Event::Granted { chunk, .. }
            | Event::Installed { chunk, .. }
            | Event::Published { chunk, .. }
            | Event::GaveUp { chunk, .. }
            | Event::Freezing { chunk, .. }
            | Event::Applied { chunk, .. }
            | Event::Refused { chunk, .. }
            | Event::Judged { chunk, .. }
            | Event::Located { chunk, .. }
            | Event::Collected { chunk, .. }
            | Event::Copied { chunk, .. }
            | Event::Cloned { chunk, .. } => Some(chunk),
            Event::Listening { .. } | Event::Postponed { .. } => None,
        }
    }

    /// The chunk server that the event is about, if any.
    #[must_use]
    pub fn server(&self) -> Option<&ServerId> {
        match self {
            Event::Granted { server, .. }
            | Event::Installed { server, .. }
            | Event::GaveUp { server, .. }
            | Event::Freezing { server, .. }
            | Event::Applied { server, .. }
            | Event::Refused { server, .. }
            | Event::Judged { server, .. }
            | Event::Collected { server, .. }
            | Event::Copied { server, .. }
            | Event::Cloned { server, .. } => Some(server),
            Event::Listening { .. }
            | Event::Published { .. }
            | Event::Located { .. }
            | Event::Postponed { .. } => None,
        }
    }
}
