//! Several locks at once (rules M1–M3): one request, one entry, one token, all or none.
//!
//! ```text
//!   sets: arrival ──► record in the queue of a ──► … of b ──► … of c        by name; the first one stands for all
//!                       a: kept     b: held     c: kept                     nothing is held while the set waits
//! ```
//!
//! A set that waits has one record in the queue of each of its locks, all with one arrival number. It is granted when each lock
//! is free with the set first in its queue, or held by the set's own client, which takes it over as it would on arrival. Until
//! then a lock that is free is *kept* while the set is first in its queue: it has no holder, and later requests wait behind the
//! set. Arrival numbers order all queues alike, so the oldest set is behind no other set, and there is no deadlock.
//!
//! A set that leaves without a grant may set other sets free. They are looked at one after the other
//! ([`Machine::wake_rest`]), so that a long chain takes no stack.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::Machine;
use super::grants::LeaseFor;
use super::record::{Closing, Contender, Owner, Waiter, WaiterRole};
use super::slab::{ClientSlot, LeaseSlot, LockSlot, SlotLink, WaiterSlot};
use super::tables::Tables;
use super::waiting::{at_once, without_ttl};
use crate::command::{Acquire, LockMode, Others};
use crate::id::Principal;
use crate::invalid::Invalid;
use crate::limits;
use crate::name::ClientId;
use crate::options::GrantOptions;
use crate::outcome::{Effect, Ending, Outcome, QueueBound};
use crate::time::{Span, Timestamp};
use crate::token::Token;

const _: () = assert!(limits::SET_LOCKS > 1);

impl Tables {
    /// All records of a request that waits, in the order of the locks' names.
    pub(crate) fn parts_of(&self, slot: WaiterSlot) -> Vec<WaiterSlot> {
        let waiter = &self.waiters[slot];
        match (waiter.role, self.sets.get(&waiter.arrival)) {
            (WaiterRole::Alone, _) => Vec::from([slot]),
            (_, Some(parts)) => parts.to_vec(),
            (_, None) => unreachable!("a record of a set belongs to none (M2)"),
        }
    }

    /// Whether nobody but its own client is in the way of a set, so that it is granted or refused.
    pub(crate) fn is_ready(&self, parts: &[WaiterSlot], now: Timestamp) -> bool {
        parts.iter().all(|part| self.is_open(*part, now))
    }

    /// Whether a part's lock is free and the part first in its queue, or the set's own client has it under a lease that is
    /// not over.
    fn is_open(&self, part: WaiterSlot, now: Timestamp) -> bool {
        let Waiter { lock, client, .. } = self.waiters[part];
        if self.is_exclusive(lock) {
            let lease = self.held_by_writer(lock).1;
            return lease.client == client && !lease.is_expired(now);
        }
        self.first_waiter(lock) == Some(part) && self.is_kept(lock) && self.closed(lock).is_none()
    }

    /// Notes a set that waits.
    pub(super) fn add_set(&mut self, arrival: u64, parts: Box<[WaiterSlot]>) {
        assert!(parts.len() > 1, "a set that waits has one lock");
        let client = self.waiters[parts[0]].client;
        self.sets_of.insert((client.slot(), arrival));
        let other = self.sets.insert(arrival, parts);
        assert!(other.is_none(), "two sets have one arrival");
    }

    /// Notes the sets of a client that got a lock, to be looked at: they may take it over. Grows with that client's own
    /// waiting sets alone.
    pub(super) fn note_sets_of(&mut self, client: ClientSlot) {
        let its = self.sets_of.range((client, 0)..=(client, u64::MAX));
        self.sets_to_try.extend(its.map(|(_, arrival)| *arrival));
    }

    /// Removes a set from its queues. Returns the record that stands for it, with its principal and client.
    fn dequeue_set(&mut self, first: WaiterSlot) -> (Principal, ClientId, Waiter) {
        let Waiter {
            arrival, client, ..
        } = self.waiters[first];
        let was_noted = self.sets_of.remove(&(client.slot(), arrival));
        assert!(was_noted, "a set waits, and its client does not");
        let parts = self.sets.remove(&arrival).unwrap_or_default();
        let Some((first, others)) = parts.split_first() else {
            unreachable!("a set that waits has no locks (M2)");
        };
        for part in others {
            self.dequeue(*part);
        }
        self.dequeue(*first)
    }
}

/// The state of a requested set's locks.
struct Survey {
    /// The first lock that somebody else has, or that is kept or closed.
    blocked: Option<LockSlot>,
    /// Locks without a record.
    free: usize,
    /// The first lock that the lease itself has,
    own: Option<LockSlot>,
    /// and whether it has all of them with that token.
    repeats: bool,
}

impl Machine {
    /// Checks a request for a set before its locks are looked up.
    pub(super) fn check_set(acquire: &Acquire) -> Result<(), Invalid> {
        acquire.check_set()?;
        if acquire.mode == LockMode::Exclusive && acquire.options.is_none() {
            Ok(())
        } else {
            Err(Invalid::SetMode)
        }
    }

    /// Grants all locks of a set, or none.
    pub(super) fn decide_set(&mut self, acquire: Acquire, effects: &mut Vec<Effect>) -> Outcome {
        for lock in acquire.locks() {
            self.stand(lock, effects);
        }
        let client = self.contender(&acquire.client);
        let lease = match self.lease_for(&acquire.lock, client, &acquire.under) {
            Ok(lease) => lease,
            Err(outcome) => return outcome,
        };
        // Bringing one lock up to date may have handed on another, so all are looked at once more. Nothing ends from here on.
        let survey = match self.survey(&acquire, lease) {
            Ok(survey) => survey,
            Err(invalid) => return Outcome::Invalid(invalid),
        };
        if let Some(own) = survey.own {
            return if survey.repeats {
                Outcome::Granted(self.granted(self.tables.grant_on(own), Span::ZERO))
            } else {
                Outcome::Invalid(Invalid::SetPartlyHeld {
                    lock: self.tables.locks[own].name.clone(),
                })
            };
        }
        match (survey.blocked, acquire.wait) {
            (None, _) => self.grant_set(acquire, lease, survey.free, effects),
            (Some(lock), None | Some(Span::ZERO)) => self.denial(LockMode::Exclusive, lock),
            (Some(lock), Some(wait)) => self.enqueue_set(lock, acquire, survey.free, wait),
        }
    }

    fn survey(&self, acquire: &Acquire, lease: LeaseFor) -> Result<Survey, Invalid> {
        let mine = match lease {
            LeaseFor::Live(lease) => Some(lease),
            LeaseFor::New { .. } => None,
        };
        let (mut blocked, mut free, mut own, mut held) = (None, 0, None, 0);
        let mut repeats = true;
        for name in acquire.locks() {
            let Some(lock) = self.tables.find_lock(name) else {
                free += 1;
                continue;
            };
            if let has @ Some(_) = self.tables.permits(lock) {
                return Err(Invalid::PermitsDiffer { asked: None, has });
            }
            let grant = self.tables.grant_on(lock);
            if !self.tables.is_exclusive(lock) {
                if let Some(share) = mine.and_then(|mine| self.tables.find_share(lock, mine)) {
                    return Err(self.other_mode(share));
                }
                blocked = blocked.or(Some(lock));
            } else if mine == Some(self.tables.writer(lock).lease()) {
                let first = *own.get_or_insert(lock);
                repeats &= self.tables.writer(first).token() == self.tables.writer(lock).token();
                held += 1;
            } else if !self.tables.is_of(grant, self.contender(&acquire.client)) {
                blocked = blocked.or(Some(lock));
            } else if self.tables.closing(lock) != Closing::NONE {
                return Err(Invalid::SetDelayed { lock: name.clone() });
            }
        }
        Ok(Survey {
            blocked,
            free,
            own,
            repeats: repeats && held == acquire.also.len() + 1,
        })
    }

    /// Grants a set of locks that are free, or that the same client has under another lease.
    fn grant_set(
        &mut self,
        acquire: Acquire,
        lease: LeaseFor,
        free: usize,
        effects: &mut Vec<Effect>,
    ) -> Outcome {
        if let Some(too_many) = self.too_many_locks(free) {
            return too_many;
        }
        let Some(token) = self.draw() else {
            return Outcome::TokensExhausted;
        };
        // Opened before another lease can end: the slot of a live lease must not be reused.
        let lease = self.open(token, lease, self.contender(&acquire.client));
        let mut first = None;
        for name in acquire.locks() {
            let lock = match self.tables.find_lock(name) {
                None => self.tables.open_lock(name.clone(), token, self.wall, lease),
                Some(lock) => {
                    self.end(
                        self.tables.grant_on(lock),
                        Ending::Superseded,
                        None,
                        effects,
                    );
                    self.tables.regrant(lock, token, self.wall, lease);
                    lock
                }
            };
            let metadata = acquire.metadata.clone();
            let granted =
                self.finish_grant(lock, metadata, GrantOptions::NONE, Span::ZERO, effects);
            first.get_or_insert(granted);
        }
        of_first_lock(first)
    }

    /// Whether this many more locks would be too many.
    pub(super) fn too_many_locks(&self, more: usize) -> Option<Outcome> {
        let max = self.limits.locks;
        let would_be = self.tables.locks.len() + more;
        (more > 0 && would_be > max as usize).then_some(Outcome::TooManyLocks { max })
    }

    /// Puts a set into the queues of all its locks. Those that are free are kept from now on.
    fn enqueue_set(
        &mut self,
        blocked: LockSlot,
        acquire: Acquire,
        free: usize,
        wait: Span,
    ) -> Outcome {
        let Some(request) = acquire.request else {
            return self.denial(LockMode::Exclusive, blocked);
        };
        let client = self.contender(&acquire.client);
        let bounds = &self.limits;
        let is_full = |name| {
            let lock = self.tables.find_lock(name);
            lock.map_or(0, |lock| self.tables.waiting(lock)) >= bounds.waiters_per_lock
        };
        if acquire.locks().any(|name| is_full(name)) {
            return Outcome::QueueFull(QueueBound::Lock {
                max: bounds.waiters_per_lock,
            });
        }
        let waiting = self.tables.waiting_of(client) as usize + acquire.also.len() + 1;
        if waiting > bounds.waiters_per_client as usize {
            return Outcome::QueueFull(QueueBound::Client {
                max: bounds.waiters_per_client,
            });
        }
        if let Some(too_many) = self.too_many_locks(free) {
            return too_many;
        }
        self.changed = true;
        self.arrivals += 1;
        let last = self.newest_token();
        let mut parts = Vec::with_capacity(acquire.also.len() + 1);
        for name in acquire.locks() {
            let lock = match self.tables.find_lock(name) {
                Some(lock) => lock,
                None => self.tables.add_lock(name.clone(), last, self.wall),
            };
            let (role, metadata) = if parts.is_empty() {
                (WaiterRole::First, acquire.metadata.clone())
            } else {
                (WaiterRole::Other, None)
            };
            let waiter = Waiter {
                request,
                lock,
                client: Owner::NONE,
                under: without_ttl(acquire.under),
                metadata,
                options: GrantOptions::NONE,
                since: self.now,
                deadline: self.now.after(wait),
                orphan: None,
                mode: LockMode::Exclusive,
                role,
                arrival: self.arrivals,
                prev: SlotLink::NONE,
                next: SlotLink::NONE,
            };
            let client = Contender {
                by: self.by,
                id: &acquire.client,
            };
            parts.push(self.tables.enqueue(client, waiter));
        }
        self.tables.add_set(self.arrivals, parts.into_boxed_slice());
        Outcome::Queued
    }

    /// The newest token drawn: no lock ever had a higher one.
    fn newest_token(&self) -> Token {
        let before = |next: Token| Token::new(next.get() - 1).unwrap_or(Token::FIRST);
        self.next_token.map_or(Token::MAX, before)
    }

    /// Whether a waiting request is for exactly these locks; its first lock is already known to be among them.
    pub(super) fn is_same_set(&self, slot: WaiterSlot, again: &Acquire) -> bool {
        if self.tables.waiters[slot].role == WaiterRole::Alone {
            return again.also.is_empty();
        }
        let parts = self.tables.parts_of(slot);
        let names = parts
            .iter()
            .map(|part| &self.tables.locks[self.tables.waiters[*part].lock].name);
        names.eq(again.locks())
    }

    /// The caller of a set is back, and the set's first record shows it already. Updates the other records, and looks at the
    /// set again.
    pub(super) fn rejoin_set(&mut self, slot: WaiterSlot, effects: &mut Vec<Effect>) {
        let Waiter { since, arrival, .. } = self.tables.waiters[slot];
        let parts = self.tables.parts_of(slot);
        for part in &parts {
            let waiter = &mut self.tables.waiters[*part];
            (waiter.since, waiter.orphan) = (since, None);
        }
        self.try_set(arrival, effects);
    }

    /// Looks at a set that waits, wherever it is in its queues.
    pub(super) fn try_set(&mut self, arrival: u64, effects: &mut Vec<Effect>) {
        let first = self.tables.sets.get(&arrival).map(|parts| parts[0]);
        let Some(first) = first.filter(|first| {
            let waiter = &self.tables.waiters[*first];
            waiter.orphan.is_none() && !waiter.is_over(self.now)
        }) else {
            return;
        };
        // No answer comes from this: its wait is not over.
        let last = self.denial(LockMode::Exclusive, self.tables.waiters[first].lock);
        self.wake_set(None, first, &last, effects);
        self.wake_rest(effects);
    }

    /// Grants a set, or sees that it is over or refused: `lock` is being handed on, and the set is first in its queue.
    /// Whether that queue is to be looked at again: if not, the set waits, or has the lock.
    pub(super) fn wake_set(
        &mut self,
        lock: Option<LockSlot>,
        part: WaiterSlot,
        last: &Outcome,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let parts = self.tables.parts_of(part);
        let first = parts[0];
        let waiter = &self.tables.waiters[first];
        let is_over = waiter.is_over(self.now) || self.tables.outlived_lease(first, self.now);
        if !is_over && (waiter.orphan.is_some() || !self.tables.is_ready(&parts, self.now)) {
            return false;
        }
        if waiter.orphan.is_some() {
            self.put_off(&parts, lock);
            self.tables.dequeue_set(first);
            (self.changed, self.ended) = (true, self.ended + 1);
            return true;
        }
        let locks: Vec<LockSlot> = parts
            .iter()
            .map(|part| self.tables.waiters[*part].lock)
            .collect();
        let lease = self.lease_of_set(first, last);
        let lease = lease.and_then(|lease| self.judge_own(first, &locks, lease));
        let (refused, lease) = match lease {
            Ok(lease) => (None, Some(lease)),
            Err(outcome) => (Some(outcome), None),
        };
        let drawn = lease.and_then(|lease| Some((lease, self.draw()?)));
        if drawn.is_none() {
            self.put_off(&parts, lock);
        }
        let (by, client, waiter) = self.tables.dequeue_set(first);
        let also = self.others_of(&locks);
        let outcome = match drawn {
            None => refused.unwrap_or(Outcome::TokensExhausted),
            Some((lease, token)) => {
                let lease = self.open(token, lease, Contender { by, id: &client });
                let waited = self.now.since(waiter.since);
                self.grant_all(&locks, token, lease, &waiter, waited, effects)
            }
        };
        self.settle(by, waiter.request, locks[0], also, outcome, effects);
        drawn.is_none()
    }

    /// The lease that a set's grants go under, if its turn has come in time.
    fn lease_of_set(&self, first: WaiterSlot, last: &Outcome) -> Result<LeaseFor, Outcome> {
        let waiter = &self.tables.waiters[first];
        if waiter.is_over(self.now) {
            return Err(at_once(last));
        }
        let client = &self.tables.clients[waiter.client.slot()];
        let client = Contender {
            by: client.by,
            id: &client.id,
        };
        let name = &self.tables.locks[waiter.lock].name;
        self.lease_for(name, client, &waiter.under)
    }

    /// Decides as on arrival about a set whose client has some of its locks. Locks under another lease are taken over, unless
    /// they have a delay after them. Locks under the set's own lease make it a repeat, or it is refused.
    fn judge_own(
        &self,
        first: WaiterSlot,
        locks: &[LockSlot],
        lease: LeaseFor,
    ) -> Result<LeaseFor, Outcome> {
        let mine = match lease {
            LeaseFor::Live(lease) => Some(lease),
            LeaseFor::New { .. } => None,
        };
        let (mut own, mut held, mut repeats) = (None, 0, true);
        for lock in locks.iter().filter(|lock| self.tables.is_exclusive(**lock)) {
            let writer = self.tables.writer(*lock);
            if Some(writer.lease()) == mine {
                let token = self.tables.writer(*own.get_or_insert(*lock)).token();
                repeats &= token == writer.token();
                held += 1;
            } else if self.tables.closing(*lock) != Closing::NONE {
                let lock = self.tables.locks[*lock].name.clone();
                return Err(Outcome::Invalid(Invalid::SetDelayed { lock }));
            }
        }
        let waited = self.now.since(self.tables.waiters[first].since);
        match own {
            None => Ok(lease),
            Some(own) if repeats && held == locks.len() => Err(Outcome::Granted(
                self.granted(self.tables.grant_on(own), waited),
            )),
            Some(own) => Err(Outcome::Invalid(Invalid::SetPartlyHeld {
                lock: self.tables.locks[own].name.clone(),
            })),
        }
    }

    fn grant_all(
        &mut self,
        locks: &[LockSlot],
        token: Token,
        lease: LeaseSlot,
        waiter: &Waiter,
        waited: Span,
        effects: &mut Vec<Effect>,
    ) -> Outcome {
        let mut first = None;
        for lock in locks {
            if self.tables.is_exclusive(*lock) {
                let grant = self.tables.grant_on(*lock);
                self.end(grant, Ending::Superseded, None, effects);
            }
            self.tables.regrant(*lock, token, self.wall, lease);
            let metadata = waiter.metadata.clone();
            let granted = self.finish_grant(*lock, metadata, GrantOptions::NONE, waited, effects);
            first.get_or_insert(granted);
        }
        of_first_lock(first)
    }

    /// Takes a set that is not granted out of its queues, with or without an answer, and hands its locks on.
    pub(super) fn leave_set(
        &mut self,
        slot: WaiterSlot,
        outcome: Option<Outcome>,
        effects: &mut Vec<Effect>,
    ) {
        let parts = self.tables.parts_of(slot);
        let locks: Vec<LockSlot> = parts
            .iter()
            .map(|part| self.tables.waiters[*part].lock)
            .collect();
        self.put_off(&parts, None);
        let (by, _, waiter) = self.tables.dequeue_set(slot);
        match outcome {
            Some(outcome) => {
                let also = self.others_of(&locks);
                self.settle(by, waiter.request, locks[0], also, outcome, effects);
            }
            None => (self.changed, self.ended) = (true, self.ended + 1),
        }
        self.wake_rest(effects);
    }

    /// The names of a set's locks except the first.
    fn others_of(&self, locks: &[LockSlot]) -> Others {
        let others = locks.iter().skip(1);
        others
            .map(|lock| self.tables.locks[*lock].name.clone())
            .collect()
    }

    /// Notes the locks that a set is about to leave, except the one that is being handed on.
    fn put_off(&mut self, parts: &[WaiterSlot], but: Option<LockSlot>) {
        for part in parts {
            let lock = self.tables.waiters[*part].lock;
            if Some(lock) == but
                || self.tables.is_exclusive(lock)
                || core::mem::replace(&mut self.tables.extra_mut(lock).to_wake, true)
            {
                continue;
            }
            let last = self.denial(LockMode::Exclusive, lock);
            self.to_wake.push_back((lock, last));
        }
    }

    /// Hands on the locks that sets have left: at most [`limits::SET_LOCKS`] for each set that ended. A lock in the list keeps
    /// its record: nothing else forgets it meanwhile.
    pub(super) fn wake_rest(&mut self, effects: &mut Vec<Effect>) {
        while let Some((lock, last)) = self.to_wake.pop_front() {
            self.tables.extra_mut(lock).to_wake = false;
            if !self.tables.is_exclusive(lock) {
                self.wake_one(lock, &last, effects);
            }
        }
    }

    /// A lock that keeps a request waiting; for a set, the first one that is not kept for the set itself.
    pub(super) fn blocking_lock(&self, slot: WaiterSlot) -> LockSlot {
        let waiter = &self.tables.waiters[slot];
        if waiter.role == WaiterRole::Alone {
            return waiter.lock;
        }
        let parts = self.tables.parts_of(slot);
        let blocks = |part: &&WaiterSlot| !self.tables.is_open(**part, self.now);
        let part = parts.iter().find(blocks).copied().unwrap_or(slot);
        self.tables.waiters[part].lock
    }
}

/// The outcome for a set is that of its first lock.
fn of_first_lock(first: Option<Outcome>) -> Outcome {
    match first {
        Some(outcome) => outcome,
        None => unreachable!("a set without locks is granted"),
    }
}
