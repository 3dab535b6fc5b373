//! Several locks at once (rules M1–M3): granted in one entry under one token, all or none.
//!
//! ```text
//!   queue of a:   … ── part ── …      one arrival number, one request, one deadline;
//!   queue of b:   … ── part ── …      the first part is found by the request id and has the timer
//!   sets:  arrival ──► [part, part]
//! ```
//!
//! A set that waits has a part in the queue of each of its locks and holds nothing. It is granted when each part is first in
//! its queue and nobody has any of the locks; until then a lock without a grant is *kept*. So an earlier set never waits
//! for a later one, and sets cannot wait for each other in a circle.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::Machine;
use super::delays::Closing;
use super::grants::{LeaseFor, reused};
use super::record::{Contender, Owner, Waiter};
use super::slab::{NIL, Slot};
use super::tables::Tables;
use crate::command::{Acquire, GrantRef, LockMode};
use crate::delays::Delays;
use crate::id::Principal;
use crate::invalid::Invalid;
use crate::limits;
use crate::name::{ClientId, LockName};
use crate::outcome::{Effect, Ending, Granted, Outcome, QueueBound};
use crate::time::{Span, WallTime};
use crate::token::Token;

/// What a lock is to a set that asks for it.
enum Part {
    /// Nobody has it, and nobody waits for it.
    Free,
    /// The same client holds it under another lease.
    Own(Slot),
    /// The same lease holds it.
    Mine(Slot),
    /// Somebody else holds it, or comes before.
    Blocked(Slot),
}

/// A set that has left its queues.
struct Left {
    by: Principal,
    client: ClientId,
    /// In the order of their locks' names.
    parts: Vec<Waiter>,
}

impl Tables {
    /// The parts of a set that waits, the first one first.
    pub(crate) fn parts_of(&self, part: &Waiter) -> &[Slot] {
        self.sets.get(&part.arrival).map_or(&[], |parts| parts)
    }

    /// Whether a waiting request has the timer and the request id: any but the further parts of a set.
    pub(crate) fn is_first_part(&self, slot: Slot, waiter: &Waiter) -> bool {
        !waiter.in_set || self.parts_of(waiter).first() == Some(&slot)
    }

    /// All sets that wait.
    pub(crate) fn sets(&self) -> impl Iterator<Item = &[Slot]> {
        self.sets.values().map(|parts| &**parts)
    }

    /// Appends each part of a set to the queue of its lock.
    pub(super) fn enqueue_set(&mut self, client: Contender<'_>, parts: Vec<Waiter>) {
        let Some((request, arrival, ends)) = parts
            .first()
            .map(|first| (first.request, first.arrival, first.ends()))
        else {
            return;
        };
        let slots: Box<[Slot]> = parts
            .into_iter()
            .map(|part| self.queue_up(client, part))
            .collect();
        self.find_by_request(request, slots[0]);
        self.wait_timers.insert(slots[0], ends);
        self.sets.insert(arrival, slots);
    }

    /// Takes all parts of a set out of their queues.
    fn dequeue_set(&mut self, arrival: u64) -> Option<Left> {
        let slots = self.sets.remove(&arrival)?;
        let (mut whose, mut parts) = (None, Vec::with_capacity(slots.len()));
        for slot in &slots {
            self.wait_timers.remove(*slot);
            let Some((by, client, part)) = self.leave_queue(*slot) else {
                continue;
            };
            if whose.is_none() {
                self.forget_request(part.request, *slot);
                whose = Some((by, client));
            }
            parts.push(part);
        }
        let (by, client) = whose?;
        Some(Left { by, client, parts })
    }

    /// Whether a set may be granted: each part is first in its queue, and nobody has any of the locks.
    pub(crate) fn is_ready(&self, parts: &[Slot]) -> bool {
        parts.iter().all(|part| {
            let lock = self.waiters[*part].lock;
            self.is_kept(lock)
                && self.closed(lock).is_none()
                && self.first_waiter(lock) == Some(*part)
        })
    }

    /// The grants that were made with this one: of the same lease, with the same token.
    fn granted_with(&self, grant: Slot) -> Vec<Slot> {
        let token = self.grant(grant).token();
        let mut grants = Vec::from([grant]);
        let before = core::iter::successors(Some(grant), |grant| self.before(*grant));
        let after = core::iter::successors(Some(grant), |grant| self.after(*grant));
        let same = |grant: &Slot| self.grant(*grant).token() == token;
        grants.extend(before.skip(1).take_while(same));
        grants.reverse();
        grants.extend(after.skip(1).take_while(same));
        grants
    }
}

impl Machine {
    /// What is wrong with a set before anything is known of its locks.
    #[cold]
    #[inline(never)]
    pub(super) fn check_set(acquire: &Acquire) -> Result<(), Invalid> {
        let locks = 1 + acquire.also.len();
        if locks > limits::SET_LOCKS {
            return Err(Invalid::SetTooLarge { locks });
        }
        let pairs = acquire.locks().zip(&acquire.also);
        if let Some((_, lock)) = { pairs }.find(|(before, lock)| before >= lock) {
            return Err(Invalid::SetOrder { lock: lock.clone() });
        }
        match acquire.mode == LockMode::Exclusive && acquire.delays.is_none() {
            true => Ok(()),
            false => Err(Invalid::SetOfShared),
        }
    }

    /// Grants all locks of a set, or none of them.
    #[cold]
    #[inline(never)]
    pub(super) fn decide_set(&mut self, acquire: Acquire, effects: &mut Vec<Effect>) -> Outcome {
        for lock in acquire.locks() {
            self.stand(lock, effects);
        }
        let lease = match self.lease_for(&acquire.lock, &acquire.client, &acquire.under, effects) {
            Ok(lease) => lease,
            Err(outcome) => return outcome,
        };
        let client = self.contender(&acquire.client);
        let parts = acquire.locks().map(|lock| self.part(lock, &lease, client));
        let parts: Vec<Part> = match parts.collect() {
            Ok(parts) => parts,
            Err(invalid) => return Outcome::Invalid(invalid),
        };
        if let Some(outcome) = self.held_already(&acquire, &parts) {
            return outcome;
        }
        let blocked = parts.iter().find_map(|part| match part {
            Part::Blocked(lock) => Some(*lock),
            _ => None,
        });
        if let Some(lock) = blocked {
            return match acquire.wait {
                None | Some(Span::ZERO) => self.denial(LockMode::Exclusive, lock),
                Some(wait) => self.enqueue_set(lock, acquire, wait),
            };
        }
        let free = parts.iter().filter(|part| matches!(part, Part::Free));
        if let Some(full) = self.no_room_for(free.count()) {
            return full;
        }
        let Some(token) = self.draw() else {
            return Outcome::TokensExhausted;
        };
        // Opened before a former lease can end: the slot of a live lease must not be reused.
        let lease = self.open(token, lease, self.contender(&acquire.client));
        let mut granted = None;
        for (name, part) in acquire.locks().zip(parts) {
            let lock = match part {
                Part::Own(lock) | Part::Mine(lock) | Part::Blocked(lock) => {
                    self.end(lock, Ending::Superseded, None, effects);
                    self.tables.regrant(lock, token, self.wall, lease);
                    lock
                }
                Part::Free => self.tables.open_lock(name.clone(), token, self.wall, lease),
            };
            let metadata = acquire.metadata.clone();
            let outcome = self.finish_grant(lock, metadata, Delays::NONE, Span::ZERO, effects);
            granted.get_or_insert(outcome);
        }
        granted.unwrap_or(Outcome::NotHeld)
    }

    fn part(
        &self,
        name: &LockName,
        lease: &LeaseFor,
        client: Contender<'_>,
    ) -> Result<Part, Invalid> {
        let Some(lock) = self.tables.find_lock(name) else {
            return Ok(Part::Free);
        };
        self.check_kind(lock, LockMode::Exclusive)?;
        if !self.tables.is_exclusive(lock) {
            return match lease {
                LeaseFor::Live(mine) if self.tables.find_share(lock, *mine).is_some() => {
                    Err(Invalid::Upgrade)
                }
                _ => Ok(Part::Blocked(lock)),
            };
        }
        let grant = self.tables.grant_on(lock);
        let holder = self.tables.writer(lock).lease();
        if matches!(lease, LeaseFor::Live(mine) if *mine == holder) {
            return Ok(Part::Mine(lock));
        }
        if !self.tables.is_of(grant, client) {
            return Ok(Part::Blocked(lock));
        }
        match self.tables.closing(lock) == Closing::NONE {
            true => Ok(Part::Own(lock)),
            false => Err(Invalid::SetOfShared),
        }
    }

    /// A lease that has all of the set by one grant repeats it; one that has a part of it is refused.
    fn held_already(&self, acquire: &Acquire, parts: &[Part]) -> Option<Outcome> {
        let mine: Vec<Slot> = parts
            .iter()
            .filter_map(|part| match part {
                Part::Mine(lock) => Some(*lock),
                _ => None,
            })
            .collect();
        let first = *mine.first()?;
        let token = self.tables.writer(first).token();
        let is_repeat = mine.len() == parts.len()
            && mine
                .iter()
                .all(|lock| self.tables.writer(*lock).token() == token)
            && self.tables.granted_with(first).len() == mine.len();
        Some(match is_repeat {
            true => Outcome::Granted(self.granted(self.tables.grant_on(first), Span::ZERO)),
            false => Outcome::Invalid(Invalid::SetHeld {
                lock: acquire
                    .locks()
                    .find(|name| self.tables.find_lock(name) == Some(first))
                    .unwrap_or(&acquire.lock)
                    .clone(),
            }),
        })
    }

    fn no_room_for(&self, locks: usize) -> Option<Outcome> {
        let max = self.limits.locks;
        (self.tables.locks.len() + locks > max as usize).then_some(Outcome::TooManyLocks { max })
    }

    /// Puts a set into the queues of all its locks. One that is free gets a record, and is kept from now on.
    fn enqueue_set(&mut self, blocked: Slot, acquire: Acquire, wait: Span) -> Outcome {
        let Some(request) = acquire.request else {
            return self.denial(LockMode::Exclusive, blocked);
        };
        let locks: Vec<(&LockName, Option<Slot>)> = acquire
            .locks()
            .map(|name| (name, self.tables.find_lock(name)))
            .collect();
        let client = self.contender(&acquire.client);
        let waiting = self.tables.waiting_of(client) as usize + locks.len();
        if waiting > self.limits.waiters_per_client as usize {
            let max = self.limits.waiters_per_client;
            return Outcome::QueueFull(QueueBound::Client { max });
        }
        let max = self.limits.waiters_per_lock;
        let mut known = locks.iter().filter_map(|(_, lock)| *lock);
        if max == 0 || known.any(|lock| self.tables.waiting(lock) >= max) {
            return Outcome::QueueFull(QueueBound::Lock { max });
        }
        let free = locks.iter().filter(|(_, lock)| lock.is_none());
        if let Some(full) = self.no_room_for(free.count()) {
            return full;
        }
        self.changed = true;
        self.arrivals += 1;
        let newest = self.newest_token();
        let mut parts = Vec::with_capacity(locks.len());
        for (name, lock) in locks {
            let lock = lock.unwrap_or_else(|| {
                self.tables
                    .add_lock(name.clone(), newest, WallTime::default())
            });
            parts.push(Waiter {
                request,
                lock,
                client: Owner::NONE,
                under: super::waiting::without_ttl(acquire.under),
                metadata: acquire.metadata.clone().filter(|_| parts.is_empty()),
                delays: Delays::NONE,
                since: self.now,
                deadline: self.now.after(wait),
                orphan: None,
                mode: LockMode::Exclusive,
                in_set: true,
                arrival: self.arrivals,
                prev: NIL,
                next: NIL,
            });
        }
        let client = Contender {
            by: self.by,
            id: &acquire.client,
        };
        self.tables.enqueue_set(client, parts);
        Outcome::Queued
    }

    /// The newest token that was drawn: no former grant of any lock has a higher one.
    fn newest_token(&self) -> Token {
        let newest = self.next_token.map(|next| Token::new(next.get() - 1));
        newest.map_or(Token::MAX, |newest| newest.unwrap_or(Token::FIRST))
    }

    /// Grants the set whose part is first in a queue, if it may be. A wait that is over ends by its timer. Says whether the
    /// queue is to be looked at again: the set is gone, because its lease is, or no token is left.
    #[cold]
    #[inline(never)]
    pub(super) fn wake_set(
        &mut self,
        first: Slot,
        woken: &mut Vec<(Slot, Outcome)>,
        effects: &mut Vec<Effect>,
    ) -> bool {
        let waiter = &self.tables.waiters[first];
        let arrival = waiter.arrival;
        if waiter.orphan.is_some()
            || waiter.ends() <= self.now
            || !self.tables.is_ready(self.tables.parts_of(waiter))
        {
            return false;
        }
        let behind = self.behind(first);
        let Some(Left { by, client, parts }) = self.tables.dequeue_set(arrival) else {
            return false;
        };
        let Some(first) = parts.first() else {
            return false;
        };
        let outcome = self.grant_set(Contender { by, id: &client }, &parts, effects);
        let granted = matches!(outcome, Outcome::Granted(_));
        self.settle(by, first.request, first.lock, outcome, effects);
        if !granted {
            woken.extend(behind);
        }
        !granted
    }

    fn grant_set(
        &mut self,
        client: Contender<'_>,
        parts: &[Waiter],
        effects: &mut Vec<Effect>,
    ) -> Outcome {
        let Some(first) = parts.first() else {
            return Outcome::NotHeld;
        };
        let name = &self.tables.locks[first.lock].name;
        let lease = match self.peek_lease(name, client, &first.under) {
            Ok(lease) => lease,
            Err(outcome) => return outcome,
        };
        let Some(token) = self.draw() else {
            return Outcome::TokensExhausted;
        };
        let lease = self.open(token, lease, client);
        let waited = self.now.since(first.since);
        let mut granted = None;
        for part in parts {
            self.tables.regrant(part.lock, token, self.wall, lease);
            let metadata = first.metadata.clone();
            let outcome = self.finish_grant(part.lock, metadata, Delays::NONE, waited, effects);
            granted.get_or_insert(outcome);
        }
        granted.unwrap_or(Outcome::NotHeld)
    }

    /// The locks of a waiting set that nobody holds exclusively, and what a request there is told now.
    fn behind(&self, part: Slot) -> Vec<(Slot, Outcome)> {
        let parts = self.tables.parts_of(&self.tables.waiters[part]).iter();
        let locks = parts.map(|part| self.tables.waiters[*part].lock);
        locks
            .filter(|lock| !self.tables.is_exclusive(*lock))
            .map(|lock| (lock, self.denial(LockMode::Exclusive, lock)))
            .collect()
    }

    /// As [`Machine::leave`], for a set: all parts leave, and each of its locks goes to who is next.
    #[cold]
    #[inline(never)]
    pub(super) fn leave_set(
        &mut self,
        part: Slot,
        outcome: Option<Outcome>,
        effects: &mut Vec<Effect>,
    ) {
        let behind = self.behind(part);
        let arrival = self.tables.waiters[part].arrival;
        let Some(Left { by, parts, .. }) = self.tables.dequeue_set(arrival) else {
            return;
        };
        match (outcome, parts.first()) {
            (Some(outcome), Some(first)) => {
                self.settle(by, first.request, first.lock, outcome, effects);
            }
            _ => (self.changed, self.ended) = (true, self.ended + 1),
        }
        self.wake_all(behind, effects);
    }

    /// Drops a set without an answer and without a look at who is behind it.
    pub(super) fn forget_set(&mut self, part: Slot) {
        let arrival = self.tables.waiters[part].arrival;
        self.tables.dequeue_set(arrival);
    }

    /// Ends the sets ahead of a lock's queue whose waits are over by this very instant, whatever the timers have seen.
    pub(super) fn end_sets_ahead(&mut self, name: &LockName, effects: &mut Vec<Effect>) {
        while let Some(lock) = self.tables.find_lock(name)
            && let Some(first) = self.tables.first_waiter(lock)
            && self.tables.waiters[first].in_set
            && self.tables.waiters[first].ends() <= self.now
        {
            self.time_out(first, effects);
        }
    }

    /// The lock that keeps a waiting set waiting: not one that is kept for the set itself.
    pub(super) fn in_the_way_of_set(&self, part: Slot) -> Slot {
        let waiter = &self.tables.waiters[part];
        let blocks = |part: &&Slot| !self.tables.is_ready(core::slice::from_ref(*part));
        let parts = self.tables.parts_of(waiter);
        parts
            .iter()
            .find(blocks)
            .map_or(waiter.lock, |part| self.tables.waiters[*part].lock)
    }

    /// Whether a request that waits is for just these locks.
    pub(super) fn waits_for(&self, waiter: &Waiter, again: &Acquire) -> bool {
        if !waiter.in_set {
            return again.also.is_empty() && self.tables.locks[waiter.lock].name == again.lock;
        }
        let parts = self.tables.parts_of(waiter).iter();
        parts
            .map(|part| &self.tables.locks[self.tables.waiters[*part].lock].name)
            .eq(again.locks())
    }

    /// Calls a waiting request, with all its parts, the caller's again.
    pub(super) fn come_back(&mut self, slot: Slot) {
        let waiter = &self.tables.waiters[slot];
        let parts = match waiter.in_set {
            true => Vec::from(self.tables.parts_of(waiter)),
            false => Vec::from([slot]),
        };
        for part in parts {
            let waiter = &mut self.tables.waiters[part];
            (waiter.since, waiter.orphan) = (self.now, None);
        }
    }

    /// The answer to a request for several locks, or that was one, whose grant is remembered.
    #[cold]
    #[inline(never)]
    pub(super) fn set_again(
        &mut self,
        first: &Granted,
        again: &Acquire,
        effects: &mut Vec<Effect>,
    ) -> Outcome {
        let named = |lock: &LockName| GrantRef {
            lock: lock.clone(),
            key: first.key,
            token: Some(first.number()),
        };
        let mut answer = None;
        for lock in again.locks() {
            match self.still_granted(&named(lock), &again.client, effects) {
                granted @ Outcome::Granted(_) => {
                    answer.get_or_insert(granted);
                }
                Outcome::NotHeld if !again.also.is_empty() => return reused(),
                other => return other,
            }
        }
        if let Some(live) = self.live_grant(&named(&again.lock)) {
            let others = self.tables.granted_with(live).into_iter();
            let names = others.map(|grant| &self.tables.locks[self.tables.lock_of(grant)].name);
            if { names }.any(|name| !again.locks().any(|asked| asked == name)) {
                return reused();
            }
        }
        answer.unwrap_or(Outcome::NotHeld)
    }

    /// Gives back everything that was granted with this grant.
    pub(super) fn release_all_with(&mut self, grant: Slot, effects: &mut Vec<Effect>) {
        for grant in self.tables.granted_with(grant) {
            if !super::share::is_share(grant) {
                self.tables.forget_reservation(grant);
            }
            self.end_and_wake(grant, Ending::Released, None, effects);
        }
    }
}
