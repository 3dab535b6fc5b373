//! Questions that change nothing. The instant is an argument: a lease that is over by
//! then is not shown, whether or not its end was logged yet.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::Machine;
use super::grant::GrantSlot;
use super::slab::{LockSlot, Number as _, ShareSlot};
use crate::id::{GrantId, Principal, RequestId};
use crate::limits::{self, Limits};
use crate::name::LockName;
use crate::outcome::{Holder, LockView, Queued, Reader};
use crate::time::{Span, Timestamp};
use crate::token::Token;

/// Slots looked at for one page: a listing never keeps the machine busy for longer than this.
const SCAN: u32 = 2_048;

/// Where in a listing of grants those begin that share a lock.
const SHARES: u64 = 1 << 32;

/// A live grant and its principal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    /// The lock.
    pub lock: LockName,
    /// The grant's number.
    pub number: Token,
    /// Whether it is a reader's, or has permits.
    pub shared: bool,
    /// The principal it belongs to.
    pub by: Principal,
}

impl Machine {
    /// The holder of a lock at `now`, or `None` if it is free.
    #[must_use]
    pub fn holder(&self, lock: &str, now: Timestamp) -> Option<Holder> {
        self.tables
            .find_lock(lock)
            .and_then(|slot| self.holder_then(slot, now))
    }

    /// The token the next grant gets; `None` when the range is exhausted.
    #[must_use]
    pub fn next_token(&self) -> Option<Token> {
        self.next_token
    }

    /// The instant of the last entry applied.
    #[must_use]
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// The number of the latest event; 0 if there was none. Rises with every event, and leaps with every restore. It never goes
    /// back.
    #[must_use]
    pub fn revision(&self) -> u64 {
        self.revision
    }

    /// The operator's bounds in force.
    #[must_use]
    pub fn limits(&self) -> &Limits {
        &self.limits
    }

    /// How many locks are held or kept for an orphan. Some may be held by leases that are due but whose end is not logged yet.
    #[must_use]
    pub fn locks(&self) -> usize {
        self.tables.locks.len()
    }

    /// How many leases are live.
    #[must_use]
    pub fn leases(&self) -> usize {
        self.tables.leases.len()
    }

    /// How many shared grants are live.
    #[must_use]
    pub fn readers(&self) -> usize {
        self.tables.shares.len()
    }

    /// The place of a waiting request in the order of all arrivals; `None` if it does not wait.
    #[must_use]
    pub fn arrival(&self, by: Principal, request: &RequestId) -> Option<u64> {
        let slot = self.tables.find_waiter(by, request)?;
        Some(self.tables.waiters[slot].arrival)
    }

    /// How many requests wait.
    #[must_use]
    pub fn waiters(&self) -> usize {
        self.tables.waiters.len()
    }

    /// The view of a lock that is held, or kept for an orphan; `None` if it is free.
    /// Its first readers and waiting requests are part of it.
    #[must_use]
    pub fn view(&self, lock: &str, now: Timestamp) -> Option<LockView> {
        let slot = self.tables.find_lock(lock)?;
        let view = self.view_slot(slot, now)?;
        Some(LockView {
            revision: Some(self.revision),
            readers: self.readers_then(slot, now),
            waited: None,
            queue: self.queue_then(slot, now),
            ..view
        })
    }

    fn readers_then(&self, lock: LockSlot, now: Timestamp) -> Vec<Reader> {
        let readers = self.tables.readers_of(lock).take(limits::SHOWN);
        let live = readers.filter(|reader| !self.tables.lease_of(reader.grant()).is_expired(now));
        live.map(|reader| Reader {
            holder: self.holder_at(reader.grant(), now),
            id: GrantId(self.tables.grant(reader.grant()).token()),
            update: self.tables.is_update(reader),
            slots: self.tables.slots_of(reader),
            acquired_at: self.tables.grant(reader.grant()).wall(),
            metadata: self.tables.metadata_of(reader.grant()).map(Box::from),
        })
        .collect()
    }

    fn queue_then(&self, lock: LockSlot, now: Timestamp) -> Vec<Queued> {
        let queue = self.tables.queue_of(lock).take(limits::SHOWN);
        queue
            .map(|slot| {
                let waiter = &self.tables.waiters[slot];
                Queued {
                    client: self.tables.clients[waiter.client.slot()].id.clone(),
                    mode: waiter.mode,
                    waited: now.since(waiter.since),
                    remaining: waiter.ends().since(now),
                }
            })
            .collect()
    }

    /// One page of the locks that are held, or kept for an orphan, whose names start with `prefix`, and where the next page starts.
    ///
    /// The order is that of the table, not of the names. A lock that is held from the first page to
    /// the last is listed exactly once. A page may be empty and still not be the last one: the work
    /// for one page is bounded, however many locks there are.
    #[must_use]
    pub fn page(
        &self,
        prefix: &str,
        cursor: u64,
        limit: usize,
        now: Timestamp,
    ) -> (Vec<LockView>, Option<u64>) {
        let slots = self.tables.locks.slots();
        let start = u32::try_from(cursor).unwrap_or(slots).min(slots);
        let end = slots.min(start.saturating_add(SCAN));
        let mut page = Vec::new();
        for number in start..end {
            if page.len() >= limit {
                return (page, Some(number.into()));
            }
            let slot = LockSlot::of(number);
            let lock = self.tables.locks.get(slot);
            if lock.is_some_and(|lock| lock.name.starts_with(prefix)) {
                page.extend(self.view_slot(slot, now));
            }
        }
        (page, (end < slots).then_some(end.into()))
    }

    /// One page of all live grants, and where the next page starts. As [`Machine::page`]; each reader is in it.
    #[must_use]
    pub fn grants(&self, cursor: u64, now: Timestamp) -> (Vec<Held>, Option<u64>) {
        let shares = cursor.checked_sub(SHARES);
        let slots = match shares {
            None => self.tables.locks.slots(),
            Some(_) => self.tables.shares.slots(),
        };
        let start = u32::try_from(shares.unwrap_or(cursor)).unwrap_or(slots);
        let end = slots.min(start.saturating_add(SCAN));
        let grant = |number| match shares {
            None => {
                let lock = LockSlot::of(number);
                self.tables.locks.get(lock)?;
                let held = self.tables.is_exclusive(lock);
                held.then(|| self.tables.grant_on(lock))
            }
            Some(_) => {
                let share = ShareSlot::of(number);
                self.tables.shares.get(share).map(|_| share.grant())
            }
        };
        let held = (start.min(end)..end).filter_map(grant).filter_map(|grant| {
            let (held, lease) = self.tables.held(grant);
            (!lease.is_expired(now)).then(|| Held {
                lock: self.tables.locks[self.tables.lock_of(grant)].name.clone(),
                number: held.token(),
                shared: shares.is_some(),
                by: self.tables.principal_of(lease.client),
            })
        });
        let next = match shares {
            None if end < slots => Some(end.into()),
            None => Some(SHARES),
            Some(_) => (end < slots).then_some(SHARES + u64::from(end)),
        };
        (held.collect(), next)
    }

    fn view_slot(&self, slot: LockSlot, now: Timestamp) -> Option<LockView> {
        let name = self.tables.locks[slot].name.clone();
        let closed = self.closed_then(slot, now);
        if closed.is_some() || self.tables.is_kept(slot) {
            let opened = self.tables.closed(slot).is_some() && closed.is_none();
            if opened && self.tables.waiting(slot) == 0 {
                return None;
            }
            return Some(LockView {
                delayed: closed.map(|until| until.since(now)),
                permits: self.tables.permits(slot),
                waiters: self.tables.waiting(slot),
                waited: self.waited_then(slot, now),
                ..LockView::free(name)
            });
        }
        let holder = self.holder_then(slot, now)?;
        let grant = self.live_on(slot, now)?;
        Some(LockView {
            holder: Some(holder),
            extensions: self.extensions_of(grant),
            lease: Some(self.tables.lease_of(grant).id),
            acquired_at: Some(self.tables.grant(grant).wall()),
            metadata: self.tables.metadata_of(grant).map(Box::from),
            options: self.tables.closing(slot).options,
            reader_count: self.tables.readers(slot),
            permits: self.tables.permits(slot),
            waiters: self.tables.waiting(slot),
            waited: self.waited_then(slot, now),
            ..LockView::free(name)
        })
    }

    /// How long the first waiter has waited.
    fn waited_then(&self, lock: LockSlot, now: Timestamp) -> Option<Span> {
        let first = self.tables.queue_of(lock).next()?;
        Some(now.since(self.tables.waiters[first].since))
    }

    fn extensions_of(&self, grant: GrantSlot) -> u32 {
        let lease = self.tables.grant(grant).lease();
        let extension = self.tables.extensions.get(lease);
        extension.map_or(0, |extension| extension.times.get())
    }

    fn holder_then(&self, slot: LockSlot, now: Timestamp) -> Option<Holder> {
        Some(self.holder_at(self.live_on(slot, now)?, now))
    }

    fn holder_at(&self, grant: GrantSlot, now: Timestamp) -> Holder {
        Holder {
            remaining: self.tables.lease_of(grant).expires.since(now),
            ..self.holder_by(grant)
        }
    }

    /// The grant that holds a lock at `now`. Among several readers it is the oldest, among the first [`limits::SHOWN`].
    fn live_on(&self, slot: LockSlot, now: Timestamp) -> Option<GrantSlot> {
        if self.tables.is_shared(slot) {
            let readers = self.tables.readers_of(slot).take(limits::SHOWN);
            let mut grants = readers.map(ShareSlot::grant);
            return grants.find(|grant| !self.tables.lease_of(*grant).is_expired(now));
        }
        let lease = self.tables.lease_of_writer(slot)?;
        (!lease.is_expired(now)).then(|| self.tables.grant_on(slot))
    }
}
