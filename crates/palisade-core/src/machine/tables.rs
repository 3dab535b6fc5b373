//! The tables, and the few ways in which records are tied to one another.
//!
//! This module, [`record`](super::record), [`grant`](super::grant) and [`share`](super::share) import each other: a grant lies
//! in the record of its lock or in a share, and the last two extend [`Tables`].

use alloc::boxed::Box;
use alloc::collections::{BTreeMap, BTreeSet};
use alloc::vec::Vec;

use super::extensions::Extensions;
use super::grant::{Grant, GrantSlot, HeldBy};
use super::index::Index;
use super::record::{ClientRecord, Contender, Extra, Lease, Lock, Owner, Waiter, WaiterRole};
use super::share::Share;
use super::short::Short;
use super::slab::{
    ClientSlot, ExtraSlot, LeaseSlot, LockSlot, ShareSlot, Slab, SlotLink, WaiterSlot,
};
use super::timers::SlotTimers;
use crate::command::{LockMode, Under};
use crate::id::{LeaseId, LeaseKey, Principal, RequestId};
use crate::name::{ClientId, LockName};
use crate::time::{Timestamp, Ttl, WallTime};
use crate::token::Token;

/// Locks, leases, clients and waiters, with the indexes and timers that find them.
#[derive(Clone, Debug)]
pub(crate) struct Tables {
    pub(crate) locks: Slab<LockSlot, Lock>,
    pub(crate) leases: Slab<LeaseSlot, Lease>,
    pub(crate) clients: Slab<ClientSlot, ClientRecord>,
    pub(crate) waiters: Slab<WaiterSlot, Waiter>,
    pub(super) extras: Slab<ExtraSlot, Extra>,
    pub(super) shares: Slab<ShareSlot, Share>,
    names: Index<LockSlot>,
    keys: Index<LeaseSlot>,
    ids: Index<ClientSlot>,
    requests: Index<WaiterSlot>,
    /// Shared grants by lock and lease.
    pub(super) readers: Index<ShareSlot>,
    /// Shared grants by number.
    pub(super) numbers: Index<ShareSlot>,
    pub(crate) lease_timers: SlotTimers<LeaseSlot>,
    pub(crate) wait_timers: SlotTimers<WaiterSlot>,
    pub(super) short: Short,
    /// Leases that were extended since their last renewal.
    pub(crate) extensions: Extensions,
    /// The sets that wait, by arrival: their records in the order of the locks' names.
    pub(crate) sets: BTreeMap<u64, Box<[WaiterSlot]>>,
    /// The sets that wait by client, so that a grant to that client finds them.
    pub(super) sets_of: BTreeSet<(ClientSlot, u64)>,
    /// Requests that wait under an existing lease, by lease and arrival: they end with it.
    waits_under: BTreeMap<(LeaseSlot, u64), WaiterSlot>,
    /// Requests that wait for permits, by lock, number and arrival: a lower number of permits finds those that want more.
    permit_waits: BTreeMap<(LockSlot, u32, u64), WaiterSlot>,
    /// Requests, by arrival, that have just lost their lease. Empty between entries.
    pub(super) bereaved: BTreeMap<u64, WaiterSlot>,
    /// Sets to be looked at because of a grant to their client, by arrival. Empty between entries.
    pub(super) sets_to_try: BTreeSet<u64>,
    /// Locks that are closed, by when they open and their last token.
    pub(super) closed_locks: BTreeMap<(Timestamp, Token), LockSlot>,
    /// Whether somebody listens, and the locks whose queues have changed. Not part of the state.
    pub(super) notes_queues: bool,
    pub(super) changed_queues: BTreeSet<LockSlot>,
}

impl Tables {
    pub(super) fn new(seed: u64, now: Timestamp) -> Tables {
        Tables {
            locks: Slab::new(),
            leases: Slab::new(),
            clients: Slab::new(),
            waiters: Slab::new(),
            extras: Slab::new(),
            shares: Slab::new(),
            names: Index::new(seed),
            keys: Index::new(seed),
            ids: Index::new(seed),
            requests: Index::new(seed),
            readers: Index::new(seed),
            numbers: Index::new(seed),
            lease_timers: SlotTimers::new(now),
            wait_timers: SlotTimers::new(now),
            short: Short::default(),
            extensions: Extensions::default(),
            sets: BTreeMap::new(),
            sets_of: BTreeSet::new(),
            waits_under: BTreeMap::new(),
            permit_waits: BTreeMap::new(),
            bereaved: BTreeMap::new(),
            sets_to_try: BTreeSet::new(),
            closed_locks: BTreeMap::new(),
            notes_queues: false,
            changed_queues: BTreeSet::new(),
        }
    }

    /// Makes room for this many more locks.
    pub(super) fn reserve_locks(&mut self, more: usize) {
        self.names.reserve(more);
    }

    /// Makes room for this many more leases.
    pub(super) fn reserve_leases(&mut self, more: usize) {
        self.keys.reserve(more);
        self.lease_timers.reserve(more);
    }

    /// With the locks of other tables, which have nothing else, instead of its own. They keep their slots.
    pub(super) fn with_locks_of(self, others: Tables) -> Tables {
        Tables {
            locks: others.locks,
            names: others.names,
            extras: others.extras,
            shares: others.shares,
            numbers: others.numbers,
            closed_locks: others.closed_locks,
            ..self
        }
    }

    /// Gives back most of the room that nothing is in.
    pub(super) fn fit(&mut self) {
        self.names.fit();
        self.keys.fit();
        self.lease_timers.fit();
    }

    /// See [`Index::touch`].
    #[inline]
    pub(super) fn touch_lock(&self, name: &str) {
        self.names.touch(name);
    }

    /// See [`Index::touch`].
    #[inline]
    pub(super) fn touch_lease(&self, key: &LeaseKey) {
        self.keys.touch(key);
    }

    pub(crate) fn find_lock(&self, name: &str) -> Option<LockSlot> {
        self.names
            .find(name, |slot| &*self.locks[slot].name == name)
    }

    pub(crate) fn find_lease(&self, key: &LeaseKey) -> Option<LeaseSlot> {
        self.keys.find(key, |slot| self.leases[slot].key == *key)
    }

    pub(crate) fn find_waiter(&self, by: Principal, request: &RequestId) -> Option<WaiterSlot> {
        if self.waiters.len() == 0 {
            return None;
        }
        self.requests.find(request, |slot| {
            let waiter = &self.waiters[slot];
            waiter.request == *request && self.principal_of(waiter.client) == by
        })
    }

    fn find_client(&self, client: Contender<'_>) -> Option<ClientSlot> {
        self.find_client_hashed(self.ids.hash(&**client.id), client)
    }

    fn find_client_hashed(&self, hash: u64, client: Contender<'_>) -> Option<ClientSlot> {
        let Contender { by, id } = client;
        self.ids.find_hashed(hash, |slot| {
            let client = &self.clients[slot];
            client.id == *id && client.by == by
        })
    }

    /// The principal of a lease's or a waiter's owner.
    #[inline]
    pub(crate) fn principal_of(&self, owner: Owner) -> Principal {
        if owner.is_named() {
            self.clients[owner.slot()].by
        } else {
            Principal::ANONYMOUS
        }
    }

    /// How many requests of this client wait.
    pub(super) fn waiting_of(&self, client: Contender<'_>) -> u32 {
        self.find_client(client)
            .map_or(0, |slot| self.clients[slot].waiting)
    }

    // --- clients ---------------------------------------------------------------------------------

    fn use_client(&mut self, client: Contender<'_>) -> Owner {
        let Contender { by, id } = client;
        let hash = self.ids.hash(&**id);
        if let Some(slot) = self.find_client_hashed(hash, client) {
            self.clients[slot].uses += 1;
            return Owner::new(slot, by);
        }
        let slot = self.clients.insert(ClientRecord {
            by,
            id: id.clone(),
            uses: 1,
            waiting: 0,
        });
        self.ids.insert_hashed(hash, slot);
        Owner::new(slot, by)
    }

    fn drop_client(&mut self, owner: Owner) {
        let slot = owner.slot();
        let client = &mut self.clients[slot];
        assert!(client.uses > 0, "a client that nothing uses is left");
        client.uses -= 1;
        if client.uses == 0 {
            assert_eq!(client.waiting, 0, "a client waits, and nothing uses it");
            let client = self.clients.remove(slot);
            self.ids.remove(&*client.id, slot);
        }
    }

    // --- leases ----------------------------------------------------------------------------------

    pub(super) fn open_lease(
        &mut self,
        id: LeaseId,
        key: LeaseKey,
        client: Contender<'_>,
        ttl: Ttl,
        expires: Timestamp,
    ) -> LeaseSlot {
        let client = self.use_client(client);
        let slot = self.leases.insert(Lease {
            key,
            id,
            client,
            ttl,
            expires,
            first: SlotLink::NONE,
            last: SlotLink::NONE,
        });
        self.keys.insert(&key, slot);
        self.lease_timers.insert(slot, expires);
        self.short.add(ttl);
        slot
    }

    /// Gives a lease another length.
    pub(super) fn set_ttl(&mut self, slot: LeaseSlot, ttl: Ttl) {
        let last = core::mem::replace(&mut self.leases[slot].ttl, ttl);
        self.short.take(last);
        self.short.add(ttl);
    }

    pub(super) fn close_lease(&mut self, slot: LeaseSlot) {
        self.lease_timers.remove(slot);
        if !self.waits_under.is_empty() {
            self.bereave(slot);
        }
        self.extensions.forget(slot);
        let lease = self.leases.remove(slot);
        let has_none = lease.first.is_none() && lease.last.is_none();
        assert!(has_none, "a lease ends before its last grant");
        self.keys.remove(&lease.key, slot);
        self.short.take(lease.ttl);
        self.drop_client(lease.client);
    }

    /// Notes the requests that wait under a lease which ends.
    fn bereave(&mut self, lease: LeaseSlot) {
        let its = self.waits_under.range((lease, 0)..=(lease, u64::MAX));
        let its: Vec<(u64, WaiterSlot)> =
            its.map(|((_, arrival), slot)| (*arrival, *slot)).collect();
        for (arrival, slot) in its {
            self.waits_under.remove(&(lease, arrival));
            self.bereaved.insert(arrival, slot);
        }
    }

    /// Notes that a request waits under an existing lease, if it does.
    pub(super) fn tie_wait(&mut self, slot: WaiterSlot) {
        let Waiter { under, arrival, .. } = self.waiters[slot];
        if let Under::Existing { key, .. } = under
            && let Some(lease) = self.find_lease(&key)
        {
            self.waits_under.insert((lease, arrival), slot);
        }
    }

    fn untie_wait(&mut self, waiter: &Waiter) {
        if let Under::Existing { key, .. } = waiter.under {
            self.bereaved.remove(&waiter.arrival);
            if let Some(lease) = self.find_lease(&key) {
                self.waits_under.remove(&(lease, waiter.arrival));
            }
        }
    }

    /// Whether the lease that a request waits under is over: ended, or due by this very instant.
    pub(super) fn outlived_lease(&self, slot: WaiterSlot, now: Timestamp) -> bool {
        match self.waiters[slot].under {
            Under::New { .. } => false,
            Under::Existing { key, .. } => {
                let lease = self.find_lease(&key);
                lease.is_none_or(|lease| self.leases[lease].is_expired(now))
            }
        }
    }

    /// None in a machine at rest: a lease ends with its last grant.
    pub(super) fn leases_without_grants(&self) -> usize {
        self.leases
            .iter()
            .filter(|(_, lease)| lease.first.is_none())
            .count()
    }

    // --- locks -----------------------------------------------------------------------------------

    /// A record for a lock that had none, under a lease.
    pub(super) fn open_lock(
        &mut self,
        name: LockName,
        token: Token,
        wall: WallTime,
        lease: LeaseSlot,
    ) -> LockSlot {
        let slot = self.add_lock(name, token, wall);
        self.tie(GrantSlot::of_lock(slot), lease);
        slot
    }

    /// A record for a lock that had none, to be tied to a lease.
    pub(super) fn add_lock(&mut self, name: LockName, token: Token, wall: WallTime) -> LockSlot {
        let record = Lock {
            name,
            grant: Grant::new(token, wall),
            extra: SlotLink::NONE,
        };
        let slot = self.locks.insert(record);
        self.names.insert(&*self.locks[slot].name, slot);
        slot
    }

    /// Gives a lock that just lost its grant to another lease.
    pub(super) fn regrant(
        &mut self,
        slot: LockSlot,
        token: Token,
        wall: WallTime,
        lease: LeaseSlot,
    ) {
        assert!(
            !self.is_exclusive(slot),
            "a lock is granted that has a writer"
        );
        let before = &mut self.locks[slot].grant;
        assert!(
            before.token() < token,
            "a token does not rise above the lock's last (A2)"
        );
        *before = Grant::new(token, wall);
        self.tie(GrantSlot::of_lock(slot), lease);
    }

    /// Forgets a lock that has neither a grant nor waiters.
    pub(super) fn close_lock(&mut self, slot: LockSlot) {
        let lock = self.locks.remove(slot);
        assert_eq!(
            lock.grant.by(),
            HeldBy::NOBODY,
            "a lock is forgotten that somebody holds"
        );
        self.names.remove(&*lock.name, slot);
        if let Some(extra) = lock.extra.get() {
            self.extras.remove(extra).assert_unused();
        }
    }

    #[inline]
    pub(super) fn set_metadata(&mut self, slot: LockSlot, metadata: Option<Box<str>>) {
        if metadata.is_some() || !self.locks[slot].extra.is_none() {
            self.extra_mut(slot).metadata = metadata;
        }
    }

    pub(crate) fn metadata(&self, lock: LockSlot) -> Option<&str> {
        self.extra(lock)?.metadata.as_deref()
    }

    /// How many requests wait for a lock.
    pub(crate) fn waiting(&self, lock: LockSlot) -> u32 {
        self.extra(lock).map_or(0, |extra| extra.waiting)
    }

    #[inline]
    pub(super) fn first_waiter(&self, lock: LockSlot) -> Option<WaiterSlot> {
        self.extra(lock)?.first.get()
    }

    #[inline]
    pub(super) fn extra(&self, lock: LockSlot) -> Option<&Extra> {
        let extra = self.locks[lock].extra.get();
        extra.map(|extra| &self.extras[extra])
    }

    pub(super) fn extra_mut(&mut self, lock: LockSlot) -> &mut Extra {
        let link = &mut self.locks[lock].extra;
        let extra = match link.get() {
            Some(extra) => extra,
            None => {
                let extra = self.extras.insert(Extra::new());
                *link = SlotLink::to(extra);
                extra
            }
        };
        &mut self.extras[extra]
    }

    #[cfg(test)]
    pub(super) fn spoil_key(&mut self, lease: LeaseSlot) {
        self.keys.remove(&self.leases[lease].key, lease);
    }

    #[cfg(test)]
    pub(super) fn spoil_permit_waits(&mut self) {
        self.permit_waits.clear();
    }

    // --- queues ----------------------------------------------------------------------------------

    /// Appends a request to its lock's queue; an upgrade goes to the head (S8). `waiter.client` and the links are filled in here.
    pub(super) fn enqueue(&mut self, client: Contender<'_>, mut waiter: Waiter) -> WaiterSlot {
        waiter.client = self.use_client(client);
        self.clients[waiter.client.slot()].waiting += 1;
        let (request, lock, ends) = (waiter.request, waiter.lock, waiter.ends());
        let permits = permits_key(&waiter);
        let is_other = waiter.role == WaiterRole::Other;
        let (is_upgrade, arrival) = (waiter.mode == LockMode::Upgrade, waiter.arrival);
        let slot = self.waiters.insert(waiter);
        self.permit_waits.extend(permits.map(|key| (key, slot)));
        if !is_other {
            self.requests.insert(&request, slot);
            self.wait_timers.insert(slot, ends);
            self.tie_wait(slot);
        }
        self.note_queue(lock);
        let extra = self.extra_mut(lock);
        extra.waiting += 1;
        if is_upgrade && let Some(next) = extra.first.get() {
            extra.first = SlotLink::to(slot);
            self.waiters[slot].next = SlotLink::to(next);
            self.waiters[next].prev = SlotLink::to(slot);
            return slot;
        }
        let prev = core::mem::replace(&mut extra.last, SlotLink::to(slot));
        let Some(last) = prev.get() else {
            extra.first = SlotLink::to(slot);
            return slot;
        };
        let before = &mut self.waiters[last];
        assert!(
            before.next.is_none(),
            "the last of a queue has one behind it"
        );
        assert!(
            before.arrival < arrival,
            "a queue is not in order of arrival (A10)"
        );
        before.next = SlotLink::to(slot);
        self.waiters[slot].prev = prev;
        slot
    }

    fn note_queue(&mut self, lock: LockSlot) {
        if self.notes_queues {
            self.changed_queues.insert(lock);
        }
    }

    /// Takes a request out of its queue, and returns it with its principal and client.
    pub(crate) fn dequeue(&mut self, slot: WaiterSlot) -> (Principal, ClientId, Waiter) {
        let waiter = self.waiters.remove(slot);
        if waiter.role != WaiterRole::Other {
            self.wait_timers.remove(slot);
            self.requests.remove(&waiter.request, slot);
            self.untie_wait(&waiter);
        }
        if let Some(key) = permits_key(&waiter) {
            let noted = self.permit_waits.remove(&key);
            assert_eq!(
                noted,
                Some(slot),
                "a request for permits is not noted as one"
            );
        }
        self.note_queue(waiter.lock);
        let extra = self.extra_mut(waiter.lock);
        assert!(extra.waiting > 0, "a request leaves a queue that has none");
        extra.waiting -= 1;
        let (lock, prev, next) = (waiter.lock, waiter.prev, waiter.next);
        let linked = match prev.get() {
            None => core::mem::replace(&mut extra.first, next),
            Some(prev) => core::mem::replace(&mut self.waiters[prev].next, next),
        };
        assert!(
            linked == slot,
            "a queue's links do not agree: before {slot:?}"
        );
        let linked = match next.get() {
            None => core::mem::replace(&mut self.extra_mut(lock).last, prev),
            Some(next) => core::mem::replace(&mut self.waiters[next].prev, prev),
        };
        assert!(
            linked == slot,
            "a queue's links do not agree: behind {slot:?}"
        );
        let client = &mut self.clients[waiter.client.slot()];
        assert!(
            client.waiting > 0,
            "a request leaves that its client has not"
        );
        client.waiting -= 1;
        let (by, id) = (client.by, client.id.clone());
        self.drop_client(waiter.client);
        (by, id, waiter)
    }

    /// The requests for more permits of a lock than `of`, the last to arrive first. Grows with them alone.
    pub(super) fn waits_for_more(&self, lock: LockSlot, of: u32) -> Vec<(u64, WaiterSlot)> {
        let larger = (lock, of + 1, 0)..=(lock, u32::MAX, u64::MAX);
        let larger = self.permit_waits.range(larger);
        let mut larger: Vec<_> = larger
            .map(|((_, _, arrival), slot)| (*arrival, *slot))
            .collect();
        larger.sort_unstable_by(|one, other| other.cmp(one));
        larger
    }

    /// The requests waiting for a lock, first come first.
    pub(crate) fn queue_of(&self, lock: LockSlot) -> impl Iterator<Item = WaiterSlot> {
        let first = self.first_waiter(lock);
        core::iter::successors(first, |slot| self.waiters[*slot].next.get())
    }
}

fn permits_key(waiter: &Waiter) -> Option<(LockSlot, u32, u64)> {
    let wanted = waiter.mode.permits()?.wanted();
    Some((waiter.lock, wanted, waiter.arrival))
}
