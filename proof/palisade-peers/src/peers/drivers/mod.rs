//! The driver of each system: the cheapest correct recipe there for a lock with a rising token.
//!
//! ```text
//!   Connection ──► lane ──► acquire · renew · release      many lanes share one connection, each with
//!       │                                                  one operation in flight
//!       └─ own: nobody else wants the lock, so waiters need no notification
//!          contended: the recipe with waiters, in which nobody polls
//! ```

pub(crate) mod echo;
pub(crate) mod etcd;
pub(crate) mod nats;
pub(crate) mod palisade;
pub(crate) mod postgres;
pub(crate) mod redis;
pub(crate) mod zookeeper;

use crate::lane::{LaneFuture, Renewing};

/// One connection to one server.
pub(crate) trait Connection: Send + Sync {
    /// A lane with a lock of this name.
    fn lane<'a>(&'a self, lock: &'a str) -> LaneFuture<'a, Box<dyn Renewing>>;
}

/// The purpose of a connection.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// Several lanes contend for the same lock.
    pub(crate) contended: bool,
    /// Only one lane uses the connection.
    pub(crate) alone: bool,
    /// The time to live of leases.
    pub(crate) ttl_ms: u64,
}
