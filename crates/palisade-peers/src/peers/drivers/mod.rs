//! How each system is driven: the cheapest recipe for a lock with a rising token that is correct there.
//!
//! ```text
//!   Connection ──► lane ──► acquire · renew · release      many lanes share one connection, each with
//!       │                                                  one operation in flight
//!       └─ own: nobody else wants the lock, so nothing is told to waiters
//!          contended: the recipe with waiters, in which nobody polls
//! ```

pub(crate) mod etcd;
pub(crate) mod nats;
pub(crate) mod palisade;
pub(crate) mod postgres;
pub(crate) mod redis;
pub(crate) mod zookeeper;

use crate::lane::{Renewing, Step};

/// One connection to one server.
pub(crate) trait Connection: Send + Sync {
    /// A lane with a lock of this name.
    fn lane<'a>(&'a self, lock: &'a str) -> Step<'a, Box<dyn Renewing>>;
}

/// What a connection is for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Terms {
    /// Several lanes want the same lock.
    pub(crate) contended: bool,
    /// One lane alone uses the connection.
    pub(crate) alone: bool,
    /// How long leases last.
    pub(crate) ttl_ms: u64,
}
