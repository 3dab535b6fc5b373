//! An observer's requests: locks of every kind, a few of each, so that the observers wait for one another.

use palisade_core::{ClientId, LockMode, LockName, Permits, Slots, Token, set_of};
use serde_json::{Value, json};

use super::http::Reply;
use crate::history::{Answer, Call};

/// How many plain locks there are; sets are of these.
const PLAIN: usize = 6;
/// How many locks of readers and writers.
const READ: usize = 2;
/// How many permits the one semaphore has.
const OF: u32 = 3;

/// A request for one lock or several.
#[derive(Clone)]
pub(super) struct Wish {
    pub(super) lock: LockName,
    also: Box<[LockName]>,
    pub(super) mode: LockMode,
    /// Whether a denial names the holder: only exclusive grants have one.
    names_holder: bool,
}

impl Wish {
    /// Any kind of lock, with the names of this epoch.
    pub(super) fn draw(random: &mut fastrand::Rng, epoch: u64) -> Option<Wish> {
        let name = |what: &str, number: usize| LockName::new(&format!("{what}-{epoch}-{number}"));
        let of_mode = |lock, mode| Wish {
            lock,
            also: Box::default(),
            mode,
            names_holder: false,
        };
        let plain = random.usize(0..PLAIN);
        let read = name("read", random.usize(0..READ)).ok()?;
        Some(match random.u8(0..8) {
            0..3 => Wish {
                names_holder: true,
                ..of_mode(name("seen", plain).ok()?, LockMode::Exclusive)
            },
            3 => {
                let other = (plain + random.usize(1..PLAIN)) % PLAIN;
                let both = [plain, other].map(|number| name("seen", number));
                let names: Result<Vec<LockName>, _> = both.into_iter().collect();
                let (lock, also) = set_of(names.ok()?).ok()?;
                Wish {
                    also: also.to_vec().into(),
                    ..of_mode(lock, LockMode::Exclusive)
                }
            }
            4 => {
                let permits = Permits::new(random.u32(1..=OF), OF).ok()?;
                of_mode(name("slots", 0).ok()?, LockMode::Permits(permits))
            }
            5 => of_mode(read, LockMode::Shared),
            6 => of_mode(read, LockMode::Update),
            _ => of_mode(read, LockMode::Exclusive),
        })
    }

    /// The same lock under the lease that has it: the upgrade of a grant in mode update, or the downgrade of a writer.
    pub(super) fn changed(&self) -> Option<Wish> {
        let mode = match self.mode {
            LockMode::Update => LockMode::Upgrade,
            LockMode::Exclusive if !self.names_holder && self.also.is_empty() => LockMode::Shared,
            _ => return None,
        };
        let mut changed = self.clone();
        changed.mode = mode;
        Some(changed)
    }

    /// All its locks.
    pub(super) fn locks(&self) -> Vec<LockName> {
        let first = std::iter::once(&self.lock);
        first.chain(&self.also).cloned().collect()
    }

    /// The call as a history has it; `under` is an existing lease, or the time to live of a new one.
    pub(super) fn call(&self, under: Result<palisade_core::Ttl, Token>, request: &str) -> Call {
        Call::Acquire {
            lock: self.lock.clone(),
            ttl: under.ok(),
            under: under.err(),
            request: Some(request.into()),
            also: self.also.clone(),
            mode: self.mode,
        }
    }

    /// Adds the fields of its kind to a body.
    pub(super) fn fill(&self, body: &mut Value) {
        match self.mode {
            LockMode::Exclusive => {}
            LockMode::Shared => body["mode"] = "shared".into(),
            LockMode::Update => body["mode"] = "update".into(),
            LockMode::Upgrade => body["mode"] = "upgrade".into(),
            LockMode::Permits(permits) => {
                body["permits"] = json!({ "count": permits.wanted(), "of": permits.of() });
            }
        }
        if !self.also.is_empty() {
            let names = self.also.iter().map(ToString::to_string);
            body["also"] = names.collect::<Vec<String>>().into();
        }
    }

    /// The meaning of a reply, if it is clear; a grant under a new lease names that lease.
    pub(super) fn answer(&self, lease: Option<Token>, reply: &Reply) -> Option<Answer> {
        match (reply.status, reply.code()) {
            (200, _) => {
                let number = number(&reply.body)?;
                Some(Answer::Granted {
                    token: number,
                    lease: lease.unwrap_or(number),
                    phase: reply.body["grant_id"]
                        .as_u64()
                        .and_then(|_| token(&reply.body)),
                    slots: slots(&reply.body),
                })
            }
            (409, "held") if self.names_holder => holder(&reply.body["holder"]),
            (409, "held") => Some(Answer::Denied),
            _ => None,
        }
    }
}

/// The number that names a grant.
pub(super) fn number(body: &Value) -> Option<Token> {
    match body["grant_id"].as_u64() {
        Some(number) => Token::new(number).ok(),
        None => token(body),
    }
}

fn slots(body: &Value) -> Slots {
    let slots = body["slots"].as_array().into_iter().flatten();
    let bits = slots
        .filter_map(Value::as_u64)
        .filter(|slot| (1..=64).contains(slot))
        .map(|slot| 1 << (slot - 1));
    Slots::from_bits(bits.fold(0, |all, slot: u64| all | slot))
}

pub(super) fn token(body: &Value) -> Option<Token> {
    Token::new(body["fencing_token"].as_u64()?).ok()
}

pub(super) fn holder(body: &Value) -> Option<Answer> {
    Some(Answer::Held {
        token: token(body)?,
        holder: ClientId::new(body["client_id"].as_str()?).ok()?,
    })
}
