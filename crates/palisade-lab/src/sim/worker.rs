//! The work of a client process: lock, claim, read, think, write, release.
//!
//! The client, its guard, its renewals, its retries and its background requests are the product's. The work is the kind
//! that loses updates: read a set, add an element, write the set back.

use std::sync::Arc;
use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use palisade_client::clock::Clock as _;
use palisade_client::{Attempt, Caution, Client, GrantRef, Lease, LockMode, Options, Released};
use palisade_core::fence::Sequence;
use palisade_core::{Span, Timestamp, Token};

use super::clock::{ClientClock, hold};
use super::fact::Fact;
use super::mutants::Mutant;
use super::plan::Plan;
use super::port::{Ask, Port, Reply, ResourceOp, Service};
use super::rng::Rng;

/// Numbers the elements of each resource's set. A set has room for 128.
#[derive(Debug, Default)]
pub(crate) struct Elements([AtomicU8; 2]);

impl Elements {
    fn next(&self, lock: u8) -> Option<u8> {
        let next = self.0[usize::from(lock)].fetch_add(1, Ordering::Relaxed);
        if next < 128 {
            return Some(next);
        }
        self.0[usize::from(lock)].store(128, Ordering::Relaxed);
        None
    }
}

/// One client process.
pub(crate) struct Worker {
    pub(crate) me: u8,
    pub(crate) port: Arc<Port>,
    pub(crate) rng: Rng,
    pub(crate) plan: Arc<Plan>,
    pub(crate) elements: Arc<Elements>,
    pub(crate) mutant: Option<Mutant>,
}

/// How long the client and the resource retry an operation.
const PATIENCE: Duration = Duration::from_millis(1_500);
const REPLY_WITHIN: u64 = 300;
const ATTEMPTS: u8 = 5;

impl Worker {
    pub(crate) async fn work(mut self) {
        let caution = match self.mutant {
            Some(Mutant::DriftIgnored) => Caution::new(0, Span::ZERO).unwrap_or_default(),
            _ => Caution::DEFAULT,
        };
        let options = Options {
            patience: PATIENCE,
            caution,
            ..Options::default()
        };
        let clock = Arc::new(ClientClock(Arc::clone(&self.port.clock)));
        let service = Arc::new(Service(Arc::clone(&self.port)));
        let Ok(client) = Client::with(service, clock, &options) else {
            return;
        };
        loop {
            let idle = self.rng.between(1, 60);
            self.sleep(idle).await;
            self.turn(&client).await;
        }
    }

    async fn turn(&mut self, client: &Client) {
        let lock = self.rng.below(self.plan.locks.into()) as u8;
        let (least, most) = self.plan.ttl_ms;
        let ttl = self.rng.between(least, most);
        let wait = if self.rng.chance(150) {
            0
        } else {
            self.rng.between(50, 2 * most)
        };
        let wish = client
            .lock(&lock_name(lock))
            .client_id(client_name(self.me))
            .ttl(Duration::from_millis(ttl))
            .wait(Duration::from_millis(wait));
        let wish = if self.rng.chance(self.plan.readers) {
            wish.shared()
        } else {
            wish
        };
        let attempt = if self.rng.chance(60) {
            // Changes its mind while it waits.
            let patience = self.rng.between(1, ttl);
            let end = self.after(patience);
            let clock = ClientClock(Arc::clone(&self.port.clock));
            tokio::select! {
                biased;
                attempt = wish.attempt() => attempt,
                () = clock.sleep_until(end) => return,
            }
        } else {
            wish.attempt().await
        };
        if let Ok(Attempt::Granted(lease)) = attempt {
            self.hold(lock, lease).await;
            if self.plan.locks > 1 && self.rng.chance(250) {
                self.second(client, lock, 1 - lock).await;
            }
            if self.plan.readers > 0 && self.rng.chance(200) {
                self.downgrade(client, lock).await;
            }
            self.give_back(client, lock).await;
        }
    }

    async fn hold(&mut self, lock: u8, lease: Lease) {
        let (token, mode) = (lease.token(), lease.mode());
        self.port.note(Fact::Holds {
            client: self.me,
            lock,
            token: token.get(),
        });
        hold(&self.port.hand).insert(lock, lease);
        match mode {
            LockMode::Exclusive | LockMode::Permits(_) => self.use_it(lock, token).await,
            LockMode::Shared => self.read_it(lock, token).await,
        }
    }

    /// A writer becomes a reader. Its last write may still be on its way.
    async fn downgrade(&mut self, client: &Client, lock: u8) {
        let writer = hold(&self.port.hand).remove(&lock);
        let Some(writer) = writer else {
            return;
        };
        if let Ok(reader) = client.downgrade(writer).await {
            self.hold(lock, reader).await;
        }
    }

    /// A reader claims like everybody, and writes nothing.
    async fn read_it(&mut self, lock: u8, token: Token) {
        for op in [ResourceOp::Claim, ResourceOp::Read, ResourceOp::Read] {
            if !matches!(self.ask(lock, token, op).await, Some(Reply::Admitted(_))) {
                return;
            }
            let (least, most) = self.plan.think_ms;
            let think = self.rng.between(least, most);
            self.sleep(think).await;
            if !self.holds(lock) {
                return;
            }
        }
    }

    /// Takes another lock under the same lease: both stay live and expire together.
    async fn second(&mut self, client: &Client, first: u8, lock: u8) {
        let wait = self.rng.between(0, self.plan.ttl_ms.1);
        let wish = hold(&self.port.hand).get(&first).map(|lease| {
            let wish = client.lock(&lock_name(lock)).under(lease);
            wish.wait(Duration::from_millis(wait))
        });
        let Some(wish) = wish else {
            return;
        };
        if let Ok(Attempt::Granted(lease)) = wish.attempt().await {
            let token = lease.token();
            hold(&self.port.hand).insert(lock, lease);
            self.use_it(lock, token).await;
            self.give_back(client, lock).await;
        }
    }

    async fn use_it(&mut self, lock: u8, token: Token) {
        let careless = self.rng.chance(400);
        let claims = self.rng.chance(800);
        if claims
            && !matches!(
                self.ask(lock, token, ResourceOp::Claim).await,
                Some(Reply::Admitted(_))
            )
        {
            return;
        }
        for number in 1..=self.rng.between(1, 3) {
            let Some(Reply::Admitted(before)) = self.ask(lock, token, ResourceOp::Read).await
            else {
                return;
            };
            let (least, most) = self.plan.think_ms;
            let think = if self.rng.chance(100) {
                self.rng.between(most, self.plan.ttl_ms.1)
            } else {
                self.rng.between(least, most)
            };
            self.sleep(think).await;
            if !careless && !self.holds(lock) {
                return;
            }
            let element = self.elements.next(lock);
            let value = before | element.map_or(0, |element| 1 << element);
            let Some(sequence) = Sequence::new(number) else {
                return;
            };
            let write = ResourceOp::Write { value, sequence };
            if !matches!(self.ask(lock, token, write).await, Some(Reply::Admitted(_))) {
                return;
            }
            self.port.note(Fact::Added {
                client: self.me,
                lock,
                token: token.get(),
                element,
            });
        }
    }

    fn holds(&self, lock: u8) -> bool {
        let hand = hold(&self.port.hand);
        hand.get(&lock).is_some_and(|lease| lease.check().is_ok())
    }

    async fn give_back(&mut self, client: &Client, lock: u8) {
        if self.mutant == Some(Mutant::HeldUntilReleased) {
            let grant = hold(&self.port.hand).get(&lock).map(grant);
            if let Some(grant) = grant {
                let _: Result<Released, _> = client.release(&grant).await;
            }
        }
        let lease = hold(&self.port.hand).remove(&lock);
        match lease {
            Some(lease) if self.rng.chance(700) => drop(lease.release().await),
            lease => drop(lease),
        }
    }

    /// Asks the resource until it answers; `None` after the time limit: the outcome is unknown.
    async fn ask(&mut self, lock: u8, token: Token, op: ResourceOp) -> Option<Reply> {
        for _ in 0..ATTEMPTS {
            let reply = self.port.ask(Ask { lock, token, op });
            let end = self.after(REPLY_WITHIN);
            let clock = ClientClock(Arc::clone(&self.port.clock));
            let reply = tokio::select! {
                biased;
                reply = reply => reply.ok(),
                () = clock.sleep_until(end) => None,
            };
            match reply {
                Some(Reply::Unavailable) => self.sleep(50).await,
                Some(reply) => return Some(reply),
                None => {}
            }
        }
        None
    }

    async fn sleep(&self, millis: u64) {
        let end = self.after(millis);
        ClientClock(Arc::clone(&self.port.clock))
            .sleep_until(end)
            .await;
    }

    fn after(&self, millis: u64) -> Timestamp {
        Timestamp::from_nanos(self.port.clock.nanos()).after(Span::from_millis(millis))
    }
}

fn grant(lease: &Lease) -> GrantRef {
    GrantRef {
        lock: lease.lock().clone(),
        key: *lease.lease_key(),
        token: Some(lease.grant_id().map_or(lease.token(), |id| id.0)),
    }
}

pub(crate) fn lock_name(lock: u8) -> String {
    format!("lock-{lock}")
}

pub(crate) fn client_name(client: u8) -> String {
    format!("client-{client}")
}
