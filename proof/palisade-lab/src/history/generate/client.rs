//! A client's next step: it requests, holds, renews, releases, forgets, and is late.

use fastrand::Rng;
use palisade_core::{
    Acquire, ClientId, Command, GrantRef, Granted, LeaseKey, LockMode, LockName, Permits,
    RequestId, Span, Token, Ttl, Under, set_of,
};

use super::shape::Shape;
use crate::history::event::{Answer, Call};

/// A client's wish.
#[derive(Clone)]
pub(super) enum Wish {
    Acquire {
        lock: LockName,
        also: Box<[LockName]>,
        under: Result<Ttl, (Token, LeaseKey)>,
        wait_ms: Option<u64>,
        request: Option<RequestId>,
        mode: LockMode,
    },
    Renew {
        held: Held,
        ttl: Option<Ttl>,
    },
    Release(Held),
    Abandon {
        lock: LockName,
        request: RequestId,
    },
    Revoke {
        lock: LockName,
        token: Token,
    },
    Show(LockName),
}

/// A grant that the client believes it holds.
#[derive(Clone)]
pub(super) struct Held {
    lock: LockName,
    token: Token,
    lease: Token,
    key: LeaseKey,
    update: bool,
}

impl Held {
    /// A request for its upgrade.
    fn upgrade(self, wait_ms: Option<u64>, request: RequestId) -> Wish {
        Wish::Acquire {
            lock: self.lock,
            also: Box::default(),
            under: Err((self.lease, self.key)),
            wait_ms,
            request: Some(request),
            mode: LockMode::Upgrade,
        }
    }

    fn named(&self) -> GrantRef {
        GrantRef {
            lock: self.lock.clone(),
            key: self.key,
            token: Some(self.token),
        }
    }
}

/// A client's next step.
pub(super) enum Step {
    Ask(Wish),
    Rest(u64),
}

pub(super) struct Client {
    pub(super) id: ClientId,
    number: usize,
    requests: u64,
    held: Vec<Held>,
    /// The wish to retry or abandon.
    open: Option<Wish>,
}

const MS: u64 = 1_000_000;

impl Wish {
    /// The call as recorded in the history.
    pub(super) fn call(&self) -> Call {
        match self {
            Wish::Acquire {
                lock,
                also,
                under,
                request,
                mode,
                ..
            } => Call::Acquire {
                lock: lock.clone(),
                also: also.clone(),
                ttl: under.as_ref().ok().copied(),
                under: under.as_ref().err().map(|(lease, _)| *lease),
                request: request.map(|request| request.to_hex().into()),
                mode: *mode,
            },
            Wish::Renew { held, ttl } => Call::Renew {
                lock: held.lock.clone(),
                token: held.token,
                ttl: *ttl,
            },
            Wish::Release(held) => Call::Release {
                lock: held.lock.clone(),
                token: held.token,
            },
            Wish::Abandon { lock, request } => Call::Abandon {
                lock: lock.clone(),
                request: request.to_hex().into(),
            },
            Wish::Revoke { lock, token } => Call::Revoke {
                lock: lock.clone(),
                token: *token,
            },
            Wish::Show(lock) => Call::Show { lock: lock.clone() },
        }
    }

    /// The command for the authority; `None` for a question. A lease that has to be opened gets its own key, as if
    /// drawn by the orderer of the log.
    pub(super) fn command(&self, client: &ClientId, op: usize) -> Option<Command> {
        let key = LeaseKey::from_bytes((op as u128 + 1).to_le_bytes());
        Some(match self {
            Wish::Acquire {
                lock,
                also,
                under,
                wait_ms,
                request,
                mode,
            } => {
                let under = match under {
                    Ok(ttl) => Under::New { key, ttl: *ttl },
                    Err((_, key)) => Under::Existing {
                        key: *key,
                        ttl: None,
                    },
                };
                let names = also.iter().chain([lock]).cloned().collect();
                // Distinct names, and few.
                let (first, also) = set_of(names).ok()?;
                Command::Acquire(Acquire {
                    also,
                    mode: *mode,
                    wait: wait_ms.map(Span::from_millis),
                    ..Acquire::new(first, client.clone(), under, *request)
                })
            }
            Wish::Renew { held, ttl } => Command::Renew {
                grant: held.named(),
                ttl: *ttl,
            },
            Wish::Release(held) => Command::Release(held.named()),
            Wish::Abandon { request, .. } => Command::Abandon(*request),
            Wish::Revoke { lock, token } => Command::Revoke {
                lock: lock.clone(),
                token: *token,
                reason: "the operator wants it".into(),
            },
            Wish::Show(_) => return None,
        })
    }

    /// How long an answer may rightly take.
    pub(super) fn patience(&self) -> u64 {
        match self {
            Wish::Acquire {
                wait_ms: Some(wait),
                ..
            } => wait * MS,
            _ => 0,
        }
    }
}

impl Client {
    pub(super) fn new(number: usize) -> Client {
        Client {
            id: client_id(number),
            number,
            requests: 0,
            held: Vec::new(),
            open: None,
        }
    }

    pub(super) fn step(&mut self, rng: &mut Rng, shape: &Shape) -> Step {
        if let Some(wish) = self.open.take() {
            return Step::Ask(wish);
        }
        let lock = lock(rng.usize(0..shape.locks));
        match rng.u8(0..100) {
            0..4 => Step::Ask(Wish::Show(lock)),
            // The restarted client has forgotten its grants: the leases expire, or it takes its locks back.
            4..6 => {
                self.held.clear();
                Step::Rest(rng.u64(MS..300 * MS))
            }
            _ => match self.held.last().cloned() {
                None => Step::Ask(self.acquire(rng, shape, lock)),
                Some(held) => self.holding(rng, shape, held, lock),
            },
        }
    }

    fn holding(&mut self, rng: &mut Rng, shape: &Shape, held: Held, other: LockName) -> Step {
        // A reader that is not in mode update is refused.
        let upgrades = if held.update { 40 } else { 2 };
        if shape.kinds && rng.u8(0..100) < upgrades {
            self.requests += 1;
            let wait_ms = rng.bool().then(|| rng.u64(1..1_500));
            return Step::Ask(held.upgrade(wait_ms, self.request()));
        }
        match rng.u8(0..100) {
            0..40 => Step::Ask(Wish::Renew {
                held,
                ttl: (rng.u8(0..10) == 0).then(|| ttl(rng)),
            }),
            40..80 => {
                self.held.pop();
                Step::Ask(Wish::Release(held))
            }
            80..86 => {
                self.requests += 1;
                let (mode, also) = kind(rng, shape, &other);
                Step::Ask(Wish::Acquire {
                    lock: other,
                    also,
                    under: Err((held.lease, held.key)),
                    wait_ms: None,
                    request: Some(self.request()),
                    mode,
                })
            }
            86..89 => Step::Ask(Wish::Revoke {
                lock: held.lock,
                token: held.token,
            }),
            89..94 => Step::Ask(self.acquire(rng, shape, held.lock)),
            // A pause that may outlast the lease.
            _ => Step::Rest(rng.u64(10 * MS..3_000 * MS)),
        }
    }

    fn acquire(&mut self, rng: &mut Rng, shape: &Shape, lock: LockName) -> Wish {
        self.requests += 1;
        let wait_ms = rng.bool().then(|| rng.u64(1..2_000));
        let named = wait_ms.is_some() || rng.u8(0..4) > 0;
        let ttl = ttl(rng);
        let (mode, also) = kind(rng, shape, &lock);
        Wish::Acquire {
            lock,
            also,
            under: Ok(ttl),
            wait_ms,
            request: named.then(|| self.request()),
            mode,
        }
    }

    fn request(&self) -> RequestId {
        let number = (self.number as u128) << 64 | u128::from(self.requests);
        RequestId::from_bytes(number.to_be_bytes())
    }

    /// Handles an answer; returns the time until the next step.
    pub(super) fn handle_answer(
        &mut self,
        rng: &mut Rng,
        wish: &Wish,
        answer: &Answer,
        granted: Option<Granted>,
    ) -> u64 {
        match (wish, answer, granted) {
            (
                Wish::Acquire {
                    lock, also, mode, ..
                },
                _,
                Some(granted),
            ) => {
                for lock in also.iter().chain([lock]) {
                    if granted.slots.is_empty() {
                        self.held.retain(|held| held.lock != *lock);
                    }
                    self.held.push(Held {
                        lock: lock.clone(),
                        token: granted.number(),
                        lease: granted.lease.0,
                        key: granted.key,
                        update: *mode == LockMode::Update,
                    });
                }
            }
            // Most clients drop a lost grant; some keep trying with it.
            (Wish::Renew { held, .. }, Answer::Ended { .. } | Answer::NotHeld, _)
                if rng.u8(0..4) > 0 =>
            {
                self.held.retain(|other| other.token != held.token);
            }
            _ => {}
        }
        match rng.u8(0..20) {
            0 => rng.u64(MS..2_000 * MS),
            _ => rng.u64(MS / 10..40 * MS),
        }
    }

    /// No answer came in time: retry, abandon the wish, or forget it.
    pub(super) fn unanswered(&mut self, rng: &mut Rng, wish: Wish) -> u64 {
        self.open = match (rng.u8(0..4), wish) {
            (
                0,
                Wish::Acquire {
                    lock,
                    request: Some(request),
                    ..
                },
            ) => Some(Wish::Abandon { lock, request }),
            (3, _) => None,
            (_, wish @ Wish::Acquire { request: None, .. }) => {
                drop(wish);
                None
            }
            (_, wish) => Some(wish),
        };
        rng.u64(MS / 10..50 * MS)
    }
}

/// The mode to ask for, and the other locks of the request. With all kinds the last lock is a semaphore.
fn kind(rng: &mut Rng, shape: &Shape, wanted: &LockName) -> (LockMode, Box<[LockName]>) {
    let plain = shape.locks.saturating_sub(1);
    if !shape.kinds || shape.locks < 2 {
        return (shared(rng.bool()), Box::default());
    }
    if *wanted == lock(plain) {
        // Now and then somebody is wrong about how many there are.
        let of = SLOTS + u32::from(rng.u8(0..20) == 0);
        let permits = Permits::new(rng.u32(1..=SLOTS), of);
        let mode = permits.map_or(LockMode::Exclusive, LockMode::Permits);
        return (mode, Box::default());
    }
    match rng.u8(0..4) {
        0 => {
            let others = (0..plain).map(lock);
            let others = others.filter(|other| other != wanted && rng.bool());
            (LockMode::Exclusive, others.collect())
        }
        1 => (LockMode::Update, Box::default()),
        other => (shared(other == 2), Box::default()),
    }
}

fn shared(shared: bool) -> LockMode {
    if shared {
        LockMode::Shared
    } else {
        LockMode::Exclusive
    }
}

/// How many permits the semaphore has.
const SLOTS: u32 = 3;

fn lock(number: usize) -> LockName {
    named(&format!("lock-{number}"), LockName::new)
}

fn ttl(rng: &mut Rng) -> Ttl {
    Ttl::from_millis(rng.u64(100..1_500)).unwrap_or(Ttl::MIN)
}

/// The name of a client.
fn client_id(number: usize) -> ClientId {
    named(&format!("c{number}"), ClientId::new)
}

/// Cannot fail: letters and digits are always valid in names.
fn named<T, E>(name: &str, make: impl Fn(&str) -> Result<T, E>) -> T {
    match make(name) {
        Ok(name) => name,
        Err(_) => unreachable!("{name} is printable and short"),
    }
}
