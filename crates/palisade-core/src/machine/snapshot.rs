//! The machine's state as a sequence of plain records. [`restore`](super::restore) is the way back.
//!
//! The sequence is canonical: equal states give equal sequences, even if their slots and tables differ inside. This
//! crate does not encode records as bytes.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::Machine;
use super::extensions::Extension;
use super::grant::GrantSlot;
use super::memory::{Answered, Over};
use super::record::Closing;
use super::slab::{LeaseSlot, LockSlot, ShareSlot, WaiterSlot};
use crate::command::{LockMode, Under};
use crate::id::{LeaseId, LeaseKey, Principal, RequestId};
use crate::limits::Limits;
use crate::name::{ClientId, LockName};
use crate::options::GrantOptions;
use crate::permits::Slots;
use crate::time::{Timestamp, Ttl, WallTime};
use crate::token::Token;

/// One record of a snapshot. They come in this order: the head, leases by id, exclusive grants by token, shared
/// grants by number, kept locks by token, waiters by arrival, answers and ended grants from the oldest to the newest.
/// Equal tokens and arrivals are those of sets, and come by the names of the locks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// The counters and settings.
    Head(Head),
    /// A live lease.
    Lease(LeaseRecord),
    /// A live exclusive grant.
    Grant(LiveGrant),
    /// A live shared grant.
    Share(ShareRecord),
    /// A lock that nobody holds, closed or kept for an orphan or a set.
    Kept(KeptRecord),
    /// A request that waits.
    Waiter(WaiterRecord),
    /// An answer that is remembered for a retry.
    Answered(Answered),
    /// A grant that is over.
    Over(Over),
}

impl Record {
    /// The principal it belongs to; a grant belongs to its lease's.
    #[must_use]
    pub fn by(&self) -> Principal {
        match self {
            Record::Lease(lease) => lease.by,
            Record::Waiter(waiter) => waiter.by,
            Record::Answered(answered) => answered.by,
            Record::Over(over) => over.by,
            Record::Head(_) | Record::Grant(_) | Record::Share(_) | Record::Kept(_) => {
                Principal::ANONYMOUS
            }
        }
    }
}

/// Counters and settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The instant of the last entry applied.
    pub now: Timestamp,
    /// The next token; `None` when the range is exhausted.
    pub next_token: Option<Token>,
    /// The next token at the last restore with readers, before the leap.
    pub restored: Option<Token>,
    /// The last event's number.
    pub revision: u64,
    /// How many requests ever waited.
    pub arrivals: u64,
    /// The bounds in force.
    pub limits: Limits,
}

/// A live lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeaseRecord {
    /// Its public id.
    pub id: LeaseId,
    /// Its secret.
    pub key: LeaseKey,
    /// Its principal.
    pub by: Principal,
    /// Its client.
    pub client: ClientId,
    /// How long it lasts from a renewal.
    pub ttl: Ttl,
    /// When it ends.
    pub expires: Timestamp,
    /// How far it was extended since its last renewal.
    pub extension: Option<Extension>,
}

/// A live grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LiveGrant {
    /// The lock.
    pub lock: LockName,
    /// The token.
    pub token: Token,
    /// The lease's secret: which lease it is under.
    pub key: LeaseKey,
    /// The wall clock at the grant.
    pub wall: WallTime,
    /// The text that the holder gave about itself.
    pub metadata: Option<Box<str>>,
    /// Its options, and how long they close the lock after it; nothing for a shared one.
    pub closing: Closing,
}

/// A live shared grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShareRecord {
    /// The grant itself; its token is the number that names it.
    pub grant: LiveGrant,
    /// The token of its phase.
    pub phase: Token,
    /// For a semaphore: the number of its permits, and the slots of this grant.
    pub permits: Option<(u32, Slots)>,
    /// Whether it is the one in mode update.
    pub update: bool,
}

/// A lock that nobody holds: closed for a time, or kept for an orphan or a set that is first in its queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeptRecord {
    /// The lock.
    pub lock: LockName,
    /// The token of its last grant. If the lock was free when a set came, the newest token of any grant.
    pub last: Token,
    /// For a semaphore: the number of its permits.
    pub permits: Option<u32>,
    /// For a closed one: until when.
    pub closed: Option<Timestamp>,
}

/// A request that waits. A set has a record for each of its locks, which differ in the lock, and only the first has the
/// text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaiterRecord {
    /// The principal that asks.
    pub by: Principal,
    /// The request.
    pub request: RequestId,
    /// The lock it asks for.
    pub lock: LockName,
    /// The client that asks.
    pub client: ClientId,
    /// The mode it asks for.
    pub mode: LockMode,
    /// The lease its grant would go under.
    pub under: Under,
    /// Text for the grant.
    pub metadata: Option<Box<str>>,
    /// The options that it asks for.
    pub options: GrantOptions,
    /// When its wait began.
    pub since: Timestamp,
    /// When its wait ends.
    pub deadline: Timestamp,
    /// Until when an orphan's place is reserved.
    pub orphan: Option<Timestamp>,
    /// Its number in the order of all requests that ever waited.
    pub arrival: u64,
}

impl Machine {
    /// The whole state. Building it up again with [`Machine::restore`] gives an equal machine.
    pub fn records(&self) -> impl Iterator<Item = Record> {
        core::iter::once(Record::Head(self.head()))
            .chain(self.sorted_leases().map(|slot| self.lease_record(slot)))
            .chain(self.sorted_grants().map(|slot| self.grant_record(slot)))
            .chain(self.sorted_shares().map(|slot| self.share_record(slot)))
            .chain(self.sorted_kept().map(|slot| self.kept_record(slot)))
            .chain(self.sorted_waiters().map(|slot| self.waiter_record(slot)))
            .chain(self.answers.iter().cloned().map(Record::Answered))
            .chain(self.over.iter().cloned().map(Record::Over))
    }

    fn head(&self) -> Head {
        Head {
            now: self.now,
            next_token: self.next_token,
            restored: self.restored,
            revision: self.revision,
            arrivals: self.arrivals,
            limits: self.limits,
        }
    }

    fn sorted_leases(&self) -> impl Iterator<Item = LeaseSlot> {
        let leases = self.tables.leases.iter();
        sorted(leases.map(|(slot, lease)| (lease.id.0.get(), slot)))
    }

    fn sorted_grants(&self) -> impl Iterator<Item = LockSlot> {
        let grants = self.tables.exclusives();
        self.sorted_by_name(grants.map(|(slot, grant)| (grant.token().get(), slot, slot)))
    }

    fn sorted_shares(&self) -> impl Iterator<Item = ShareSlot> {
        let shares = self.tables.shares();
        sorted(shares.map(|(slot, grant)| (grant.token().get(), slot)))
    }

    fn sorted_kept(&self) -> impl Iterator<Item = LockSlot> {
        let kept = self.tables.kept_locks();
        self.sorted_by_name(kept.map(|(slot, last)| (last.get(), slot, slot)))
    }

    fn sorted_waiters(&self) -> impl Iterator<Item = WaiterSlot> {
        let waiters = self.tables.waiters.iter();
        self.sorted_by_name(waiters.map(|(slot, waiter)| (waiter.arrival, waiter.lock, slot)))
    }

    /// By a number and, where that is equal, by the name of the lock that stands beside it.
    fn sorted_by_name<S>(
        &self,
        keyed: impl Iterator<Item = (u64, LockSlot, S)>,
    ) -> impl Iterator<Item = S> {
        let mut keyed: Vec<(u64, LockSlot, S)> = keyed.collect();
        let name = |lock: LockSlot| &self.tables.locks[lock].name;
        keyed.sort_unstable_by(|(number, lock, _), (other, of, _)| {
            number.cmp(other).then_with(|| name(*lock).cmp(name(*of)))
        });
        keyed.into_iter().map(|(_, _, slot)| slot)
    }

    fn lease_record(&self, slot: LeaseSlot) -> Record {
        let lease = &self.tables.leases[slot];
        Record::Lease(LeaseRecord {
            id: lease.id,
            key: lease.key,
            by: self.tables.principal_of(lease.client),
            client: self.tables.clients[lease.client.slot()].id.clone(),
            ttl: lease.ttl,
            expires: lease.expires,
            extension: self.tables.extensions.get(slot),
        })
    }

    fn grant_record(&self, lock: LockSlot) -> Record {
        Record::Grant(self.record_of(self.tables.grant_on(lock)))
    }

    fn share_record(&self, slot: ShareSlot) -> Record {
        Record::Share(ShareRecord {
            grant: self.record_of(slot.grant()),
            phase: self.tables.phase_of(slot),
            permits: self
                .tables
                .permits(self.tables.lock_of_share(slot))
                .map(|of| (of, self.tables.slots_of(slot))),
            update: self.tables.is_update(slot),
        })
    }

    fn record_of(&self, slot: GrantSlot) -> LiveGrant {
        let (grant, lock) = (self.tables.grant(slot), self.tables.lock_of(slot));
        LiveGrant {
            lock: self.tables.locks[lock].name.clone(),
            token: grant.token(),
            key: self.tables.lease_of(slot).key,
            wall: grant.wall(),
            metadata: self.tables.metadata_of(slot).map(Box::from),
            closing: if slot.is_share() {
                Closing::NONE
            } else {
                self.tables.closing(lock)
            },
        }
    }

    fn kept_record(&self, slot: LockSlot) -> Record {
        Record::Kept(KeptRecord {
            lock: self.tables.locks[slot].name.clone(),
            last: self.tables.writer(slot).token(),
            permits: self.tables.permits(slot),
            closed: self.tables.closed(slot),
        })
    }

    fn waiter_record(&self, slot: WaiterSlot) -> Record {
        let waiter = &self.tables.waiters[slot];
        Record::Waiter(WaiterRecord {
            by: self.tables.principal_of(waiter.client),
            request: waiter.request,
            lock: self.tables.locks[waiter.lock].name.clone(),
            client: self.tables.clients[waiter.client.slot()].id.clone(),
            mode: waiter.mode,
            under: waiter.under,
            metadata: waiter.metadata.clone(),
            options: waiter.options,
            since: waiter.since,
            deadline: waiter.deadline,
            orphan: waiter.orphan,
            arrival: waiter.arrival,
        })
    }
}

fn sorted<S: Ord>(keyed: impl Iterator<Item = (u64, S)>) -> impl Iterator<Item = S> {
    let mut keyed: Vec<(u64, S)> = keyed.collect();
    keyed.sort_unstable();
    keyed.into_iter().map(|(_, slot)| slot)
}
