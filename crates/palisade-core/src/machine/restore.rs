//! A machine from the records of a snapshot.
//!
//! ```text
//!   head, leases      ──► Leases ─┐
//!   grants, waiters   ──► Grants ─┼──► Machine::join      no part needs another one to be read,
//!   answers, endings  ──► Past   ─┘                       so all three may be read at once
//! ```

use alloc::boxed::Box;
use alloc::collections::VecDeque;
use alloc::vec::Vec;
use core::fmt;
use core::iter::Peekable;

use super::expiry::Expiry;
use super::grant::GrantSlot;
use super::memory::{Answers, Endings};
use super::record::{Contender, Owner, Waiter, WaiterRole};
use super::slab::{LeaseSlot, LockSlot, Number as _, ShareSlot, SlotLink, WaiterSlot};
use super::snapshot::{
    Head, KeptRecord, LeaseRecord, LiveGrant, Record, ShareRecord, WaiterRecord,
};
use super::{Machine, Tables};
use crate::command::{LockMode, Under};
use crate::id::{LeaseKey, Principal};
use crate::limits;
use crate::name::LockName;
use crate::options::GrantOptions;
use crate::permits::Slots;
use crate::time::{Timestamp, WallTime};
use crate::token::Token;

/// A sequence of records that no machine could have written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Corrupt(pub &'static str);

impl fmt::Display for Corrupt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "the snapshot contradicts itself: {}", self.0)
    }
}

impl core::error::Error for Corrupt {}

/// The parts of a snapshot, in their order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Part {
    /// The head, and leases: [`Leases`].
    Leases,
    /// Grants, kept locks and waiting requests: [`Grants`].
    Grants,
    /// Answers and endings: [`Past`].
    Past,
}

impl Part {
    fn of(record: &Record) -> Part {
        match record {
            Record::Head(_) | Record::Lease(_) => Part::Leases,
            Record::Grant(_) | Record::Share(_) | Record::Kept(_) | Record::Waiter(_) => {
                Part::Grants
            }
            Record::Answered(_) | Record::Over(_) => Part::Past,
        }
    }
}

/// Records that are read from an iterator before the first of them is taken.
const AHEAD: usize = 32;

/// Takes the records in their order. Touches a few coming ones first, so that their reads from memory overlap.
fn take_each<T>(
    part: &mut T,
    records: impl Iterator<Item = Record>,
    touch: impl Fn(&T, &Record),
    take: impl Fn(&mut T, Record) -> Result<(), Corrupt>,
) -> Result<(), Corrupt> {
    let mut records = in_order(records);
    let mut coming = Vec::with_capacity(AHEAD);
    loop {
        for record in records.by_ref().take(AHEAD) {
            coming.push(record?);
        }
        if coming.is_empty() {
            return Ok(());
        }
        coming.iter().for_each(|record| touch(part, record));
        for record in coming.drain(..) {
            take(part, record)?;
        }
    }
}

const OUT_OF_ORDER: Corrupt = Corrupt("its records are out of order");

/// The first part of a snapshot: its head, and the leases.
#[derive(Debug)]
pub struct Leases {
    head: Head,
    tables: Tables,
}

impl Leases {
    /// Reads it. `seed` as in [`Machine::new`], and the same for all parts.
    ///
    /// # Errors
    /// [`Corrupt`] if the records contradict each other.
    pub fn read(seed: u64, records: impl IntoIterator<Item = Record>) -> Result<Leases, Corrupt> {
        let mut records = records.into_iter();
        let Some(Record::Head(head)) = records.next() else {
            return Err(Corrupt("it does not begin with a head"));
        };
        if head
            .next_token
            .is_some_and(|next| head.restored > Some(next))
        {
            return Err(Corrupt("it was restored after its next token"));
        }
        let mut leases = Leases {
            head,
            tables: Tables::new(seed, head.now),
        };
        leases.tables.reserve_leases(at_most(&records));
        let touch = |leases: &Leases, record: &Record| {
            if let Record::Lease(lease) = record {
                leases.tables.touch_lease(&lease.key);
            }
        };
        take_each(&mut leases, records, touch, |leases, record| match record {
            Record::Lease(lease) => leases.take(&lease),
            _ => Err(OUT_OF_ORDER),
        })?;
        Ok(leases)
    }

    fn take(&mut self, lease: &LeaseRecord) -> Result<(), Corrupt> {
        if self.tables.find_lease(&lease.key).is_some() {
            return Err(Corrupt("two leases have one key"));
        }
        if self.head.next_token.is_some_and(|next| lease.id.0 >= next) {
            return Err(Corrupt("a lease's id is not below the counter"));
        }
        let client = Contender {
            by: lease.by,
            id: &lease.client,
        };
        let slot = self
            .tables
            .open_lease(lease.id, lease.key, client, lease.ttl, lease.expires);
        if let Some(extension) = lease.extension {
            if extension.limit < lease.expires {
                return Err(Corrupt("a lease was extended beyond its limit"));
            }
            self.tables.extensions.set(slot, extension);
        }
        Ok(())
    }
}

/// The second part: the grants, and the requests that wait for their locks.
#[derive(Debug)]
pub struct Grants {
    /// Locks that are under no lease yet, in the order of their slots.
    tables: Tables,
    /// The lease that each of them belongs under, except the last ones, which are kept.
    under: Vec<LeaseKey>,
    /// As `under`, of the shared grants.
    shares: Vec<LeaseKey>,
    waiters: Vec<WaiterRecord>,
}

impl Grants {
    /// Reads it, as [`Leases::read`].
    ///
    /// # Errors
    /// [`Corrupt`] if the records contradict each other.
    pub fn read(seed: u64, records: impl IntoIterator<Item = Record>) -> Result<Grants, Corrupt> {
        let records = records.into_iter();
        let most = at_most(&records);
        let mut grants = Grants {
            tables: Tables::new(seed, Timestamp::ZERO),
            under: Vec::with_capacity(most),
            shares: Vec::new(),
            waiters: Vec::new(),
        };
        grants.tables.reserve_locks(most);
        let touch = |grants: &Grants, record: &Record| {
            if let Record::Grant(grant) = record {
                grants.tables.touch_lock(&grant.lock);
            }
        };
        take_each(&mut grants, records, touch, |grants, record| match record {
            Record::Grant(grant) => grants.take(grant),
            Record::Share(share) => grants.take_share(share),
            Record::Kept(kept) => grants.take_kept(kept),
            Record::Waiter(waiter) => {
                grants.waiters.push(waiter);
                Ok(())
            }
            _ => Err(OUT_OF_ORDER),
        })?;
        Ok(grants)
    }

    fn take(&mut self, grant: LiveGrant) -> Result<(), Corrupt> {
        let slot = self.add(grant.lock, grant.token, grant.wall)?;
        self.tables.set_metadata(slot, grant.metadata);
        self.tables.restore_closing(slot, grant.closing);
        self.under.push(grant.key);
        Ok(())
    }

    fn take_share(&mut self, share: ShareRecord) -> Result<(), Corrupt> {
        let ShareRecord {
            grant,
            phase,
            permits,
            update,
        } = share;
        let lock = match self.tables.find_lock(&grant.lock) {
            Some(lock) if !self.tables.is_shared(lock) => {
                return Err(Corrupt("a lock has two grants"));
            }
            Some(lock) if self.tables.writer(lock).token() != phase => {
                return Err(Corrupt("readers of one lock are in two phases"));
            }
            Some(lock) => lock,
            None => {
                let lock = self.tables.add_lock(grant.lock, phase, WallTime::default());
                self.tables.begin_phase(lock, phase);
                if let Some((of, _)) = permits {
                    self.tables.extra_mut(lock).permits = Some(of);
                }
                lock
            }
        };
        let slots = permits.map_or(Slots::NONE, |(_, slots)| slots);
        if self.tables.permits(lock) != permits.map(|(of, _)| of)
            || slots.is_empty() == permits.is_some()
        {
            return Err(Corrupt("the holders of a lock do not agree on its permits"));
        }
        // A semaphore has at most one for each slot; readers have no slots, and may be many.
        let taken = permits.map(|_| self.tables.readers_of(lock));
        if taken
            .into_iter()
            .flatten()
            .map(|other| self.tables.slots_of(other))
            .any(|other| slots.without(other) != slots)
        {
            return Err(Corrupt("a slot has two holders"));
        }
        if phase > grant.token {
            return Err(Corrupt("a shared grant is older than its phase"));
        }
        if update && (permits.is_some() || self.tables.update_on(lock).is_some()) {
            return Err(Corrupt(
                "a lock has two grants in mode update, or has permits",
            ));
        }
        let share = self
            .tables
            .add_share(lock, grant.token, grant.wall, slots, grant.metadata);
        if update {
            self.tables.mark_update(share);
        }
        self.shares.push(grant.key);
        Ok(())
    }

    fn take_kept(&mut self, kept: KeptRecord) -> Result<(), Corrupt> {
        let lock = self.add(kept.lock, kept.last, WallTime::default())?;
        if kept.permits.is_some() {
            self.tables.extra_mut(lock).permits = kept.permits;
        }
        if let Some(until) = kept.closed {
            if kept.permits.is_some() {
                return Err(Corrupt("a semaphore is closed for a time"));
            }
            if self.tables.closed_locks.contains_key(&(until, kept.last)) {
                return Err(Corrupt("two closed locks have one last token"));
            }
            self.tables.close_until(lock, until);
        }
        Ok(())
    }

    fn add(&mut self, lock: LockName, token: Token, wall: WallTime) -> Result<LockSlot, Corrupt> {
        match self.tables.find_lock(&lock) {
            Some(_) => Err(Corrupt("a lock has two grants")),
            None => Ok(self.tables.add_lock(lock, token, wall)),
        }
    }
}

/// The third part: remembered answers and endings.
#[derive(Debug)]
pub struct Past {
    answers: Answers,
    over: Endings,
}

impl Past {
    /// Reads it, as [`Leases::read`].
    ///
    /// # Errors
    /// [`Corrupt`] if the records contradict each other.
    pub fn read(seed: u64, records: impl IntoIterator<Item = Record>) -> Result<Past, Corrupt> {
        let mut past = Past {
            answers: Answers::new(seed),
            over: Endings::new(seed),
        };
        for record in in_order(records.into_iter()) {
            match record? {
                Record::Answered(answered) => past.answers.restore(answered),
                Record::Over(over) => past.over.restore(over),
                _ => return Err(OUT_OF_ORDER),
            }
        }
        Ok(past)
    }
}

impl Machine {
    /// Builds a machine from the records of a snapshot, one after the other. `seed` as in [`Machine::new`].
    ///
    /// # Errors
    /// [`Corrupt`] if the records contradict each other; nothing half-built is returned.
    pub fn restore(
        seed: u64,
        records: impl IntoIterator<Item = Record>,
    ) -> Result<Machine, Corrupt> {
        let mut records = records.into_iter().peekable();
        let leases = Leases::read(seed, of_part(&mut records, Part::Leases))?;
        let grants = Grants::read(seed, of_part(&mut records, Part::Grants))?;
        let past = Past::read(seed, of_part(&mut records, Part::Past))?;
        match records.next() {
            None => Machine::join(leases, grants, past),
            Some(_) => Err(OUT_OF_ORDER),
        }
    }

    /// The machine that the three parts of a snapshot make, all read with one seed.
    ///
    /// # Errors
    /// [`Corrupt`] if they contradict each other.
    pub fn join(leases: Leases, grants: Grants, past: Past) -> Result<Machine, Corrupt> {
        let Leases { head, tables } = leases;
        let mut machine = Machine {
            now: head.now,
            wall: WallTime::default(),
            by: Principal::ANONYMOUS,
            next_token: head.next_token,
            restored: head.restored,
            revision: head.revision,
            arrivals: head.arrivals,
            limits: head.limits,
            tables: tables.with_locks_of(grants.tables),
            answers: past.answers,
            over: past.over,
            to_wake: VecDeque::new(),
            changed: false,
            silent: false,
            ended: 0,
            extended: 0,
            expiry: Expiry::CURRENT,
        };
        machine.put_under(&grants.under, &grants.shares)?;
        machine.take_waiters(grants.waiters)?;
        machine.check_kept()?;
        machine.tables.line_up_again(machine.now);
        match machine.tables.leases_without_grants() {
            0 => Ok(machine),
            _ => Err(Corrupt("a lease has no grant")),
        }
    }

    /// Ties each grant to its lease in the order of the grants' numbers: the keys are listed by slot.
    fn put_under(&mut self, keys: &[LeaseKey], shares: &[LeaseKey]) -> Result<(), Corrupt> {
        let mut near = 0;
        let mut before: Option<(GrantSlot, Token, LeaseKey)> = None;
        let locks = (0..).map(|lock| GrantSlot::of_lock(LockSlot::of(lock)));
        let mut grants = locks.zip(keys).peekable();
        let slots = (0..).map(|share| ShareSlot::of(share).grant());
        let mut shares = slots.zip(shares).peekable();
        loop {
            let number = |next: Option<&(GrantSlot, &LeaseKey)>| {
                next.map(|(slot, _)| self.tables.grant(*slot).token())
            };
            let next = match (number(grants.peek()), number(shares.peek())) {
                (Some(grant), Some(share)) if share < grant => shares.next(),
                (None, _) => shares.next(),
                _ => grants.next(),
            };
            let Some((slot, key)) = next else {
                return Ok(());
            };
            let token = self.tables.grant(slot).token();
            if self.next_token.is_some_and(|next| token >= next) {
                return Err(Corrupt("a grant's token is not below the counter"));
            }
            let lease = self
                .lease_near(&mut near, token, key)
                .ok_or(Corrupt("a grant is under no lease"))?;
            if self.tables.leases[lease].id.0 > token {
                return Err(Corrupt("a grant is older than its lease"));
            }
            if let Some((before, same, under)) = before.replace((slot, token, *key))
                && same == token
            {
                self.check_one_set([before, slot], under == *key)?;
            }
            let lock = self.tables.lock_of(slot);
            if slot.is_share() && self.tables.find_share(lock, lease).is_some() {
                return Err(Corrupt("a lease has a lock twice"));
            }
            self.tables.tie(slot, lease);
        }
    }

    /// Two grants with one token are those of a set.
    fn check_one_set(&self, grants: [GrantSlot; 2], one_lease: bool) -> Result<(), Corrupt> {
        let [Some(before), Some(next)] = grants.map(GrantSlot::lock) else {
            return Err(Corrupt("two leases have one token"));
        };
        if !one_lease {
            return Err(Corrupt("two leases have one token"));
        }
        let [before, next] = [before, next].map(|lock| &self.tables.locks[lock].name);
        if before < next {
            Ok(())
        } else {
            Err(OUT_OF_ORDER)
        }
    }

    /// Each lock that nobody holds is closed or there for an orphan or a set.
    fn check_kept(&self) -> Result<(), Corrupt> {
        for (slot, last) in self.tables.kept_locks() {
            if self.next_token.is_some_and(|next| last >= next) {
                return Err(Corrupt("a lock's last token is not below the counter"));
            }
            let first = self.tables.first_waiter(slot);
            if self.tables.closed(slot).is_none()
                && first.is_none_or(|first| {
                    let first = &self.tables.waiters[first];
                    first.orphan.is_none() && first.role == WaiterRole::Alone
                })
            {
                return Err(Corrupt("a lock is kept for nobody"));
            }
        }
        Ok(())
    }

    /// The lease with a key. Leases came by their ids, grants come by their tokens, and a lease's id is its
    /// first grant's token: most are found by walking along, without the index.
    fn lease_near(&self, near: &mut u32, token: Token, key: &LeaseKey) -> Option<LeaseSlot> {
        let leases = &self.tables.leases;
        let at = |near: u32| leases.get(LeaseSlot::of(near));
        while at(*near).is_some_and(|lease| lease.id.0 < token) {
            *near += 1;
        }
        match at(*near) {
            Some(lease) if lease.key == *key => Some(LeaseSlot::of(*near)),
            _ => self.tables.find_lease(key),
        }
    }

    /// Requests by arrival: records with one arrival are a set.
    fn take_waiters(&mut self, waiters: Vec<WaiterRecord>) -> Result<(), Corrupt> {
        let mut waiters = waiters.into_iter().peekable();
        while let Some(waiter) = waiters.next() {
            let arrival = waiter.arrival;
            let next_of_set = |waiters: &mut Peekable<_>| {
                waiters.next_if(|next: &WaiterRecord| next.arrival == arrival)
            };
            let Some(second) = next_of_set(&mut waiters) else {
                self.take_waiter(waiter, WaiterRole::Alone)?;
                continue;
            };
            let mut parts = Vec::from([self.take_waiter(waiter.clone(), WaiterRole::First)?]);
            let (mut last, mut next) = (waiter, Some(second));
            while let Some(part) = next {
                check_part(&last, &part)?;
                parts.push(self.take_waiter(part.clone(), WaiterRole::Other)?);
                (last, next) = (part, next_of_set(&mut waiters));
            }
            if parts.len() > limits::SET_LOCKS {
                return Err(Corrupt("a set has too many locks"));
            }
            if parts.iter().any(|part| {
                let lock = self.tables.waiters[*part].lock;
                self.tables.permits(lock).is_some()
            }) {
                return Err(Corrupt("a request waits for a lock of another kind"));
            }
            self.tables.add_set(arrival, Box::from(parts));
        }
        Ok(())
    }

    /// An upgrade waits beside the grant that it is for, and is the only one.
    fn check_upgrade(&self, lock: LockSlot, waiter: &WaiterRecord) -> Result<(), Corrupt> {
        let update = self.tables.update_on(lock);
        let key = update.map(|update| self.tables.lease_of(update.grant()).key);
        match waiter.under {
            Under::Existing { key: of, .. } if Some(of) == key => {}
            _ => return Err(Corrupt("an upgrade waits without a grant in mode update")),
        }
        if self.tables.upgrade_waits(lock) {
            Err(Corrupt("two upgrades of one lock wait"))
        } else {
            Ok(())
        }
    }

    fn take_waiter(
        &mut self,
        waiter: WaiterRecord,
        role: WaiterRole,
    ) -> Result<WaiterSlot, Corrupt> {
        let lock = self.tables.find_lock(&waiter.lock);
        let lock = lock.ok_or(Corrupt("a request waits for a lock that is free"))?;
        if role != WaiterRole::Other
            && self
                .tables
                .find_waiter(waiter.by, &waiter.request)
                .is_some()
        {
            return Err(Corrupt("a request waits twice"));
        }
        if waiter.arrival > self.arrivals {
            return Err(Corrupt("a request waits that has not arrived"));
        }
        if waiter.mode.permits().is_some() != self.tables.permits(lock).is_some() {
            return Err(Corrupt("a request waits for a lock of another kind"));
        }
        if waiter.mode != LockMode::Exclusive && !waiter.options.is_none() {
            return Err(Corrupt(
                "a request for a shared grant says what is after it",
            ));
        }
        if waiter.mode == LockMode::Upgrade {
            self.check_upgrade(lock, &waiter)?;
        }
        let latest = waiter.deadline.min(self.now.after(limits::ORPHAN_WINDOW));
        if waiter.orphan.is_some_and(|until| until > latest) {
            return Err(Corrupt("an orphan's place is kept for too long"));
        }
        let record = Waiter {
            request: waiter.request,
            lock,
            client: Owner::NONE,
            under: waiter.under,
            metadata: waiter.metadata,
            options: waiter.options,
            since: waiter.since,
            deadline: waiter.deadline,
            orphan: waiter.orphan,
            mode: waiter.mode,
            role,
            arrival: waiter.arrival,
            prev: SlotLink::NONE,
            next: SlotLink::NONE,
        };
        let client = Contender {
            by: waiter.by,
            id: &waiter.client,
        };
        Ok(self.tables.enqueue(client, record))
    }
}

/// Whether a record is the next one of a set: it repeats the set's request, except for the lock and the text.
fn check_part(last: &WaiterRecord, part: &WaiterRecord) -> Result<(), Corrupt> {
    let expected = WaiterRecord {
        lock: part.lock.clone(),
        metadata: None,
        mode: LockMode::Exclusive,
        options: GrantOptions::NONE,
        ..last.clone()
    };
    if *part != expected || last.mode != part.mode || last.options != part.options {
        return Err(Corrupt("the parts of a set do not agree"));
    }
    if last.lock < part.lock {
        Ok(())
    } else {
        Err(OUT_OF_ORDER)
    }
}

/// The next records, as long as they belong to this part.
fn of_part(
    records: &mut Peekable<impl Iterator<Item = Record>>,
    part: Part,
) -> impl Iterator<Item = Record> {
    core::iter::from_fn(move || records.next_if(|record| Part::of(record) == part))
}

/// No more records than this come.
fn at_most(records: &impl Iterator<Item = Record>) -> usize {
    records.size_hint().1.unwrap_or(0)
}

/// The records, as long as each may follow the one before it.
fn in_order(
    records: impl Iterator<Item = Record>,
) -> impl Iterator<Item = Result<Record, Corrupt>> {
    let mut last = None;
    records.map(move |record| {
        let place = RecordPlace::of(&record);
        let fits = last.as_ref().is_none_or(|last| place.may_follow(last));
        last = Some(place);
        fits.then_some(record).ok_or(OUT_OF_ORDER)
    })
}

/// Where a record belongs: its kind, and its number among those of its kind.
#[derive(PartialEq, PartialOrd)]
struct RecordPlace {
    kind: u8,
    number: Option<u64>,
}

impl RecordPlace {
    fn of(record: &Record) -> RecordPlace {
        let (kind, number) = match record {
            Record::Head(_) => (0, Some(0)),
            Record::Lease(lease) => (1, Some(lease.id.0.get())),
            Record::Grant(grant) => (2, Some(grant.token.get())),
            Record::Share(share) => (3, Some(share.grant.token.get())),
            Record::Kept(kept) => (4, Some(kept.last.get())),
            Record::Waiter(waiter) => (5, Some(waiter.arrival)),
            Record::Answered(_) => (6, None),
            Record::Over(_) => (7, None),
        };
        RecordPlace { kind, number }
    }

    /// Numbers rise. Memories have none; their order is their age. The records of a set have equal numbers: grants with
    /// one token, and requests with one arrival. Locks that are kept for sets may have one token too.
    fn may_follow(&self, last: &RecordPlace) -> bool {
        self > last || (self == last && matches!(self.kind, 2 | 4 | 5 | 6 | 7))
    }
}
