//! The work of a client process: lock, claim, read, think, write, release.
//!
//! The client, its guard, its renewals, its retries and its background requests are the product's. The work is the kind
//! that loses updates: read a set, add an element, write the set back.

mod sets;

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use palisade_client::clock::Clock as _;
use palisade_client::kind::Kind;
use palisade_client::{
    Attempt, Caution, Client, Error, GrantRef, Lease, LockMode, LockRequest, Options, Released,
};
use palisade_core::fence::Sequence;
use palisade_core::{LockName, Span, Timestamp, Token, slot_key};

use crate::sim::clock::{ClientClock, hold};
use crate::sim::fact::Fact;
use crate::sim::mutants::Mutant;
use crate::sim::plan::{LOCKS, PERMITS, Plan, lock_name};
use crate::sim::port::{Ask, Port, Reply, ResourceOp, Service};
use crate::sim::rng::Rng;

/// Numbers the elements of each resource's set. A set has room for 128.
#[derive(Debug, Default)]
pub(crate) struct Elements([AtomicU8; LOCKS * PERMITS]);

impl Elements {
    fn next(&self, resource: u8) -> Option<u8> {
        let next = self.0[usize::from(resource)].fetch_add(1, Ordering::Relaxed);
        if next < 128 {
            return Some(next);
        }
        self.0[usize::from(resource)].store(128, Ordering::Relaxed);
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
    /// The resources' keys.
    pub(crate) keys: Arc<[LockName]>,
    /// Whether the faults are over.
    pub(crate) quiet: Arc<AtomicBool>,
    /// How many permits each semaphore has.
    pub(crate) permits: Arc<[AtomicU8; LOCKS]>,
    pub(crate) mutant: Option<Mutant>,
}

/// How long the client and the resource retry an operation.
const PATIENCE: Duration = Duration::from_millis(1_500);
const REPLY_WITHIN: u64 = 300;
const ATTEMPTS: u8 = 5;
/// The longest lock-delay and at-least-for, in milliseconds: some leases long, and longer than most restarts.
const LONGEST_DELAY: u64 = 3_000;

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
        if self.rng.chance(self.plan.sets) {
            return self.turn_with_set(client).await;
        }
        let lock = self.rng.below(self.plan.locks.into()) as u8;
        let (ttl, wait) = self.ttl_and_wait();
        let terms = Terms::New {
            client: self.me,
            ttl,
            wait,
        };
        let attempt = attempt(client, lock, self.kind(lock), &terms);
        if let Some(Ok(Attempt::Granted(lease))) = self.or_abandon(ttl, attempt).await {
            self.hold(lock, lease).await;
            if self.plan.locks > 1 && self.rng.chance(250) {
                let other = self.other_than(lock);
                self.second(client, lock, other).await;
            }
            if self.plan.readers > 0 && self.plan.updates > 0 && self.rng.chance(700) {
                self.upgrade(client, lock).await;
            }
            if self.plan.readers > 0 && self.rng.chance(200) {
                self.downgrade(client, lock).await;
            }
            self.give_back(client, lock).await;
        }
    }

    /// How long the lease lasts, and how long to wait for it.
    fn ttl_and_wait(&mut self) -> (u64, u64) {
        let (least, most) = self.plan.ttl_ms;
        let ttl = self.rng.between(least, most);
        let wait = if self.rng.chance(150) {
            0
        } else {
            self.rng.between(50, 2 * most)
        };
        (ttl, wait)
    }

    /// Waits for an answer, and sometimes changes its mind meanwhile.
    async fn or_abandon<T>(&mut self, ttl: u64, answer: impl Future<Output = T>) -> Option<T> {
        if !self.rng.chance(60) {
            return Some(answer.await);
        }
        let patience = self.rng.between(1, ttl);
        let end = self.after(patience);
        let clock = ClientClock(Arc::clone(&self.port.clock));
        tokio::select! {
            biased;
            answer = answer => Some(answer),
            () = clock.sleep_until(end) => None,
        }
    }

    fn other_than(&mut self, lock: u8) -> u8 {
        match self.plan.locks {
            2 => 1 - lock,
            locks => (lock + 1 + self.rng.below(u64::from(locks) - 1) as u8) % locks,
        }
    }

    /// The kind of grant to ask for.
    fn kind(&mut self, lock: u8) -> Wanted {
        let permits = self.permits[usize::from(lock)].load(Ordering::Relaxed);
        if permits > 0 {
            let wanted = self.rng.between(1, permits.into()) as u32;
            return Wanted::Permits {
                wanted,
                of: permits.into(),
            };
        }
        if self.rng.chance(self.plan.readers) {
            return if self.rng.chance(self.plan.updates) {
                Wanted::Update
            } else {
                Wanted::Shared
            };
        }
        // After the faults everybody must get a turn, so nobody closes a lock for longer than others wait.
        let quiet = self.quiet.load(Ordering::Relaxed);
        if quiet || self.plan.delays == 0 || !self.rng.chance(self.plan.delays) {
            return Wanted::EXCLUSIVE;
        }
        let (lock_delay, at_least_for) = match self.rng.below(3) {
            0 => (self.rng.between(1, LONGEST_DELAY), 0),
            1 => (0, self.rng.between(1, LONGEST_DELAY)),
            _ => (
                self.rng.between(1, LONGEST_DELAY),
                self.rng.between(1, LONGEST_DELAY),
            ),
        };
        Wanted::Exclusive {
            lock_delay,
            at_least_for,
        }
    }

    async fn hold(&mut self, lock: u8, lease: Lease) {
        let (token, mode) = (lease.token(), lease.mode());
        let resources = self.take(lock, lease);
        match mode {
            LockMode::Exclusive | LockMode::Upgrade | LockMode::Permits(_) => {
                self.use_it(lock, token, &resources).await;
            }
            LockMode::Shared | LockMode::Update => {
                for resource in resources {
                    self.read_it(lock, token, resource).await;
                }
            }
        }
    }

    /// Keeps the guard of a grant, and returns the resources that the grant is for.
    fn take(&self, lock: u8, lease: Lease) -> Vec<u8> {
        let resources = self.resources(&lease);
        self.port.note(Fact::Holds {
            client: self.me,
            lock,
            token: lease.token().get(),
        });
        hold(&self.port.hand).insert(lock, lease);
        resources
    }

    /// The resources that a grant is for. For permits they follow from the keys of the slots.
    fn resources(&self, lease: &Lease) -> Vec<u8> {
        let number = |key: LockName| {
            let found = self.keys.iter().position(|other| *other == key);
            found.map(|resource| resource as u8)
        };
        if lease.slots().is_empty() {
            return number(lease.lock().clone()).into_iter().collect();
        }
        if self.mutant == Some(Mutant::OneFenceForAllSlots) {
            let first = slot_key(lease.lock(), 1).ok();
            return first.and_then(number).into_iter().collect();
        }
        lease.slot_keys().filter_map(number).collect()
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

    /// A reader in mode update becomes a writer, or stays a reader.
    async fn upgrade(&mut self, client: &Client, lock: u8) {
        let mode = hold(&self.port.hand).get(&lock).map(Lease::mode);
        if mode != Some(LockMode::Update) {
            return;
        }
        let Some(reader) = hold(&self.port.hand).remove(&lock) else {
            return;
        };
        let wait = self.rng.between(0, self.plan.ttl_ms.1);
        let patience = self.plan.ttl_ms.1;
        let upgrade = client.upgrade(&reader, Duration::from_millis(wait));
        match self.or_abandon(patience, upgrade).await {
            Some(Ok(writer)) => {
                drop(reader);
                self.hold(lock, writer).await;
            }
            _ => drop(hold(&self.port.hand).insert(lock, reader)),
        }
    }

    /// A reader claims like everybody, and writes nothing.
    async fn read_it(&mut self, lock: u8, token: Token, resource: u8) {
        for op in [ResourceOp::Claim, ResourceOp::Read, ResourceOp::Read] {
            if !matches!(
                self.ask(resource, token, op).await,
                Some(Reply::Admitted(_))
            ) {
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
        if !hold(&self.port.hand).contains_key(&first) {
            return;
        }
        let kind = match self.plan.permits[usize::from(lock)] {
            0 => Wanted::EXCLUSIVE,
            _ => self.kind(lock),
        };
        let attempt = hold(&self.port.hand)
            .get(&first)
            .map(|lease| attempt(client, lock, kind, &Terms::Under { lease, wait }));
        let Some(attempt) = attempt else {
            return;
        };
        if let Ok(Attempt::Granted(lease)) = attempt.await {
            let (token, resources) = (lease.token(), self.resources(&lease));
            hold(&self.port.hand).insert(lock, lease);
            self.use_it(lock, token, &resources).await;
            self.give_back(client, lock).await;
        }
    }

    async fn use_it(&mut self, lock: u8, token: Token, resources: &[u8]) {
        let careless = self.rng.chance(400);
        let claims = self.rng.chance(800);
        for resource in resources.iter().filter(|_| claims) {
            let claim = self.ask(*resource, token, ResourceOp::Claim).await;
            if !matches!(claim, Some(Reply::Admitted(_))) {
                return;
            }
        }
        for number in 1..=self.rng.between(1, 3) {
            for resource in resources {
                if self
                    .add(lock, token, *resource, number, careless)
                    .await
                    .is_none()
                {
                    return;
                }
            }
        }
    }

    /// Adds an element to a resource's set. `None`: the grant is not good for it any more.
    async fn add(
        &mut self,
        lock: u8,
        token: Token,
        resource: u8,
        number: u64,
        careless: bool,
    ) -> Option<()> {
        let Some(Reply::Admitted(before)) = self.ask(resource, token, ResourceOp::Read).await
        else {
            return None;
        };
        let (least, most) = self.plan.think_ms;
        let think = if self.rng.chance(100) {
            self.rng.between(most, self.plan.ttl_ms.1)
        } else {
            self.rng.between(least, most)
        };
        self.sleep(think).await;
        if !careless && !self.holds(lock) {
            return None;
        }
        let element = self.elements.next(resource);
        let value = before | element.map_or(0, |element| 1 << element);
        let sequence = Sequence::new(number)?;
        let write = ResourceOp::Write { value, sequence };
        if !matches!(
            self.ask(resource, token, write).await,
            Some(Reply::Admitted(_))
        ) {
            return None;
        }
        self.port.note(Fact::Added {
            client: self.me,
            resource,
            token: token.get(),
            element,
        });
        Some(())
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
    async fn ask(&mut self, resource: u8, token: Token, op: ResourceOp) -> Option<Reply> {
        for _ in 0..ATTEMPTS {
            let reply = self.port.ask(Ask {
                resource,
                token,
                op,
            });
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

/// The kind of grant that a worker asks for; times in milliseconds.
enum Wanted {
    Exclusive { lock_delay: u64, at_least_for: u64 },
    Shared,
    Update,
    Permits { wanted: u32, of: u32 },
}

impl Wanted {
    const EXCLUSIVE: Wanted = Wanted::Exclusive {
        lock_delay: 0,
        at_least_for: 0,
    };
}

/// The options of a request, which are the same for every kind; times in milliseconds.
enum Terms<'a> {
    New { client: u8, ttl: u64, wait: u64 },
    Under { lease: &'a Lease, wait: u64 },
}

impl Terms<'_> {
    fn put<K: Kind>(&self, request: LockRequest<K>) -> LockRequest<K> {
        match *self {
            Terms::New { client, ttl, wait } => request
                .client_id(client_name(client))
                .ttl(Duration::from_millis(ttl))
                .wait(Duration::from_millis(wait)),
            Terms::Under { lease, wait } => request.under(lease).wait(Duration::from_millis(wait)),
        }
    }
}

type Attempting = Pin<Box<dyn Future<Output = Result<Attempt, Error>> + Send>>;

fn attempt(client: &Client, lock: u8, kind: Wanted, terms: &Terms<'_>) -> Attempting {
    let name = lock_name(lock);
    match kind {
        Wanted::Exclusive {
            lock_delay,
            at_least_for,
        } => {
            let request = client
                .lock(&name)
                .lock_delay(Duration::from_millis(lock_delay))
                .at_least_for(Duration::from_millis(at_least_for));
            Box::pin(terms.put(request).attempt())
        }
        Wanted::Shared => Box::pin(terms.put(client.lock_shared(&name)).attempt()),
        Wanted::Update => Box::pin(terms.put(client.lock_shared(&name).for_update()).attempt()),
        Wanted::Permits { wanted, of } => {
            let request = client.semaphore(&name, of).permits(wanted);
            Box::pin(terms.put(request).attempt())
        }
    }
}

pub(crate) fn client_name(client: u8) -> String {
    format!("client-{client}")
}
