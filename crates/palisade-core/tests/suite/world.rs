//! A small stage for tests: one machine, a clock that moves when it is told to, and short ways to ask.
//!
//! After every entry the invariants are checked.

use palisade_core::machine::Applied;
use palisade_core::{
    Acquire, ClientId, Command, Effect, Entry, Event, GrantOptions, GrantRef, Granted, Holder,
    LeaseKey, Limits, LockMode, LockName, Machine, Outcome, Permits, Principal, RequestId, Span,
    Timestamp, Token, Ttl, Under, WallTime, invariants,
};

/// The time to live of a lease when a test does not care.
pub(crate) const TTL_MS: u64 = 10_000;

pub(crate) struct World {
    pub(crate) machine: Machine,
    pub(crate) now: Timestamp,
    /// The effects of the last entry on others than its caller.
    pub(crate) effects: Vec<Effect>,
    /// The principal that asks.
    pub(crate) by: Principal,
    keys: u32,
}

impl World {
    pub(crate) fn new() -> World {
        World {
            machine: Machine::new(7),
            now: Timestamp::ZERO,
            effects: Vec::new(),
            by: Principal::ANONYMOUS,
            keys: 0,
        }
    }

    /// A world with other limits than the default ones.
    pub(crate) fn with(limits: Limits) -> World {
        let mut world = World::new();
        world.apply(Command::Configure(limits));
        world
    }

    /// The clock moves; the machine does not hear of it.
    pub(crate) fn pass(&mut self, span: Span) {
        self.now = self.now.after(span);
    }

    pub(crate) fn apply(&mut self, command: Command) -> Outcome {
        self.applied(command).outcome
    }

    pub(crate) fn applied(&mut self, command: Command) -> Applied {
        self.effects.clear();
        let entry = Entry {
            at: self.now,
            wall: wall(self.now),
            by: self.by,
            command,
        };
        let applied = self.machine.apply(entry, &mut self.effects);
        assert_eq!(invariants::check(&self.machine), Ok(()));
        applied
    }

    /// Asks for a lock; a lease that has to be opened gets the next key.
    pub(crate) fn acquire(&mut self, ask: Ask) -> Outcome {
        self.keys += 1;
        let key = key(self.keys);
        self.apply(Command::Acquire(ask.with_key(key)))
    }

    /// The same where anything but a grant is a failure of the test.
    pub(crate) fn granted(&mut self, ask: Ask) -> Granted {
        match self.acquire(ask) {
            Outcome::Granted(granted) => granted,
            other => panic!("not granted but {other:?}"),
        }
    }

    /// As `acquire`; the test fails unless the request is queued.
    pub(crate) fn queued(&mut self, ask: Ask) {
        assert_eq!(self.acquire(ask), Outcome::Queued);
    }

    pub(crate) fn renew(&mut self, grant: &GrantRef) -> Outcome {
        self.apply(Command::Renew {
            grant: grant.clone(),
            ttl: None,
        })
    }

    pub(crate) fn release(&mut self, grant: &GrantRef) -> Outcome {
        self.apply(Command::Release(grant.clone()))
    }

    pub(crate) fn expire(&mut self) {
        assert_eq!(self.apply(Command::Expire), Outcome::Done);
    }

    pub(crate) fn holder(&self, lock: &str) -> Option<Holder> {
        self.machine.holder(lock, self.now)
    }

    /// The token and client that hold a lock now.
    pub(crate) fn held_by(&self, lock: &str) -> Option<(u64, String)> {
        self.holder(lock)
            .map(|holder| (holder.token.get(), holder.client.to_string()))
    }

    /// Requests that the last entry settled, in order.
    pub(crate) fn settled(&self) -> Vec<(RequestId, Outcome)> {
        let settled = self.effects.iter().filter_map(|effect| match effect {
            Effect::Settled {
                request, outcome, ..
            } => Some((*request, outcome.clone())),
            Effect::Event(_) => None,
        });
        settled.collect()
    }

    /// The one request that the last entry settled, which was granted.
    pub(crate) fn handed_over(&self) -> (RequestId, Granted) {
        match self.settled().as_slice() {
            [(request, Outcome::Granted(granted))] => (*request, granted.clone()),
            other => panic!("not one hand-over but {other:?}"),
        }
    }

    pub(crate) fn events(&self) -> Vec<Event> {
        let events = self.effects.iter().filter_map(|effect| match effect {
            Effect::Event(event) => Some(event.clone()),
            Effect::Settled { .. } => None,
        });
        events.collect()
    }
}

/// A request for a lock, to be refined: `ask("orders", "a").wait(5_000).request(1)`.
#[derive(Clone)]
pub(crate) struct Ask {
    acquire: Acquire,
    ttl: Ttl,
}

pub(crate) fn ask(lock: &str, client: &str) -> Ask {
    let ttl = ttl(TTL_MS);
    let acquire = Acquire::new(
        lock_name(lock),
        client_id(client),
        Under::New { key: key(0), ttl },
        None,
    );
    Ask { acquire, ttl }
}

/// A request for several locks at once.
pub(crate) fn ask_all(locks: &[&str], client: &str) -> Ask {
    let ttl = ttl(TTL_MS);
    let names = locks.iter().map(|lock| lock_name(lock)).collect();
    let under = Under::New { key: key(0), ttl };
    let acquire = Acquire::of_all(names, client_id(client), under, None).unwrap();
    Ask { acquire, ttl }
}

impl Ask {
    pub(crate) fn ttl(mut self, ms: u64) -> Ask {
        self.ttl = ttl(ms);
        self
    }

    pub(crate) fn wait(mut self, ms: u64) -> Ask {
        self.acquire.wait = Some(Span::from_millis(ms));
        self
    }

    pub(crate) fn request(mut self, n: u8) -> Ask {
        self.acquire.request = Some(request(n));
        self
    }

    pub(crate) fn under(mut self, key: LeaseKey) -> Ask {
        self.acquire.under = Under::Existing { key, ttl: None };
        self
    }

    pub(crate) fn shared(mut self) -> Ask {
        self.acquire.mode = LockMode::Shared;
        self
    }

    pub(crate) fn for_update(mut self) -> Ask {
        self.acquire.mode = LockMode::Update;
        self
    }

    /// The upgrade of the grant in mode update that this lease has.
    pub(crate) fn upgrade(mut self, key: LeaseKey) -> Ask {
        self.acquire.mode = LockMode::Upgrade;
        self.under(key)
    }

    pub(crate) fn permits(mut self, wanted: u32, of: u32) -> Ask {
        self.acquire.mode = LockMode::Permits(Permits::new(wanted, of).unwrap());
        self
    }

    /// Lock-delay and at-least-for, in milliseconds.
    pub(crate) fn delays(mut self, lock_delay: u64, at_least_for: u64) -> Ask {
        self.acquire.options = GrantOptions::closing(lock_delay, at_least_for).unwrap();
        self
    }

    pub(crate) fn metadata(mut self, text: &str) -> Ask {
        self.acquire.metadata = Some(text.into());
        self
    }

    /// The finished request; a new lease gets this key.
    pub(crate) fn with_key(self, key: LeaseKey) -> Acquire {
        let under = match self.acquire.under {
            Under::New { .. } => Under::New { key, ttl: self.ttl },
            existing @ Under::Existing { .. } => existing,
        };
        Acquire {
            under,
            ..self.acquire
        }
    }
}

/// Names a grant with its token.
pub(crate) fn grant(lock: &str, granted: &Granted) -> GrantRef {
    GrantRef {
        lock: lock_name(lock),
        key: granted.key,
        token: Some(granted.token),
    }
}

/// Names a grant as the HTTP interface does: by the lease's key alone.
pub(crate) fn tokenless(lock: &str, granted: &Granted) -> GrantRef {
    GrantRef {
        token: None,
        ..grant(lock, granted)
    }
}

pub(crate) fn wall(now: Timestamp) -> WallTime {
    WallTime(1_779_530_400_000 + now.as_nanos() / 1_000_000)
}

pub(crate) fn ms(ms: u64) -> Span {
    Span::from_millis(ms)
}

pub(crate) fn ns(ns: u64) -> Span {
    Span::from_nanos(ns)
}

pub(crate) fn ttl(ms: u64) -> Ttl {
    Ttl::from_millis(ms).unwrap()
}

pub(crate) fn token(number: u64) -> Token {
    Token::new(number).unwrap()
}

pub(crate) fn key(n: u32) -> LeaseKey {
    LeaseKey::from_bytes(u128::from(n).to_le_bytes())
}

/// Nobody known for 0.
pub(crate) fn principal(n: u8) -> Principal {
    Principal::from_bytes([n; 16])
}

pub(crate) fn request(n: u8) -> RequestId {
    RequestId::from_bytes([n; 16])
}

pub(crate) fn lock_name(name: &str) -> LockName {
    LockName::new(name).unwrap()
}

pub(crate) fn client_id(id: &str) -> ClientId {
    ClientId::new(id).unwrap()
}
