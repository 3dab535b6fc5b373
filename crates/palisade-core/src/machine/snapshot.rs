//! The machine's state as a sequence of plain records, and back.
//!
//! The sequence is canonical: equal states give equal sequences, whatever slots and tables look like
//! inside. How records become bytes is none of this crate's business.

use core::fmt;

use super::memory::{Answered, Endings, Over, Ring};
use super::record::Waiter;
use super::slab::{NIL, Slot};
use super::wheel::is_due;
use super::{Machine, Tables};
use crate::command::Under;
use crate::id::{LeaseId, LeaseKey, RequestId};
use crate::limits::Limits;
use crate::name::{ClientId, LockName};
use crate::time::{Timestamp, Ttl, WallTime};
use crate::token::Token;

/// One record of a snapshot. They come in this order: the head, leases by id, grants by token,
/// waiters by arrival, answers and ended grants from the oldest to the newest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// The counters and settings.
    Head(Head),
    /// A live lease.
    Lease(LeaseRecord),
    /// A live grant.
    Grant(GrantRecord),
    /// A request that waits.
    Waiter(WaiterRecord),
    /// An answer that is remembered for a retry.
    Answered(Answered),
    /// A grant that is over.
    Over(Over),
}

/// Counters and settings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The instant of the last entry applied.
    pub now: Timestamp,
    /// The next token; `None` when the range is exhausted.
    pub next_token: Option<Token>,
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
    /// Whose it is.
    pub client: ClientId,
    /// How long it lasts from a renewal.
    pub ttl: Ttl,
    /// When it ends.
    pub expires: Timestamp,
}

/// A live grant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GrantRecord {
    /// The lock.
    pub lock: LockName,
    /// The token.
    pub token: Token,
    /// The lease's secret: which lease it is under.
    pub key: LeaseKey,
    /// The wall clock at the grant.
    pub wall: WallTime,
    /// What the holder said about itself.
    pub metadata: Option<Box<str>>,
}

/// A request that waits.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaiterRecord {
    /// The request.
    pub request: RequestId,
    /// For which lock.
    pub lock: LockName,
    /// Who asks.
    pub client: ClientId,
    /// The lease its grant would go under.
    pub under: Under,
    /// Text for the grant.
    pub metadata: Option<Box<str>>,
    /// Since when it waits.
    pub since: Timestamp,
    /// Until when.
    pub deadline: Timestamp,
    /// Its place among all that ever waited.
    pub arrival: u64,
}

/// A sequence of records that no machine could have written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Corrupt(pub &'static str);

impl fmt::Display for Corrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the snapshot contradicts itself: {}", self.0)
    }
}

impl core::error::Error for Corrupt {}

impl Machine {
    /// The whole state. Building it up again with [`Machine::restore`] gives an equal machine.
    pub fn records(&self) -> impl Iterator<Item = Record> {
        core::iter::once(Record::Head(self.head()))
            .chain(self.sorted_leases().map(|slot| self.lease_record(slot)))
            .chain(self.sorted_grants().map(|slot| self.grant_record(slot)))
            .chain(self.sorted_waiters().map(|slot| self.waiter_record(slot)))
            .chain(self.answers.iter().cloned().map(Record::Answered))
            .chain(self.over.iter().cloned().map(Record::Over))
    }

    /// Builds a machine from the records of a snapshot. `seed` as in [`Machine::new`].
    ///
    /// # Errors
    /// [`Corrupt`] if the records do not fit together; nothing half-built is returned.
    pub fn restore(
        seed: u64,
        records: impl IntoIterator<Item = Record>,
    ) -> Result<Machine, Corrupt> {
        let mut records = records.into_iter();
        let Some(Record::Head(head)) = records.next() else {
            return Err(Corrupt("it does not begin with a head"));
        };
        let mut machine = Machine::new(seed);
        machine.tables = Tables::new(seed, head.now);
        (machine.answers, machine.over) = (Ring::new(seed), Endings::new(seed));
        (machine.now, machine.next_token) = (head.now, head.next_token);
        (machine.revision, machine.arrivals) = (head.revision, head.arrivals);
        machine.limits = head.limits;
        // Most records are leases and grants, one of each for a lock.
        machine.reserve(records.size_hint().1.unwrap_or(0) / 2);
        let mut last = Place::of(&Record::Head(head));
        for record in records {
            let place = Place::of(&record);
            if !place.may_follow(&last) {
                return Err(Corrupt("its records are out of order"));
            }
            last = place;
            machine.take(record)?;
        }
        match machine.tables.leases_without_grants() {
            0 => Ok(machine),
            _ => Err(Corrupt("a lease has no grant")),
        }
    }

    fn head(&self) -> Head {
        Head {
            now: self.now,
            next_token: self.next_token,
            revision: self.revision,
            arrivals: self.arrivals,
            limits: self.limits,
        }
    }

    fn take(&mut self, record: Record) -> Result<(), Corrupt> {
        match record {
            Record::Head(_) => Err(Corrupt("it has two heads")),
            Record::Lease(lease) => self.take_lease(&lease),
            Record::Grant(grant) => self.take_grant(grant),
            Record::Waiter(waiter) => self.take_waiter(waiter),
            Record::Answered(answered) => {
                self.answers.remember(answered);
                Ok(())
            }
            Record::Over(over) => {
                self.over.remember(over);
                Ok(())
            }
        }
    }

    fn take_lease(&mut self, lease: &LeaseRecord) -> Result<(), Corrupt> {
        if self.tables.find_lease(&lease.key).is_some() {
            return Err(Corrupt("two leases have one key"));
        }
        if self.next_token.is_some_and(|next| lease.id.0 >= next) {
            return Err(Corrupt("a lease's id is not below the counter"));
        }
        if is_due(lease.expires, self.now) {
            return Err(Corrupt("a lease outlived its time"));
        }
        self.tables
            .open_lease(lease.id, lease.key, &lease.client, lease.ttl, lease.expires);
        Ok(())
    }

    fn take_grant(&mut self, grant: GrantRecord) -> Result<(), Corrupt> {
        if self.tables.find_lock(&grant.lock).is_some() {
            return Err(Corrupt("a lock has two grants"));
        }
        if self.next_token.is_some_and(|next| grant.token >= next) {
            return Err(Corrupt("a grant's token is not below the counter"));
        }
        let lease = self
            .tables
            .find_lease(&grant.key)
            .ok_or(Corrupt("a grant is under no lease"))?;
        if self.tables.leases[lease].id.0 > grant.token {
            return Err(Corrupt("a grant is older than its lease"));
        }
        let slot = self
            .tables
            .open_lock(&grant.lock, grant.token, grant.wall, lease);
        self.tables.set_metadata(slot, grant.metadata);
        Ok(())
    }

    fn take_waiter(&mut self, waiter: WaiterRecord) -> Result<(), Corrupt> {
        let lock = self.tables.find_lock(&waiter.lock);
        let lock = lock.ok_or(Corrupt("a request waits for a lock that is free"))?;
        if self.tables.find_waiter(&waiter.request).is_some() {
            return Err(Corrupt("a request waits twice"));
        }
        if waiter.arrival > self.arrivals {
            return Err(Corrupt("a request waits that has not arrived"));
        }
        if is_due(waiter.deadline, self.now) {
            return Err(Corrupt("a request waits past its deadline"));
        }
        let record = Waiter {
            request: waiter.request,
            lock,
            client: NIL,
            under: waiter.under,
            metadata: waiter.metadata,
            since: waiter.since,
            deadline: waiter.deadline,
            arrival: waiter.arrival,
            prev: NIL,
            next: NIL,
        };
        self.tables.enqueue(&waiter.client, record);
        Ok(())
    }

    fn sorted_leases(&self) -> impl Iterator<Item = Slot> {
        let leases = self.tables.leases.iter();
        sorted(leases.map(|(slot, lease)| (lease.id.0.get(), slot)))
    }

    fn sorted_grants(&self) -> impl Iterator<Item = Slot> {
        sorted(
            self.tables
                .locks
                .iter()
                .map(|(slot, lock)| (lock.token.get(), slot)),
        )
    }

    fn sorted_waiters(&self) -> impl Iterator<Item = Slot> {
        sorted(
            self.tables
                .waiters
                .iter()
                .map(|(slot, waiter)| (waiter.arrival, slot)),
        )
    }

    fn lease_record(&self, slot: Slot) -> Record {
        let lease = &self.tables.leases[slot];
        Record::Lease(LeaseRecord {
            id: lease.id,
            key: lease.key,
            client: self.tables.clients[lease.client].id.clone(),
            ttl: lease.ttl,
            expires: lease.expires,
        })
    }

    fn grant_record(&self, slot: Slot) -> Record {
        let lock = &self.tables.locks[slot];
        Record::Grant(GrantRecord {
            lock: lock.name.clone(),
            token: lock.token,
            key: self.tables.leases[lock.lease].key,
            wall: lock.wall,
            metadata: self.tables.metadata(slot).map(Box::from),
        })
    }

    fn waiter_record(&self, slot: Slot) -> Record {
        let waiter = &self.tables.waiters[slot];
        Record::Waiter(WaiterRecord {
            request: waiter.request,
            lock: self.tables.locks[waiter.lock].name.clone(),
            client: self.tables.clients[waiter.client].id.clone(),
            under: waiter.under.clone(),
            metadata: waiter.metadata.clone(),
            since: waiter.since,
            deadline: waiter.deadline,
            arrival: waiter.arrival,
        })
    }
}

/// Where a record belongs: its kind, and its number among those of its kind.
#[derive(PartialEq, PartialOrd)]
struct Place {
    kind: u8,
    number: Option<u64>,
}

impl Place {
    fn of(record: &Record) -> Place {
        let (kind, number) = match record {
            Record::Head(_) => (0, Some(0)),
            Record::Lease(lease) => (1, Some(lease.id.0.get())),
            Record::Grant(grant) => (2, Some(grant.token.get())),
            Record::Waiter(waiter) => (3, Some(waiter.arrival)),
            Record::Answered(_) => (4, None),
            Record::Over(_) => (5, None),
        };
        Place { kind, number }
    }

    /// Numbers rise; memories have none, their order is their age.
    fn may_follow(&self, last: &Place) -> bool {
        self > last || (self.number.is_none() && self == last)
    }
}

fn sorted(keyed: impl Iterator<Item = (u64, Slot)>) -> impl Iterator<Item = Slot> {
    let mut keyed: Vec<(u64, Slot)> = keyed.collect();
    keyed.sort_unstable();
    keyed.into_iter().map(|(_, slot)| slot)
}
