//! The records of the machine's tables.

use alloc::boxed::Box;

use super::grant::Grant;
use super::grant::GrantSlot;
use super::share::Readers;
use super::slab::{ClientSlot, ExtraSlot, LockSlot, Number, SlotLink, WaiterSlot};
use crate::command::{LockMode, Under};
use crate::id::{LeaseId, LeaseKey, Principal, RequestId};
use crate::name::{ClientId, LockName};
use crate::options::GrantOptions;
use crate::time::{Timestamp, Ttl};

/// A lock that is held, or kept for an orphan or a set that is first in its queue, or closed for a time. Any other lock has no record.
#[derive(Clone, Debug)]
pub(crate) struct Lock {
    pub(crate) name: LockName,
    pub(crate) grant: Grant,
    /// Most locks have none.
    pub(crate) extra: SlotLink<ExtraSlot>,
}

/// The fields that few locks have: text from the holder, and a queue.
#[derive(Clone, Debug)]
pub(crate) struct Extra {
    pub(crate) metadata: Option<Box<str>>,
    pub(super) first: SlotLink<WaiterSlot>,
    pub(super) last: SlotLink<WaiterSlot>,
    pub(crate) waiting: u32,
    /// The holders of a shared phase, the oldest first.
    pub(super) readers: Readers,
    /// How many permits there are, if the lock is a semaphore.
    pub(super) permits: Option<u32>,
    /// The options of the grant.
    pub(super) closing: Closing,
    /// Nobody has the lock, and it is closed until then.
    pub(super) closed: Option<Timestamp>,
    /// It is in the list of locks to be handed on.
    pub(super) to_wake: bool,
}

/// The options of a lock's grant, and how long they close the lock after it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Closing {
    /// The options of the grant.
    pub options: GrantOptions,
    /// The instant before which nobody else is granted the lock.
    pub reserved: Option<Timestamp>,
    /// The part of `reserved` that comes from the grants that this one superseded: it stays when this one is abandoned.
    pub inherited: Option<Timestamp>,
}

impl Closing {
    /// Nothing is known.
    pub const NONE: Closing = Closing {
        options: GrantOptions::NONE,
        reserved: None,
        inherited: None,
    };
}

/// A live lease. It ends with its last grant.
#[derive(Clone, Debug)]
pub(crate) struct Lease {
    pub(crate) key: LeaseKey,
    pub(crate) id: LeaseId,
    pub(crate) client: Owner,
    pub(crate) ttl: Ttl,
    pub(crate) expires: Timestamp,
    pub(super) first: SlotLink<GrantSlot>,
    pub(super) last: SlotLink<GrantSlot>,
}

/// A client id that some lease or waiter has, under its principal.
#[derive(Clone, Debug)]
pub(crate) struct ClientRecord {
    pub(crate) by: Principal,
    pub(crate) id: ClientId,
    /// Leases and waiters that have it.
    pub(crate) uses: u32,
    /// Waiters among them.
    pub(crate) waiting: u32,
}

/// The owner of a lease or a waiting request: the client's slot, and whether the client's principal has a name. This shows
/// without a lookup that a lease is anonymous.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Owner(u32);

const NAMED: u32 = 1 << 31;

impl Owner {
    /// The owner in a record that is not in a table yet.
    pub(super) const NONE: Owner = Owner(0);

    pub(super) fn new(client: ClientSlot, by: Principal) -> Owner {
        debug_assert!(
            client.number() < NAMED,
            "a client has a number that is too high"
        );
        if by.is_anonymous() {
            Owner(client.number())
        } else {
            Owner(client.number() | NAMED)
        }
    }

    #[inline]
    pub(crate) fn slot(self) -> ClientSlot {
        ClientSlot::of(self.0 & !NAMED)
    }

    #[inline]
    pub(super) fn is_named(self) -> bool {
        self.0 & NAMED != 0
    }
}

/// A client with its principal, as a request names it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Contender<'a> {
    pub(super) by: Principal,
    pub(super) id: &'a ClientId,
}

/// A request in a lock's queue.
#[derive(Clone, Debug)]
pub(crate) struct Waiter {
    pub(crate) request: RequestId,
    pub(crate) lock: LockSlot,
    pub(crate) client: Owner,
    pub(crate) under: Under,
    pub(crate) metadata: Option<Box<str>>,
    pub(crate) options: GrantOptions,
    pub(crate) since: Timestamp,
    pub(crate) deadline: Timestamp,
    /// An orphan, until its caller repeats the request: until when its place is reserved, at most its deadline.
    pub(crate) orphan: Option<Timestamp>,
    pub(crate) mode: LockMode,
    pub(crate) role: WaiterRole,
    /// Counts arrivals, so that a restored queue has the same order.
    pub(crate) arrival: u64,
    pub(super) prev: SlotLink<WaiterSlot>,
    pub(super) next: SlotLink<WaiterSlot>,
}

/// Which record of a request a waiter is. A set has one in the queue of each of its locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WaiterRole {
    /// The only one: the request is for one lock.
    Alone,
    /// The first record of a set: it is found by the request's id, and has the timer and the text for the grants.
    First,
    /// One of a set's other records.
    Other,
}

impl Lease {
    /// The boundary is expired.
    pub(crate) fn is_expired(&self, now: Timestamp) -> bool {
        now >= self.expires
    }

    /// When it was last renewed or granted, or extended after an absence.
    pub(super) fn renewed(&self) -> Timestamp {
        let ttl = self.ttl.span().as_nanos();
        Timestamp::from_nanos(self.expires.as_nanos().saturating_sub(ttl))
    }
}

impl Waiter {
    /// Whether it can no longer be granted: its wait was over before this instant, or, for an orphan, its window is over by it.
    pub(super) fn is_over(&self, now: Timestamp) -> bool {
        match self.orphan {
            Some(until) => until <= now,
            None => self.deadline < now,
        }
    }

    /// When it leaves the queue without having been granted.
    pub(crate) fn ends(&self) -> Timestamp {
        self.orphan.unwrap_or(self.deadline)
    }
}

impl Extra {
    /// The lock is about to be forgotten, and so is all of this.
    pub(super) fn assert_unused(&self) {
        let waits = self.waiting > 0 || !self.first.is_none() || !self.last.is_none();
        assert!(!waits, "a lock is forgotten that requests wait for");
        assert!(
            self.readers.is_empty(),
            "a lock is forgotten that has readers"
        );
        assert!(
            self.closed.is_none(),
            "a lock is forgotten that is closed (D1)"
        );
        assert!(!self.to_wake, "a lock is forgotten that is to be handed on");
    }

    pub(super) const fn new() -> Extra {
        Extra {
            metadata: None,
            first: SlotLink::NONE,
            last: SlotLink::NONE,
            waiting: 0,
            readers: Readers::NONE,
            permits: None,
            closing: Closing::NONE,
            closed: None,
            to_wake: false,
        }
    }
}

const _: () = {
    // A million held locks are a promise; a field here costs a megabyte there.
    assert!(size_of::<Option<Lock>>() <= 48);
    assert!(size_of::<Option<Lease>>() <= 48);
};
