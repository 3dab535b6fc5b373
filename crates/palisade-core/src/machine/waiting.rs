//! The queues of waiting requests: which one is next, and which ones are no longer there.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::Machine;
use super::grants::{LeaseFor, reused};
use super::record::Waiter;
use super::slab::{NIL, Slot};
use crate::command::{Acquire, GrantRef, Under};
use crate::id::RequestId;
use crate::name::ClientId;
use crate::outcome::{Effect, Ending, Granted, Holder, Outcome, QueueBound};
use crate::time::{Span, Timestamp};

/// A request that is about to be granted.
pub(super) struct Next {
    pub(super) lease: LeaseFor,
    pub(super) metadata: Option<Box<str>>,
    pub(super) since: Timestamp,
}

impl Machine {
    pub(super) fn enqueue(&mut self, lock: Slot, acquire: Acquire, wait: Span) -> Outcome {
        // Who may wait has an id to be called by; without one the answer could never be given.
        let Some(request) = acquire.request else {
            return Outcome::Held(self.holder_by(self.tables.grant_on(lock)));
        };
        if let Some(bound) = self.queue_bound(lock, &acquire.client) {
            return Outcome::QueueFull(bound);
        }
        self.changed = true;
        self.arrivals += 1;
        let waiter = Waiter {
            request,
            lock,
            client: NIL,
            under: without_ttl(acquire.under),
            metadata: acquire.metadata,
            since: self.now,
            deadline: self.now.after(wait),
            arrival: self.arrivals,
            prev: NIL,
            next: NIL,
        };
        self.tables.enqueue(&acquire.client, waiter);
        Outcome::Queued
    }

    /// Another attempt of a request that waits keeps its place and its deadline.
    ///
    /// The holder will count from when it sent the attempt that is answered, so the wait counts from
    /// the latest one: the time before it must not become part of what the grant is good for.
    pub(super) fn rejoin(&mut self, slot: Slot, again: &Acquire) -> Outcome {
        let Waiter { lock, client, .. } = self.tables.waiters[slot];
        let asked = (
            &self.tables.locks[lock].name,
            &self.tables.clients[client].id,
        );
        if asked != (&again.lock, &again.client) {
            return reused();
        }
        self.changed = true;
        self.tables.waiters[slot].since = self.now;
        Outcome::Queued
    }

    fn queue_bound(&self, lock: Slot, client: &ClientId) -> Option<QueueBound> {
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

    /// Gives a lock that just became free to the first waiter that is still there (rule A10), or
    /// forgets the lock. `last` is who had it.
    pub(super) fn wake(&mut self, lock: Slot, last: &Holder, effects: &mut Vec<Effect>) {
        while let Some(first) = self.tables.first_waiter(lock) {
            let Some((client, waiter)) = self.tables.dequeue(first) else {
                break;
            };
            let outcome = self.next_or_gone(lock, last, &client, &waiter, effects);
            let granted = matches!(outcome, Outcome::Granted(_));
            self.settle(waiter.request, lock, outcome, effects);
            if granted {
                return;
            }
        }
        self.tables.close_lock(lock);
    }

    fn next_or_gone(
        &mut self,
        lock: Slot,
        last: &Holder,
        client: &ClientId,
        waiter: &Waiter,
        effects: &mut Vec<Effect>,
    ) -> Outcome {
        if waiter.deadline <= self.now {
            return Outcome::Held(Holder {
                remaining: Span::ZERO,
                ..last.clone()
            });
        }
        let name = &self.tables.locks[lock].name;
        let lease = match self.peek_lease(name, client, &waiter.under) {
            Ok(lease) => lease,
            Err(outcome) => return outcome,
        };
        let (metadata, since) = (waiter.metadata.clone(), waiter.since);
        self.grant_waiter(
            lock,
            client,
            Next {
                lease,
                metadata,
                since,
            },
            effects,
        )
    }

    /// A wait that lasted as long as its caller wanted.
    pub(super) fn time_out(&mut self, slot: Slot, effects: &mut Vec<Effect>) {
        let Some((_, waiter)) = self.tables.dequeue(slot) else {
            return;
        };
        let grant = self.tables.grant_on(waiter.lock);
        let outcome = Outcome::Held(self.holder_by(grant));
        self.settle(waiter.request, waiter.lock, outcome, effects);
    }

    fn settle(
        &mut self,
        request: RequestId,
        lock: Slot,
        outcome: Outcome,
        effects: &mut Vec<Effect>,
    ) {
        self.changed = true;
        self.ended += 1;
        // A request refused for its form may come again in a better one.
        if !matches!(outcome, Outcome::Invalid(_)) {
            let name = self.tables.locks[lock].name.clone();
            self.remember(request, Some(name), outcome.clone());
        }
        effects.push(Effect::Settled { request, outcome });
    }

    /// The waiting request's connection is gone.
    pub(super) fn withdraw(&mut self, request: &RequestId) -> Outcome {
        if let Some(slot) = self.tables.find_waiter(request) {
            self.changed = true;
            self.tables.dequeue(slot);
        }
        Outcome::Done
    }

    /// The caller gave the request up: it is taken from the queue, its grant is given back, and if it
    /// arrives later it is refused.
    pub(super) fn abandon(&mut self, request: RequestId, effects: &mut Vec<Effect>) -> Outcome {
        if let Some(slot) = self.tables.find_waiter(&request) {
            if let Some((_, waiter)) = self.tables.dequeue(slot) {
                self.settle(request, waiter.lock, Outcome::Abandoned, effects);
            }
            return Outcome::Done;
        }
        let known = self.answers.get(&request).cloned();
        let lock = known.as_ref().and_then(|known| known.lock.clone());
        if let (Some(lock), Some(Outcome::Granted(Granted { key, token, .. }))) =
            (&lock, known.map(|known| known.outcome))
        {
            let grant = GrantRef {
                lock: lock.clone(),
                key,
                token: Some(token),
            };
            if let Some(live) = self.live_grant(&grant) {
                self.end_and_wake(live, Ending::Released, None, effects);
            }
        }
        self.remember(request, lock, Outcome::Abandoned);
        Outcome::Done
    }

    /// After a restart nobody is connected who could be answered.
    pub(super) fn forget_waiters(&mut self) {
        let slots: Vec<Slot> = self.tables.waiters.iter().map(|(slot, _)| slot).collect();
        for slot in slots {
            self.tables.dequeue(slot);
        }
    }
}

/// The lease's time to live was compared when the request came; it may change while it waits.
fn without_ttl(under: Under) -> Under {
    match under {
        Under::Existing { key, .. } => Under::Existing { key, ttl: None },
        new @ Under::New { .. } => new,
    }
}
