//! The queues of waiting requests: which one is next, and which ones are no longer there.

use alloc::vec::Vec;

use super::Machine;
use super::grants::{LeaseFor, NextGrant, reused};
use super::record::{Contender, Owner, Waiter, WaiterRole};
use super::slab::{LockSlot, SlotLink, WaiterSlot};
use super::wheel::is_due;
use crate::command::{Acquire, GrantRef, LockMode, Others, Under};
use crate::id::{Principal, RequestId};
use crate::limits;
use crate::outcome::{Ahead, Effect, Ending, Holder, Outcome, QueueBound};
use crate::time::{Span, Timestamp};

impl Machine {
    pub(super) fn enqueue(&mut self, lock: LockSlot, acquire: Acquire, wait: Span) -> Outcome {
        // Only a request with an id may wait: without one, its caller could never be given the answer.
        let Some(request) = acquire.request else {
            return self.denial(acquire.mode, lock);
        };
        if let Some(bound) = self.queue_bound(lock, self.contender(&acquire.client)) {
            return Outcome::QueueFull(bound);
        }
        self.changed = true;
        self.arrivals += 1;
        let waiter = Waiter {
            request,
            lock,
            client: Owner::NONE,
            under: without_ttl(acquire.under),
            metadata: acquire.metadata,
            options: acquire.options,
            since: self.now,
            deadline: self.now.after(wait),
            orphan: None,
            mode: acquire.mode,
            role: WaiterRole::Alone,
            arrival: self.arrivals,
            prev: SlotLink::NONE,
            next: SlotLink::NONE,
        };
        self.tables.enqueue(self.contender(&acquire.client), waiter);
        Outcome::Queued
    }

    /// Another attempt of a request that waits keeps its place and its deadline. `None`: it was an orphan, and its
    /// place is lost by this very instant.
    ///
    /// The holder will count from when it sent the attempt that is answered, so the wait counts from the latest attempt:
    /// the time before it must not become part of the grant's time.
    pub(super) fn rejoin(
        &mut self,
        slot: WaiterSlot,
        again: &Acquire,
        effects: &mut Vec<Effect>,
    ) -> Option<Outcome> {
        let Waiter {
            lock, client, mode, ..
        } = self.tables.waiters[slot];
        let asked = (
            &self.tables.locks[lock].name,
            &self.tables.clients[client.slot()].id,
            mode,
        );
        if asked != (&again.lock, &again.client, again.mode) || !self.is_same_set(slot, again) {
            return Some(reused());
        }
        let now = self.now;
        let waiter = &mut self.tables.waiters[slot];
        if waiter.orphan.is_some_and(|until| until <= now) {
            self.leave(slot, None, effects);
            return None;
        }
        // The timer finds out later that the end has moved from the window's to the wait's.
        (waiter.since, waiter.orphan) = (now, None);
        let request = waiter.request;
        self.changed = true;
        let before = effects.len();
        if self.tables.waiters[slot].role != WaiterRole::Alone {
            self.rejoin_set(slot, effects);
        } else if self.tables.first_waiter(lock) == Some(slot) && !self.tables.is_exclusive(lock) {
            // The lock waited for this very request, if no reader is in its way.
            self.wake(lock, &self.denial(LockMode::Exclusive, lock), effects);
        }
        Some(self.own_answer(request, before, effects))
    }

    /// The answer to a request if it was settled behind the first `before` effects; its caller is there and gets the
    /// answer directly.
    pub(super) fn own_answer(
        &self,
        request: RequestId,
        before: usize,
        effects: &mut Vec<Effect>,
    ) -> Outcome {
        let caller = self.by;
        let is_its = |effect: &Effect| matches!(effect, Effect::Settled { by, request: its, .. } if (*by, *its) == (caller, request));
        let its = effects[before..].iter().rposition(is_its);
        match its.map(|at| effects.remove(before + at)) {
            Some(Effect::Settled { outcome, .. }) => outcome,
            Some(Effect::Event(_)) => unreachable!("an answer was found, and an event is there"),
            None => Outcome::Queued,
        }
    }

    fn queue_bound(&self, lock: LockSlot, client: Contender<'_>) -> Option<QueueBound> {
        let limits = &self.limits;
        if self.tables.waiting(lock) >= limits.waiters_per_lock {
            return Some(QueueBound::Lock {
                max: limits.waiters_per_lock,
            });
        }
        if self.tables.waiting_of(client) >= limits.waiters_per_client {
            return Some(QueueBound::Client {
                max: limits.waiters_per_client,
            });
        }
        None
    }

    /// Gives a lock that no writer holds to the first waiter that is still there (rule A10), keeps it if that one is an
    /// orphan, or forgets the lock. After a reader come those right behind it, and they join a phase that goes on (S6).
    /// A lock that is closed stays so until its instant. `last` is the answer to the request just before. The cost grows
    /// with the requests that it grants or ends.
    pub(super) fn wake(&mut self, lock: LockSlot, last: &Outcome, effects: &mut Vec<Effect>) {
        self.wake_one(lock, last, effects);
        if !self.to_wake.is_empty() {
            self.wake_rest(effects);
        }
    }

    /// As [`Machine::wake`], but leaves the locks that sets left for [`Machine::wake_rest`].
    pub(super) fn wake_one(&mut self, lock: LockSlot, last: &Outcome, effects: &mut Vec<Effect>) {
        match self.tables.closed(lock) {
            Some(until) if until > self.now => return,
            Some(_) => {
                self.tables.open_again(lock);
                (self.changed, self.ended) = (true, self.ended + 1);
            }
            None => {}
        }
        while let Some(first) = self.tables.first_waiter(lock) {
            let Waiter {
                orphan, mode, role, ..
            } = self.tables.waiters[first];
            if role != WaiterRole::Alone {
                if self.wake_set(Some(lock), first, last, effects) {
                    continue;
                } else {
                    return;
                }
            }
            // An upgrade ends with the grant that it is for.
            let is_over = self.tables.waiters[first].is_over(self.now)
                || (mode == LockMode::Upgrade && self.tables.update_on(lock).is_none());
            let has_to_wait = self.tables.is_shared(lock) && self.is_in_the_way(lock, mode);
            if !is_over
                && (orphan.is_some() || has_to_wait)
                && !self.tables.outlived_lease(first, self.now)
            {
                return;
            }
            let (by, client, waiter) = self.tables.dequeue(first);
            if orphan.is_some() {
                (self.changed, self.ended) = (true, self.ended + 1);
                continue;
            }
            let client = Contender { by, id: &client };
            let outcome = self.next_or_gone(lock, last, client, &waiter, effects);
            let granted = matches!(outcome, Outcome::Granted(_));
            self.settle(by, waiter.request, lock, Others::NONE, outcome, effects);
            if granted && mode.is_exclusive() {
                return;
            }
        }
        if self.tables.is_kept(lock) {
            self.tables.close_lock(lock);
        }
    }

    /// Whether the holders of a lock that is not held exclusively keep the first request of its queue waiting.
    pub(super) fn is_in_the_way(&self, lock: LockSlot, mode: LockMode) -> bool {
        match mode {
            LockMode::Exclusive => true,
            LockMode::Shared => self.is_restored(lock),
            LockMode::Update => self.is_restored(lock) || self.tables.update_on(lock).is_some(),
            LockMode::Upgrade => self.tables.upgrade_has_to_wait(lock),
            LockMode::Permits(permits) => self.tables.free_permits(lock) < permits.wanted(),
        }
    }

    fn next_or_gone(
        &mut self,
        lock: LockSlot,
        last: &Outcome,
        client: Contender<'_>,
        waiter: &Waiter,
        effects: &mut Vec<Effect>,
    ) -> Outcome {
        if waiter.is_over(self.now) {
            return at_once(last);
        }
        let name = &self.tables.locks[lock].name;
        let lease = match self.lease_for(name, client, &waiter.under) {
            Ok(lease) => lease,
            Err(outcome) => return outcome,
        };
        let (mode, metadata, since) = (waiter.mode, waiter.metadata.clone(), waiter.since);
        let options = waiter.options;
        if mode == LockMode::Upgrade {
            return self.upgrade_waiter(lock, lease, metadata, self.now.since(since), effects);
        }
        if let LeaseFor::Live(lease) = lease
            && let Some(share) = self.tables.find_share(lock, lease)
        {
            // Another request of its lease was before it.
            return self.held_already(share, mode, self.now.since(since));
        }
        self.grant_waiter(
            lock,
            client,
            NextGrant {
                lease,
                mode,
                metadata,
                options,
                since,
            },
            effects,
        )
    }

    /// A wait that lasted as long as its caller wanted, or the window of an orphan: its request is forgotten, so that
    /// a repeat begins anew.
    pub(super) fn time_out(&mut self, slot: WaiterSlot, effects: &mut Vec<Effect>) {
        let Waiter { orphan, .. } = self.tables.waiters[slot];
        let lock = self.blocking_lock(slot);
        let outcome = orphan
            .is_none()
            .then(|| self.denial(LockMode::Exclusive, lock));
        self.leave(slot, outcome, effects);
    }

    /// Finishes the work that grants and ended leases left, in the order of arrival. A request whose lease ended leaves
    /// its queue; a set may take over its own client's locks. Returns whether there was anything, and costs nothing if
    /// not.
    #[inline]
    pub(super) fn settle_rest(&mut self, effects: &mut Vec<Effect>) -> bool {
        let left = !self.tables.bereaved.is_empty() || !self.tables.sets_to_try.is_empty();
        if left {
            self.settle_each(effects);
        }
        left
    }

    // The figure is in `shared.rs`.
    #[cold]
    #[inline(never)]
    fn settle_each(&mut self, effects: &mut Vec<Effect>) {
        loop {
            if let Some((_, slot)) = self.tables.bereaved.pop_first() {
                self.end_wait_of_ended_lease(slot, effects);
            } else if let Some(arrival) = self.tables.sets_to_try.pop_first() {
                self.try_set(arrival, effects);
            } else {
                return;
            }
        }
    }

    fn end_wait_of_ended_lease(&mut self, slot: WaiterSlot, effects: &mut Vec<Effect>) {
        let Waiter {
            under,
            lock,
            orphan,
            ..
        } = self.tables.waiters[slot];
        let (Under::New { key, .. } | Under::Existing { key, .. }) = under;
        if self.tables.find_lease(&key).is_some() {
            // Another lease got the same key meanwhile.
            return self.tables.tie_wait(slot);
        }
        let name = &self.tables.locks[lock].name;
        let outcome = orphan.is_none().then(|| self.past_lease(&key, name));
        self.leave(slot, outcome, effects);
    }

    /// Takes a request that is not granted out of its queue, with or without an answer. If the lock was kept for it, or
    /// if it kept readers waiting behind readers, the next one is looked at.
    pub(super) fn leave(
        &mut self,
        slot: WaiterSlot,
        outcome: Option<Outcome>,
        effects: &mut Vec<Effect>,
    ) {
        let Waiter {
            lock,
            request,
            client,
            role,
            ..
        } = self.tables.waiters[slot];
        if role != WaiterRole::Alone {
            return self.leave_set(slot, outcome, effects);
        }
        let by = self.tables.principal_of(client);
        let open = !self.tables.is_exclusive(lock);
        let ahead = open.then(|| self.denial(LockMode::Exclusive, lock));
        self.tables.dequeue(slot);
        match outcome {
            Some(outcome) => self.settle(by, request, lock, Others::NONE, outcome, effects),
            None => (self.changed, self.ended) = (true, self.ended + 1),
        }
        if let Some(ahead) = ahead {
            self.wake(lock, &ahead, effects);
        }
    }

    /// Returns whoever blocks a writer: the holder; else the oldest reader that is not itself upgrading; else the orphan
    /// or set that the lock is reserved for, which holds nothing.
    pub(super) fn ahead_on(&self, lock: LockSlot) -> Outcome {
        if let Some(oldest) = self.tables.oldest_reader(lock) {
            let other = if self.tables.upgrade_waits(lock) {
                self.tables.ahead_of_upgrade(lock)
            } else {
                None
            };
            let reader = other.unwrap_or(oldest);
            return Outcome::Held(self.holder_by(reader.grant()));
        }
        let first = self.tables.first_waiter(lock);
        match first.filter(|_| self.tables.is_kept(lock)) {
            None => Outcome::Held(self.holder_by(self.tables.grant_on(lock))),
            Some(first) => {
                let remaining = self.tables.waiters[first].ends().since(self.now);
                self.behind(first, remaining)
            }
        }
    }

    pub(super) fn behind(&self, waiter: WaiterSlot, remaining: Span) -> Outcome {
        let client = self.tables.waiters[waiter].client.slot();
        Outcome::Behind(Ahead {
            client: self.tables.clients[client].id.clone(),
            remaining,
        })
    }

    pub(super) fn settle(
        &mut self,
        by: Principal,
        request: RequestId,
        lock: LockSlot,
        also: Others,
        outcome: Outcome,
        effects: &mut Vec<Effect>,
    ) {
        self.changed = true;
        self.ended += 1;
        // A request refused for its form may come again in a better one.
        if !matches!(
            outcome,
            Outcome::Invalid(_) | Outcome::WrongPrincipal { .. }
        ) {
            let name = self.tables.locks[lock].name.clone();
            self.remember(by, request, Some(name), also, outcome.clone());
        }
        effects.push(Effect::Settled {
            by,
            request,
            outcome,
        });
    }

    /// The waiting request's connection is gone.
    pub(super) fn withdraw(&mut self, request: &RequestId, effects: &mut Vec<Effect>) -> Outcome {
        if let Some(slot) = self.tables.find_waiter(self.by, request) {
            self.leave(slot, None, effects);
        }
        Outcome::Done
    }

    /// The caller of a waiting request may come back by another way.
    pub(super) fn orphan(&mut self, request: &RequestId) -> Outcome {
        if let Some(slot) = self.tables.find_waiter(self.by, request)
            && self.tables.waiters[slot].orphan.is_none()
        {
            self.changed = true;
            for part in self.tables.parts_of(slot) {
                self.keep_place(part);
            }
        }
        Outcome::Done
    }

    /// Makes a waiting request, or one record of a set, an orphan.
    fn keep_place(&mut self, slot: WaiterSlot) {
        let waiter = &mut self.tables.waiters[slot];
        let until = self.now.after(limits::ORPHAN_WINDOW).min(waiter.deadline);
        waiter.orphan = Some(until);
        if waiter.role != WaiterRole::Other {
            self.tables.wait_timers.remove(slot);
            self.tables.wait_timers.insert(slot, until);
        }
    }

    /// The caller gave the request up: it is taken from the queue, its grant is given back, and if it
    /// arrives later it is refused.
    pub(super) fn abandon(&mut self, request: RequestId, effects: &mut Vec<Effect>) -> Outcome {
        if let Some(slot) = self.tables.find_waiter(self.by, &request) {
            self.leave(slot, Some(Outcome::Abandoned), effects);
            return Outcome::Done;
        }
        let known = self.answers.get(&self.asked(request)).cloned();
        let (lock, also, outcome) = known.map_or((None, Others::NONE, None), |known| {
            (known.lock, known.also, Some(known.outcome))
        });
        if let Some(Outcome::Granted(granted)) = outcome {
            for lock in lock.iter().chain(&*also) {
                let grant = GrantRef {
                    lock: lock.clone(),
                    key: granted.key,
                    token: Some(granted.number()),
                };
                let Some(live) = self.live_grant(&grant) else {
                    continue;
                };
                if let Some(lock) = live.lock() {
                    self.tables.forget_reservation(lock);
                }
                self.end_and_wake(live, Ending::Released, None, effects);
            }
        }
        self.remember(self.by, request, lock, also, Outcome::Abandoned);
        Outcome::Done
    }

    /// After a restart no connected caller is there to be answered.
    pub(super) fn forget_waiters(&mut self) {
        let slots: Vec<WaiterSlot> = self.tables.waiters.iter().map(|(slot, _)| slot).collect();
        for slot in slots {
            self.tables.dequeue(slot);
        }
        self.tables.sets.clear();
        self.tables.sets_of.clear();
        let kept: Vec<LockSlot> = self.tables.kept_locks().map(|(slot, _)| slot).collect();
        for slot in kept {
            if self.tables.closed(slot).is_none() {
                self.tables.close_lock(slot);
            }
        }
    }

    /// Another node leads. No caller has found it yet, and each may come back, so waiting requests become orphans. Waits
    /// that were due by the entry `before` this one are over, even if they are still in line.
    pub(super) fn orphan_waiters(&mut self, before: Timestamp) {
        let waiters = self.tables.waiters.iter();
        let waiting = waiters.filter(|(_, waiter)| !is_due(waiter.ends(), before));
        let slots: Vec<WaiterSlot> = waiting.map(|(slot, _)| slot).collect();
        for slot in slots {
            self.keep_place(slot);
        }
    }
}

/// The answer for a request that comes too late: `last`, with no time remaining.
pub(super) fn at_once(last: &Outcome) -> Outcome {
    let mut outcome = last.clone();
    // A closed lock is handed on when its time is over, so there is nothing left of that anyway.
    if let Outcome::Held(Holder { remaining, .. }) | Outcome::Behind(Ahead { remaining, .. }) =
        &mut outcome
    {
        *remaining = Span::ZERO;
    }
    outcome
}

/// The lease's time to live was compared when the request came; it may change while it waits.
pub(super) fn without_ttl(under: Under) -> Under {
    match under {
        Under::Existing { key, .. } => Under::Existing { key, ttl: None },
        new @ Under::New { .. } => new,
    }
}
