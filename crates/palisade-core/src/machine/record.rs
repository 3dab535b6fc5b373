//! The records of the machine's tables.

use alloc::boxed::Box;

use super::grant::Grant;
use super::share::Readers;
use super::slab::{NIL, Slot};
use crate::command::{LockMode, Under};
use crate::id::{LeaseId, LeaseKey, RequestId};
use crate::name::{ClientId, LockName};
use crate::time::{Timestamp, Ttl};

/// A lock that is held, or kept for an orphan that is first in its queue. Any other lock has no record.
#[derive(Clone, Debug)]
pub(crate) struct Lock {
    pub(crate) name: LockName,
    pub(crate) grant: Grant,
    /// Most locks have none: [`NIL`].
    pub(crate) extra: Slot,
}

/// The parts that few locks have: text from the holder, and a queue.
#[derive(Clone, Debug)]
pub(crate) struct Extra {
    pub(crate) metadata: Option<Box<str>>,
    pub(super) first: Slot,
    pub(super) last: Slot,
    pub(crate) waiting: u32,
    /// The holders of a shared phase, the oldest first.
    pub(super) readers: Readers,
}

/// A live lease. It ends with its last grant.
#[derive(Clone, Debug)]
pub(crate) struct Lease {
    pub(crate) key: LeaseKey,
    pub(crate) id: LeaseId,
    pub(crate) client: Slot,
    pub(crate) ttl: Ttl,
    pub(crate) expires: Timestamp,
    pub(super) first: Slot,
    pub(super) last: Slot,
}

/// A client id that some lease or waiter bears.
#[derive(Clone, Debug)]
pub(crate) struct Client {
    pub(crate) id: ClientId,
    /// Leases and waiters that bear it.
    pub(crate) uses: u32,
    /// Waiters among them.
    pub(crate) waiting: u32,
}

/// A request in a lock's queue.
#[derive(Clone, Debug)]
pub(crate) struct Waiter {
    pub(crate) request: RequestId,
    pub(crate) lock: Slot,
    pub(crate) client: Slot,
    pub(crate) under: Under,
    pub(crate) metadata: Option<Box<str>>,
    pub(crate) since: Timestamp,
    pub(crate) deadline: Timestamp,
    /// An orphan, until its caller repeats the request: until when its place is kept, at most its deadline.
    pub(crate) orphan: Option<Timestamp>,
    pub(crate) mode: LockMode,
    /// Counts arrivals, so that a restored queue has the same order.
    pub(crate) arrival: u64,
    pub(super) prev: Slot,
    pub(super) next: Slot,
}

impl Lease {
    /// The boundary is expired.
    pub(crate) fn is_expired(&self, now: Timestamp) -> bool {
        now >= self.expires
    }
}

impl Waiter {
    /// When it leaves the queue without having been granted.
    pub(crate) fn ends(&self) -> Timestamp {
        self.orphan.unwrap_or(self.deadline)
    }
}

impl Extra {
    pub(super) const fn new() -> Extra {
        Extra {
            metadata: None,
            first: NIL,
            last: NIL,
            waiting: 0,
            readers: Readers::NONE,
        }
    }
}

const _: () = {
    // A million held locks are a promise; a field here costs a megabyte there.
    assert!(size_of::<Option<Lock>>() <= 48);
    assert!(size_of::<Option<Lease>>() <= 48);
};
