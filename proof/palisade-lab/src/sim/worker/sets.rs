//! Work under several locks at once (M1 – M3): claim all resources, then read and write each with the one token.

use std::sync::atomic::Ordering;
use std::time::Duration;

use palisade_client::{Attempt, Client, Lease};
use palisade_core::Token;

use super::{Worker, client_name, lock_name};
use crate::sim::clock::hold;
use crate::sim::mutants::Mutant;
use crate::sim::port::{Reply, ResourceOp};

/// A lock of a set, and its resource.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Part {
    lock: u8,
    resource: u8,
}

/// Longer than a run goes on after the faults, in milliseconds: sets that waited for each other would do so at its end.
const VERY_LONG: u64 = 120_000;

impl Worker {
    /// Takes two or three locks at once, and gives them up one after the other.
    pub(super) async fn turn_with_set(&mut self, client: &Client) {
        let mut locks = self.some_plain_locks();
        let (ttl, wait) = self.ttl_and_wait();
        let quiet = self.quiet.load(Ordering::Relaxed);
        let wait = if quiet && self.rng.chance(500) {
            VERY_LONG
        } else {
            wait
        };
        if self.mutant == Some(Mutant::SetOneByOne) {
            return self.one_by_one(client, &locks, ttl, wait).await;
        }
        let wish = client
            .locks(locks.iter().map(|lock| lock_name(*lock)))
            .client_id(client_name(self.me))
            .ttl(Duration::from_millis(ttl))
            .wait(Duration::from_millis(wait));
        let Some(Ok(leases)) = self.or_abandon(ttl, wish.acquire()).await else {
            return;
        };
        // The guards come in the order of the locks' names.
        locks.sort_unstable();
        let parts = self.take_all(&locks, leases);
        if let Some((token, mut parts)) = parts {
            self.use_all(client, token, &mut parts).await;
        }
        self.shuffle(&mut locks);
        self.one_thing_more(client, &locks).await;
        for lock in locks {
            self.give_back(client, lock).await;
        }
    }

    /// A mutant: holds the first locks while it waits for the others.
    async fn one_by_one(&mut self, client: &Client, locks: &[u8], ttl: u64, wait: u64) {
        for lock in locks {
            let wish = client
                .lock(&lock_name(*lock))
                .client_id(client_name(self.me))
                .ttl(Duration::from_millis(ttl))
                .wait(Duration::from_millis(wait));
            if let Ok(Attempt::Granted(lease)) = wish.attempt().await {
                self.take(*lock, lease);
            }
        }
        for lock in locks {
            let lease = hold(&self.port.hand)
                .get(lock)
                .map(|lease| (lease.token(), self.resources(lease)));
            if let Some((token, resources)) = lease {
                self.use_it(*lock, token, &resources).await;
            }
            self.give_back(client, *lock).await;
        }
    }

    /// Names them in any order.
    fn some_plain_locks(&mut self) -> Vec<u8> {
        let mut locks = self.plan.plain_locks();
        self.shuffle(&mut locks);
        let wanted = self.rng.between(2, 3);
        locks.truncate(wanted as usize);
        locks
    }

    fn shuffle(&mut self, locks: &mut [u8]) {
        for place in 1..locks.len() {
            let other = self.rng.below(place as u64 + 1);
            locks.swap(place, other as usize);
        }
    }

    fn take_all(&self, locks: &[u8], leases: Vec<Lease>) -> Option<(Token, Vec<Part>)> {
        let token = leases.first()?.token();
        let mut parts = Vec::new();
        for (lock, lease) in locks.iter().copied().zip(leases) {
            let resources = self.take(lock, lease).into_iter();
            parts.extend(resources.map(|resource| Part { lock, resource }));
        }
        Some((token, parts))
    }

    /// A worker that loses one of the locks gives up all of them, or goes on with the others. Some workers need one
    /// lock for a shorter time.
    async fn use_all(&mut self, client: &Client, token: Token, parts: &mut Vec<Part>) {
        let careless = self.rng.chance(400);
        if self.rng.chance(800) && !self.claim_all(token, parts).await {
            return;
        }
        for number in 1..=self.rng.between(1, 3) {
            for part in parts.clone() {
                let Part { lock, resource } = part;
                let added = self.add(lock, token, resource, number, careless).await;
                if added.is_none() && self.rng.chance(500) {
                    return;
                }
                if added.is_none() {
                    parts.retain(|other| *other != part);
                }
            }
            if parts.len() > 1 && self.rng.chance(250) {
                let Part { lock, .. } = parts.swap_remove(0);
                self.give_back(client, lock).await;
            }
        }
    }

    async fn claim_all(&mut self, token: Token, parts: &[Part]) -> bool {
        for part in parts {
            let claim = self.ask(part.resource, token, ResourceOp::Claim).await;
            if !matches!(claim, Some(Reply::Admitted(_))) {
                return false;
            }
        }
        true
    }

    /// Takes a lock that is not in the set under its lease, or becomes a reader of one that is.
    async fn one_thing_more(&mut self, client: &Client, locks: &[u8]) {
        let Some(first) = locks.first().copied() else {
            return;
        };
        let other = (0..self.plan.locks).find(|lock| !locks.contains(lock));
        if let Some(other) = other
            && self.rng.chance(200)
        {
            self.second(client, first, other).await;
        }
        if self.plan.readers > 0 && self.rng.chance(200) {
            self.downgrade(client, first).await;
        }
    }
}
