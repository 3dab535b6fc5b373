//! First come, first served (A10): a lock goes to the longest waiting request whose caller is still there and whose
//! wait is not over. After a change of leader (R15, R16) every caller is away; nobody is served before one that may still
//! come back, and nobody waits for one that may not. A reader joins other readers unless somebody waits, and one release
//! admits the whole run of readers at the head (S6). A request for more permits than are free is not overtaken by one for
//! fewer (P6). There is one order of arrival for all locks: a set is overtaken on none of its locks, and it is granted as
//! soon as it is first for all of them and all are free (M2). The upgrade of a grant in mode update goes to the head, and
//! waits for the other readers alone; a second request for mode update waits for the first (S8). Nobody joins readers from
//! before a restore (S11).

use std::collections::{BTreeMap, BTreeSet};

use palisade_core::LockMode;

use super::rule::{self, Check};
use super::slot_table::SlotTable;
use crate::sim::fact::{ChangeKind, Fact, Orphan};
use crate::sim::locks::Locks;
use crate::sim::plan::Plan;

/// See the module.
pub(crate) struct Fifo {
    /// The locks that each request asked for.
    asked: BTreeMap<u32, Locks>,
    /// For requests under a lease that the client already had: that lease; the number of live grants of each lease; and
    /// the lease of each grant.
    under: BTreeMap<u32, u64>,
    leases: BTreeMap<u64, u32>,
    lease_of: BTreeMap<u64, u64>,
    /// Leases of orphans that were passed: they ended with the same entry, which is seen with the rest of it.
    orphans_over: BTreeSet<u64>,
    /// The numbers of permits that requests say there are.
    of: BTreeMap<u32, u8>,
    /// The requests that wait, in order of arrival. A lock's queue is those that want it.
    waiting: Vec<Waiter>,
    /// Requests whose callers left, until they return.
    gone: BTreeSet<u32>,
    full: bool,
    /// Each lock's writer, the number of its readers, and every grant so far.
    holders: BTreeMap<u8, u8>,
    readers: BTreeMap<u8, BTreeSet<u64>>,
    granted: BTreeSet<u64>,
    shared: BTreeSet<u64>,
    /// Each lock's grant in mode update and its client, and every such grant so far.
    updates: BTreeMap<u8, (u64, u8)>,
    in_update: BTreeSet<u64>,
    /// Readers with lower numbers are from before a restore.
    restored: u64,
    /// Locks whose waiting upgrade was passed, because its grant is over, and that grant.
    upgrades_over: BTreeMap<u8, u64>,
    /// The slots of semaphores; such a lock has neither writer nor readers.
    slots: SlotTable,
    /// Locks that nobody has and that are not closed, although requests wait for them.
    free: BTreeSet<u8>,
    /// Locks that the entry being applied gives to requests that waited.
    passed_on: BTreeSet<u8>,
}

#[derive(Clone, Copy)]
struct Waiter {
    request: u32,
    client: u8,
    locks: Locks,
    until: u64,
    mode: LockMode,
    /// How many permits it wants of a semaphore.
    wanted: u8,
    /// Until when its caller may come back.
    orphan: Option<u64>,
}

/// A timer rings at the first tick at or after its instant, in nanoseconds.
const TICK: u64 = 1_000_000;

impl Fifo {
    pub(crate) fn new(plan: &Plan) -> Fifo {
        Fifo {
            asked: BTreeMap::new(),
            under: BTreeMap::new(),
            leases: BTreeMap::new(),
            lease_of: BTreeMap::new(),
            orphans_over: BTreeSet::new(),
            of: BTreeMap::new(),
            waiting: Vec::new(),
            gone: BTreeSet::new(),
            full: false,
            holders: BTreeMap::new(),
            readers: BTreeMap::new(),
            granted: BTreeSet::new(),
            shared: BTreeSet::new(),
            updates: BTreeMap::new(),
            in_update: BTreeSet::new(),
            restored: 0,
            upgrades_over: BTreeMap::new(),
            slots: SlotTable::new(plan),
            free: BTreeSet::new(),
            passed_on: BTreeSet::new(),
        }
    }

    fn queued(&mut self, client: u8, at: u64, waiter: Waiter) -> Result<(), String> {
        let request = waiter.request;
        // A set that does not wait yet takes its client's own locks over.
        let new = waiter.locks.are_several() && self.place(request).is_none();
        let is_own = |lock| {
            new && !self.passed_on.contains(&lock) && self.holders.get(&lock) == Some(&client)
        };
        let is_first = |lock| waiter.mode == LockMode::Upgrade || self.queue(lock, at) == 0;
        let mut locks = waiter.locks.iter();
        if locks.all(|lock| is_own(lock) || self.is_open(lock, &waiter) && is_first(lock)) {
            return Err(format!(
                "request {request} has to wait for {:?}, open to it and wanted by nobody else",
                waiter.locks
            ));
        }
        let back = self.gone.remove(&request);
        match self.place(request) {
            // It left and returned, or returned too late: at the end of the queue.
            Some(place) if back || self.waiting[place].is_lost(at) => {
                self.waiting.remove(place);
            }
            // Another attempt keeps its place and its deadline.
            Some(place) => {
                self.waiting[place].orphan = None;
                return Ok(());
            }
            None => {}
        }
        let place = match waiter.mode {
            LockMode::Upgrade => 0,
            _ => self.waiting.len(),
        };
        self.waiting.insert(place, waiter);
        Ok(())
    }

    /// A new request was granted permits: the number that it named is in force, because another one is refused.
    fn named(&mut self, request: u32, locks: Locks, slots: u64) {
        let of = self.of.get(&request).filter(|_| slots != 0);
        for (lock, of) in locks.iter().zip(of) {
            self.slots.resize(lock, *of);
        }
    }

    /// Requests for more permits than exist leave the queue; absent callers get no answer.
    fn resized(&mut self, lock: u8, permits: u8) {
        self.slots.resize(lock, permits);
        let wants = Locks::one(lock);
        self.waiting.retain(|waiter| {
            waiter.orphan.is_none() || waiter.locks != wants || waiter.wanted <= permits
        });
    }

    fn place(&self, request: u32) -> Option<usize> {
        let mut waiting = self.waiting.iter();
        waiting.position(|waiter| waiter.request == request)
    }

    /// Whether a request would be granted the lock if nobody waited.
    fn is_open(&self, lock: u8, waiter: &Waiter) -> bool {
        (waiter.wanted == 0 && self.free.contains(&lock)) || self.joins(lock, waiter)
    }

    /// Whether a request may hold the lock together with those that do.
    fn joins(&self, lock: u8, waiter: &Waiter) -> bool {
        match waiter.mode {
            LockMode::Exclusive => false,
            LockMode::Shared => self.is_shared(lock) && !self.is_restored(lock),
            LockMode::Update => {
                self.is_shared(lock) && !self.is_restored(lock) && !self.updates.contains_key(&lock)
            }
            LockMode::Upgrade => {
                let readers = self.readers.get(&lock).map_or(0, BTreeSet::len);
                self.updates.contains_key(&lock) && readers == 1
            }
            LockMode::Permits(_) => self.slots.free(lock) >= waiter.wanted.into(),
        }
    }

    fn is_shared(&self, lock: u8) -> bool {
        self.readers
            .get(&lock)
            .is_some_and(|readers| !readers.is_empty())
    }

    fn is_restored(&self, lock: u8) -> bool {
        let first = self.readers.get(&lock).and_then(BTreeSet::first);
        first.is_some_and(|first| *first < self.restored)
    }

    /// After each entry nobody waits who is first for all of its locks and could have them: no reader behind readers, no
    /// request for as many permits as are free, and nobody for locks that are free. While the disk is full, requests
    /// whose callers left are still there.
    fn nobody_waits_in_vain(&self, changed: u8, at: u64) -> Result<(), String> {
        let there = self.waiting.iter().enumerate();
        let mut there = there.filter(|(_, waiter)| waiter.orphan.is_none() && waiter.until > at);
        let vain = there.find(|(place, waiter)| {
            let seen = if waiter.locks == Locks::one(changed) {
                at
            } else {
                // The time of an orphan is over exactly where its lock is looked at, and elsewhere by a timer.
                at / TICK * TICK
            };
            let mut locks = waiter.locks.iter();
            !self.full
                && !self.gone.contains(&waiter.request)
                && locks.all(|lock| self.is_open(lock, waiter))
                && self.ahead(waiter.locks, *place, seen) == 0
        });
        match vain {
            Some((_, waiter)) => Err(format!(
                "request {} waits first for {:?}, which it could have (M2, S6, P6)",
                waiter.request, waiter.locks
            )),
            None => Ok(()),
        }
    }

    /// A wait ends with the lease that it is under, in one entry.
    fn nobody_outlives_its_lease(&self, at: u64) -> Result<(), String> {
        let outlives = |waiter: &&Waiter| {
            let lease = self.under.get(&waiter.request);
            !self.full
                && waiter.orphan.is_none()
                && waiter.until > at
                && !self.gone.contains(&waiter.request)
                && lease.is_some_and(|lease| !self.leases.contains_key(lease))
        };
        match self.waiting.iter().find(outlives) {
            Some(waiter) => Err(format!(
                "request {} waits for {:?} under a lease that has ended (A10)",
                waiter.request, waiter.locks
            )),
            None => Ok(()),
        }
    }

    fn lease_ended(&mut self, lease: u64) {
        if let Some(grants) = self.leases.get_mut(&lease) {
            *grants -= 1;
            if *grants == 0 {
                self.leases.remove(&lease);
                // No caller learns that an orphan waits.
                let under = &self.under;
                self.waiting.retain(|waiter| {
                    waiter.orphan.is_none() || under.get(&waiter.request) != Some(&lease)
                });
            }
        }
    }

    fn decided(
        &mut self,
        request: u32,
        who: Option<(Locks, u8)>,
        at: u64,
        token: Option<u64>,
        slots: u64,
    ) -> Result<(), String> {
        let waited = self.place(request);
        let Some(token) = token else {
            if let Some(place) = waited {
                self.waiting.remove(place);
            }
            return Ok(());
        };
        if self.granted.contains(&token) {
            // The answer to a repeated request.
            return Ok(());
        }
        let locks = match waited {
            Some(place) => self.waiting[place].locks,
            None => who.map(|(locks, _)| locks).unwrap_or_default(),
        };
        for lock in locks.iter().filter(|_| slots != 0) {
            // The previous holders of these slots ended with the same entry.
            self.slots.vacate(lock, slots);
            self.slots.granted(lock, token, slots);
        }
        let Some(place) = waited else {
            self.named(request, locks, slots);
            return self.at_once(who, at, token);
        };
        let waiter = self.waiting[place];
        // A set takes its client's own locks over, and passes those who wait for them.
        let own = |lock: &u8| {
            waiter.locks.are_several() && self.holders.get(lock) == Some(&waiter.client)
        };
        let others = locks.iter().filter(|lock| !own(lock));
        let others = others.fold(Locks::default(), Locks::with);
        for lock in locks.iter() {
            if waiter.mode == LockMode::Exclusive {
                self.holders.insert(lock, waiter.client);
            }
            self.free.remove(&lock);
            self.passed_on.insert(lock);
            if !waiter.mode.is_shared() {
                // The readers before it ended with this very entry.
                self.readers.remove(&lock);
            }
        }
        if who.is_some() && (self.gone.remove(&request) || waiter.is_lost(at)) {
            // It left or was lost, and returns as a new request.
            self.waiting.remove(place);
            self.named(request, locks, slots);
            return self.at_once(who, at, token);
        }
        let before = self.ahead(others, place, at)
            - self.upgrades_over(others, place, at)
            - self.orphans_over(others, place, at);
        self.waiting.remove(place);
        if waiter.orphan.is_some() && who.is_none() {
            return Err(format!(
                "token {token} went to request {request}, whose caller has not come back"
            ));
        }
        if self.gone.contains(&request) {
            return Err(format!(
                "token {token} went to request {request}, whose caller had left"
            ));
        }
        if before != 0 {
            return Err(format!(
                "token {token} went to request {request}, with {before} ahead of it"
            ));
        }
        if at > waiter.until {
            let late = (at - waiter.until) / 1_000_000;
            return Err(format!(
                "token {token} went to request {request} {late} ms after its wait was over"
            ));
        }
        Ok(())
    }

    /// Only the holder itself, taking its own lock over or upgrading its grant, may pass the queue.
    fn at_once(&mut self, who: Option<(Locks, u8)>, at: u64, token: u64) -> Result<(), String> {
        let Some((locks, client)) = who else {
            return Err(format!(
                "token {token} went to a request that no longer waited"
            ));
        };
        let is_own = |lock: &u8| {
            let updates = self.updates.get(lock).map(|(_, client)| client);
            self.holders.get(lock) == Some(&client) || updates == Some(&client)
        };
        let others: Vec<u8> = locks.iter().filter(|lock| !is_own(lock)).collect();
        let waiting: usize = others.iter().map(|lock| self.queue(*lock, at)).sum();
        let over = others.iter().map(|lock| {
            let lock = Locks::one(*lock);
            self.orphans_over(lock, usize::MAX, at)
        });
        if waiting == over.sum::<usize>() {
            return Ok(());
        }
        Err(format!(
            "token {token} went to client {client} at once, with {waiting} waiting"
        ))
    }

    /// How many wait for a lock and are still there, or may come back.
    fn queue(&self, lock: u8, at: u64) -> usize {
        self.ahead(Locks::one(lock), usize::MAX, at)
    }

    /// How many of the first `places` want one of these locks and are still there, or may come back.
    fn ahead(&self, locks: Locks, places: usize, at: u64) -> usize {
        let first = self.waiting.iter().take(places);
        first
            .filter(|waiter| waiter.locks.meets(locks))
            .filter(|waiter| !self.gone.contains(&waiter.request) && !waiter.is_lost(at))
            .count()
    }

    /// How many of the first `places` are upgrades that nobody came back for. They end with their grants, which nobody is
    /// told; whether the grant is over is seen with the rest of the entry.
    fn upgrades_over(&mut self, locks: Locks, places: usize, at: u64) -> usize {
        let first = self.waiting.iter().take(places);
        let over = first.filter(|waiter| {
            waiter.mode == LockMode::Upgrade
                && waiter.orphan.is_some()
                && waiter.locks.meets(locks)
                && !self.gone.contains(&waiter.request)
                && !waiter.is_lost(at)
        });
        let over: Vec<u8> = over.flat_map(|waiter| waiter.locks.iter()).collect();
        for lock in &over {
            if let Some((token, _)) = self.updates.get(lock) {
                self.upgrades_over.insert(*lock, *token);
            }
        }
        over.len()
    }

    /// How many of the first `places` are orphans under a lease. They end with it, which nobody is told.
    fn orphans_over(&mut self, locks: Locks, places: usize, at: u64) -> usize {
        let first = self.waiting.iter().take(places);
        let over = first.filter(|waiter| {
            waiter.mode != LockMode::Upgrade
                && waiter.orphan.is_some()
                && waiter.locks.meets(locks)
                && !self.gone.contains(&waiter.request)
                && !waiter.is_lost(at)
        });
        let over: Vec<u64> = over
            .filter_map(|waiter| self.under.get(&waiter.request).copied())
            .collect();
        self.orphans_over.extend(&over);
        over.len()
    }

    /// An orphan that was passed has lost the lease that it is under.
    fn orphans_are_over(&mut self) -> Result<(), String> {
        let over = std::mem::take(&mut self.orphans_over);
        match over.iter().find(|lease| self.leases.contains_key(lease)) {
            Some(lease) => Err(format!(
                "an orphan under lease {lease} was passed, and that lease is not over"
            )),
            None => Ok(()),
        }
    }

    /// An upgrade that was passed has lost the grant that it is for.
    fn upgrades_are_over(&mut self, lock: u8) -> Result<(), String> {
        let over = self.upgrades_over.remove(&lock);
        let lasts = self.updates.get(&lock).map(|(token, _)| *token);
        match over.filter(|over| lasts == Some(*over)) {
            Some(token) => Err(format!(
                "the upgrade of {token} was passed, and that grant is not over (S8)"
            )),
            None => Ok(()),
        }
    }

    /// All connections are gone, so all waits are over, or those of orphans.
    fn recovered(
        &mut self,
        at: u64,
        live: &[(u8, u64, u8)],
        closed: &[u8],
        permits: &[(u8, u8)],
        orphans: &[Orphan],
    ) {
        self.gone.clear();
        self.upgrades_over.clear();
        self.orphans_over.clear();
        self.full = false;
        let orphans = orphans.iter().map(|orphan| Waiter {
            request: orphan.request,
            client: orphan.client,
            locks: orphan.locks,
            until: orphan.until,
            mode: orphan.mode,
            wanted: orphan.wanted,
            orphan: Some(orphan.is_lost_at(at)),
        });
        // Upgrades first, the others in order of arrival.
        self.waiting = orphans.collect();
        self.waiting
            .sort_by_key(|waiter| waiter.mode != LockMode::Upgrade);
        let locks = self.waiting.iter().flat_map(|waiter| waiter.locks.iter());
        self.free = locks.collect();
        for lock in live.iter().map(|(lock, ..)| lock).chain(closed) {
            self.free.remove(lock);
        }
        self.slots.recovered(live, permits);
        self.holders.clear();
        self.readers.clear();
        self.updates.clear();
        for (lock, token, client) in live {
            if self.in_update.contains(token) {
                self.updates.insert(*lock, (*token, *client));
            }
            if self.shared.contains(token) {
                self.readers.entry(*lock).or_default().insert(*token);
            } else if !self.slots.has(*token) {
                self.holders.insert(*lock, *client);
            }
        }
    }
}

impl Waiter {
    /// Its caller did not come back in time.
    fn is_lost(&self, at: u64) -> bool {
        self.orphan.is_some_and(|until| until <= at)
    }
}

impl Check for Fifo {
    fn name(&self) -> &'static str {
        rule::FIFO
    }

    fn see(&mut self, _: u64, fact: &Fact) -> Result<(), String> {
        match fact {
            Fact::Queued {
                request,
                locks,
                client,
                at,
                wait,
                mode,
                wanted,
            } => {
                if *wait == 0 {
                    // It waited and is asked again without a wait: it leaves with this entry, and others may move up.
                    self.gone.remove(request);
                    self.waiting.retain(|waiter| waiter.request != *request);
                    return Ok(());
                }
                let waiter = Waiter {
                    request: *request,
                    client: *client,
                    locks: self.asked.get(request).copied().unwrap_or(*locks),
                    until: at.saturating_add(*wait),
                    mode: *mode,
                    wanted: *wanted,
                    orphan: None,
                };
                return self.queued(*client, *at, waiter);
            }
            Fact::Decided {
                request,
                who,
                at,
                token,
                slots,
                ..
            } => return self.decided(*request, *who, *at, *token, *slots),
            Fact::Published(turn) => {
                self.upgrades_are_over(turn.lock)?;
                self.orphans_are_over()?;
                self.nobody_outlives_its_lease(turn.at)?;
                return self.nobody_waits_in_vain(turn.lock, turn.at);
            }
            Fact::AcquireTaken {
                request: Some(request),
                locks,
                of,
                under,
                ..
            } => {
                match under.filter(|lease| self.leases.contains_key(lease)) {
                    Some(lease) => drop(self.under.insert(*request, lease)),
                    None => drop(self.under.remove(request)),
                }
                self.asked.insert(*request, *locks);
                self.of.insert(*request, *of);
            }
            Fact::Resized { lock, permits } => self.resized(*lock, *permits),
            Fact::Gone { request, .. } => {
                self.gone.insert(*request);
            }
            Fact::Orphaned { request, until } => {
                if let Some(place) = self.place(*request) {
                    self.waiting[place].orphan = Some(*until);
                }
            }
            Fact::DiskFull => self.full = true,
            Fact::Graced { .. } => self.full = false,
            Fact::Applied(turn) => {
                self.passed_on.clear();
                match turn.what {
                    ChangeKind::Granted(_) => {
                        *self.leases.entry(turn.lease).or_default() += 1;
                        self.lease_of.insert(turn.token, turn.lease);
                        self.granted.insert(turn.token);
                        self.free.remove(&turn.lock);
                        self.slots.granted(turn.lock, turn.token, turn.slots);
                        if turn.phase.is_some() {
                            self.shared.insert(turn.token);
                            self.in_update.remove(&turn.token);
                            if turn.update {
                                self.in_update.insert(turn.token);
                                self.updates.insert(turn.lock, (turn.token, turn.client));
                            }
                            self.readers
                                .entry(turn.lock)
                                .or_default()
                                .insert(turn.token);
                        } else {
                            // A crash may have undone a shared grant with this number.
                            self.shared.remove(&turn.token);
                            self.in_update.remove(&turn.token);
                            if turn.slots == 0 {
                                self.holders.insert(turn.lock, turn.client);
                            }
                        }
                    }
                    ChangeKind::Ended(_) => {
                        self.lease_ended(turn.lease);
                        self.slots.ended(turn.lock, turn.token);
                        let updates = self.updates.get(&turn.lock);
                        if updates.is_some_and(|(token, _)| *token == turn.token) {
                            self.updates.remove(&turn.lock);
                            let ended = Locks::one(turn.lock);
                            self.waiting.retain(|waiter| {
                                waiter.mode != LockMode::Upgrade || waiter.locks != ended
                            });
                        }
                        if self.shared.contains(&turn.token) {
                            let readers = self.readers.entry(turn.lock).or_default();
                            readers.remove(&turn.token);
                        } else {
                            self.holders.remove(&turn.lock);
                        }
                        if !self.is_shared(turn.lock) && turn.closed.is_none() {
                            self.free.insert(turn.lock);
                        }
                    }
                }
            }
            Fact::Recovered {
                at,
                live,
                closed,
                next,
                permits,
                orphans,
                restored,
                down: _,
            } => {
                if *restored {
                    let numbers = live.iter().map(|(_, number, _)| number + 1);
                    self.restored = numbers.max().unwrap_or(0).max(self.restored);
                }
                let orphans_wait =
                    |request: &u32| orphans.iter().any(|one| one.request == *request);
                self.under.retain(|request, _| orphans_wait(request));
                self.leases.clear();
                for (_, token, _) in live {
                    if let Some(lease) = self.lease_of.get(token) {
                        *self.leases.entry(*lease).or_default() += 1;
                    }
                }
                // Decisions that the crash lost are made again.
                self.granted.retain(|token| token < next);
                let closed: Vec<u8> = closed.iter().map(|(lock, ..)| *lock).collect();
                self.recovered(*at, live, &closed, permits, orphans);
            }
            _ => {}
        }
        Ok(())
    }
}
