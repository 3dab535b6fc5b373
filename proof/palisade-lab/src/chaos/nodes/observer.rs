//! Observers: clients over plain HTTP whose calls and answers become a history for the history checker.
//!
//! They repeat a request with its id at the next node until it is answered, renew, show and release through any node,
//! upgrade and downgrade, and sometimes forget a grant. Their locks are few, and of every kind (`wish.rs`), so that they
//! wait for one another. A call without a clear answer stays without one in the history: its outcome is unknown.

use std::collections::{BTreeMap, BTreeSet};
use std::net::SocketAddr;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use palisade_client::clock::{BootClock, Clock as _};
use palisade_core::{ClientId, Ending, LockMode, LockName, Timestamp, Token, Ttl};
use serde_json::{Value, json};

use super::http::{Reply, ask};
use super::queue;
use super::shared::{ANSWER, Observed, Shared, Watched};
use super::wish::{Wish, holder, number, token};
use crate::chaos::lock::lock;
use crate::chaos::stop::Stop;
use crate::history::event::Expiry;
use crate::history::{Answer, Call, Event, Header, History, check};

const OBSERVERS: u64 = 8;
/// How many calls of all observers use the same names.
const EPOCH: u64 = 200;
const RETRY: Duration = Duration::from_millis(20);

/// Threads that work until they are ended.
pub(in crate::chaos) struct Observers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl Observers {
    /// Observes a cluster, and queues at it.
    pub(super) fn start(watched: &Arc<Watched>, seed: u64) -> Observers {
        let mut observers = Observers::watch(watched, seed);
        let queues = Arc::clone(&observers.shared);
        let queues = std::thread::spawn(move || queue::run(&queues));
        observers.threads.push(queues);
        observers
    }

    /// Observes a single server. Its queues end when it is killed, so there are none.
    pub(in crate::chaos) fn of_server(address: SocketAddr, seed: u64) -> Observers {
        let watched = Watched {
            addresses: vec![address],
            silent: AtomicU64::new(0),
            found: Mutex::default(),
            healed_ms: Mutex::default(),
        };
        Observers::watch(&Arc::new(watched), seed)
    }

    fn watch(watched: &Arc<Watched>, seed: u64) -> Observers {
        let shared = Arc::new(Shared {
            watched: Arc::clone(watched),
            stop: Stop::default(),
            queues: Mutex::default(),
            events: Mutex::default(),
            calls: Mutex::default(),
        });
        let observer = |number| {
            let mut observer = Observer {
                shared: Arc::clone(&shared),
                random: fastrand::Rng::with_seed(seed.wrapping_mul(37).wrapping_add(number)),
                number,
                node: number as usize % watched.addresses.len(),
            };
            std::thread::spawn(move || observer.run())
        };
        let threads = (0..OBSERVERS).map(observer).collect();
        Observers { shared, threads }
    }

    /// Ends them and checks their history.
    pub(in crate::chaos) fn end(self) -> Observed {
        self.shared.stop.set();
        for thread in self.threads {
            let _ = thread.join();
        }
        // A lease may outlive its time: each leader change gives it its full time again.
        let header = Header {
            expiry: Expiry::Lazy,
            ..Header::default()
        };
        let events = without_orphans(std::mem::take(&mut *lock(&self.shared.events)));
        let lines = events.iter().map(|event| event.to_line() + "\n");
        let history = header.to_line() + "\n" + &lines.collect::<String>();
        let queues = std::mem::take(&mut *lock(&self.shared.queues));
        let mut observed = Observed {
            queues_kept: queues.kept,
            queues_void: queues.void,
            violations: queues.wrong,
            kinds: kinds(&events),
            history,
            ..Observed::default()
        };
        match History::from_events(header, events) {
            Ok(history) => {
                let report = check(&history);
                observed.operations = report.operations;
                observed.unknown = report.unknown;
                observed.grants = report.grants;
                let words = report.violations.iter().map(|violation| {
                    let (broken, what) = (violation.broken, &violation.what);
                    format!(
                        "{broken:?} at {} {:?}: {what}",
                        violation.lock, violation.tokens
                    )
                });
                observed.violations.extend(words);
            }
            Err(why) => observed
                .violations
                .push(format!("the history cannot be read: {why}")),
        }
        observed
    }
}

struct Observer {
    shared: Arc<Shared>,
    random: fastrand::Rng,
    number: u64,
    node: usize,
}

/// A grant, and until when it lasts by the holder's own reckoning.
struct Held {
    wish: Wish,
    /// Those of its locks that were not released.
    locks: Vec<LockName>,
    client: ClientId,
    /// The grant's number.
    token: Token,
    /// Its fencing token, which a renewal is answered with.
    fence: Token,
    /// The lease's public id.
    lease: Token,
    key: String,
    ttl: Ttl,
    deadline: Timestamp,
}

/// It is not known whether a request took effect.
struct Unclear;

impl Observer {
    fn run(&mut self) {
        let mut count = 0;
        while !self.shared.stop.comes_within(Duration::ZERO) {
            count += 1;
            if let Some(held) = self.acquire(count) {
                self.hold(held);
            }
        }
    }

    /// Asks for a lock of some kind, or several, under a client id of its own.
    fn acquire(&mut self, count: u64) -> Option<Held> {
        // New names now and then: each leader change gives a forgotten lease its full time again.
        let epoch = *lock(&self.shared.calls) / EPOCH;
        let wish = Wish::draw(&mut self.random, epoch)?;
        let client = ClientId::new(&format!("o{}-{count}", self.number)).ok()?;
        let ttl = Ttl::from_millis(self.random.u64(1_000..6_000)).ok()?;
        let wait = Duration::from_millis(self.random.u64(0..1_500));
        let (sent, body) = self.request(&client, &wish, Ok(ttl), wait).ok()??;
        let lease = number(&body)?;
        Some(Held {
            locks: wish.locks(),
            fence: token(&body)?,
            wish,
            client,
            token: lease,
            lease,
            key: body["lock_token"].as_str()?.to_owned(),
            ttl,
            deadline: sent.after(ttl.span()),
        })
    }

    /// Sends a wish under a request id of its own, at one node after the other, until an answer is clear or the patience
    /// is over. Returns the time at which the granted attempt was sent, and its answer; `None` if the wish was denied.
    fn request(
        &mut self,
        client: &ClientId,
        wish: &Wish,
        under: Result<Ttl, (Token, &str)>,
        wait: Duration,
    ) -> Result<Option<(Timestamp, Value)>, Unclear> {
        let request = format!("{:032x}", self.random.u128(..));
        let begun = BootClock.now();
        let lease = under.err().map(|(lease, _)| lease);
        let call = wish.call(under.map_err(|(lease, _)| lease), &request);
        let path = format!("/v1/locks/{}/acquire", wish.lock);
        loop {
            let waited = BootClock.now().since(begun).to_duration();
            if waited > wait + PATIENCE || self.shared.stop.comes_within(Duration::ZERO) {
                return Err(Unclear);
            }
            let left = wait.saturating_sub(waited);
            let mut body = json!({
                "client_id": client.to_string(), "request_id": request, "wait_ms": left.as_millis() as u64,
            });
            match under {
                Ok(ttl) => body["lease_duration_ms"] = ttl.as_millis().into(),
                Err((_, key)) => body["lock_token"] = key.into(),
            }
            wish.fill(&mut body);
            let sent = BootClock.now();
            let patience = left + ANSWER;
            let reply = self.call(client, &call, &path, Some(&body), patience, |reply| {
                wish.answer(lease, reply)
            });
            match reply {
                Some(reply) if reply.status == 200 => return Ok(Some((sent, reply.body))),
                Some(reply) if wish.answer(lease, &reply).is_some() => return Ok(None),
                Some(reply) if reply.status < 500 => return Err(Unclear),
                _ => {}
            }
        }
    }

    /// Renews and shows for a while, perhaps with an upgrade, a downgrade, or without a part of its set; then releases, or
    /// forgets.
    fn hold(&mut self, mut held: Held) {
        let until = BootClock
            .now()
            .after(Duration::from_millis(self.random.u64(0..1_500)).into());
        let key = json!({ "lock_token": held.key });
        while BootClock.now() < until.min(held.deadline) {
            let sent = BootClock.now();
            match self.random.u8(0..8) {
                0..2 if held.wish.changed().is_some() => match self.change(held) {
                    Some(changed) => held = changed,
                    // It is not known which grant the lease has now.
                    None => return,
                },
                2 if held.locks.len() > 1 => {
                    if let Some(lock) = held.locks.pop() {
                        self.release(&held, &lock, &key);
                    }
                }
                0..5 => {
                    let lock = held.locks.first().unwrap_or(&held.wish.lock).clone();
                    let call = Call::Renew {
                        lock: lock.clone(),
                        token: held.token,
                        ttl: None,
                    };
                    let reply = self.settle(&held, (&lock, &call), "renew", &key);
                    if reply.is_some_and(|reply| reply.status == 200) {
                        held.deadline = sent.after(held.ttl.span());
                    }
                }
                _ => self.show(&held),
            }
            let pause = Duration::from_millis(self.random.u64(10..150));
            if self.shared.stop.comes_within(pause) {
                break;
            }
        }
        if self.random.u8(0..8) > 0 {
            for lock in std::mem::take(&mut held.locks) {
                self.release(&held, &lock, &key);
            }
        }
    }

    /// An upgrade, or a downgrade, if it is not denied. Nothing if that is not known.
    fn change(&mut self, held: Held) -> Option<Held> {
        let wish = held.wish.changed()?;
        let wait = match wish.mode {
            LockMode::Upgrade => Duration::from_millis(self.random.u64(0..500)),
            _ => Duration::ZERO,
        };
        let under = Err((held.lease, held.key.as_str()));
        let Some((_, body)) = self.request(&held.client, &wish, under, wait).ok()? else {
            return Some(held);
        };
        Some(Held {
            token: number(&body)?,
            fence: token(&body)?,
            wish,
            ..held
        })
    }

    fn release(&mut self, held: &Held, lock: &LockName, key: &Value) {
        let call = Call::Release {
            lock: lock.clone(),
            token: held.token,
        };
        while BootClock.now() < held.deadline {
            let reply = self.settle(held, (lock, &call), "release", key);
            if reply.is_some_and(|reply| reply.status < 500) {
                return;
            }
        }
    }

    fn settle(
        &mut self,
        held: &Held,
        (lock, call): (&LockName, &Call),
        verb: &str,
        key: &Value,
    ) -> Option<Reply> {
        let path = format!("/v1/locks/{lock}/{verb}");
        let mut body = key.clone();
        body["fencing_token"] = held.token.get().into();
        let ended = |how| {
            Some(Answer::Ended {
                token: held.token,
                how,
            })
        };
        self.call(
            &held.client,
            call,
            &path,
            Some(&body),
            ANSWER,
            |reply| match (reply.status, reply.code()) {
                (200, _) if verb == "renew" => {
                    let told = token(&reply.body)?;
                    let own = told == held.fence;
                    let token = if own { held.token } else { told };
                    Some(Answer::Renewed { token })
                }
                (200, _) if reply.body["already_released"] == true => ended(Ending::Released),
                (200, _) => number(&reply.body).map(|token| Answer::Released { token }),
                (410, "expired") => ended(Ending::Expired),
                (410, "revoked") => ended(Ending::Revoked),
                (410, "superseded") => ended(Ending::Superseded),
                (409, "not_held") | (412, _) => Some(Answer::NotHeld),
                _ => None,
            },
        )
    }

    fn show(&mut self, held: &Held) {
        let lock = &held.wish.lock;
        let call = Call::Show { lock: lock.clone() };
        let path = format!("/v1/locks/{lock}");
        self.call(
            &held.client,
            &call,
            &path,
            None,
            ANSWER,
            |reply| match reply.status {
                // Readers, and the holders of permits.
                200 if !reply.body["readers"].as_array().is_none_or(Vec::is_empty) => {
                    Some(Answer::Denied)
                }
                200 if reply.body["holder"].is_null() => Some(Answer::Free),
                200 => holder(&reply.body["holder"]),
                _ => None,
            },
        );
    }

    /// Records a call and its answer. Without a clear answer the next call goes to another node, after a short pause.
    fn call(
        &mut self,
        client: &ClientId,
        call: &Call,
        path: &str,
        body: Option<&Value>,
        patience: Duration,
        answer: impl Fn(&Reply) -> Option<Answer>,
    ) -> Option<Reply> {
        let id = self.shared.next();
        let body = body.map(Value::to_string);
        if self.random.u8(0..8) == 0 {
            self.node = self.random.usize(0..self.shared.watched.addresses.len());
        }
        let address = self.shared.watched.addresses[self.node];
        self.shared.record(Event::Call {
            at: BootClock.now(),
            id,
            client: client.clone(),
            call: call.clone(),
        });
        let reply = ask(address, path, body.as_deref(), patience);
        let at = BootClock.now();
        let clear = reply.as_ref().and_then(answer);
        if let Some(answer) = clear {
            self.shared.record(Event::Answer { at, id, answer });
        } else {
            self.node = (self.node + 1) % self.shared.watched.addresses.len();
            self.shared.stop.comes_within(RETRY);
        }
        reply
    }
}

/// Leaves out answers that say nothing about a holder. While a lock is reserved for a waiter that has not come back since
/// a change of leader (R16), `held` names that waiter and the lock's last token. So `held` counts as unknown if its client
/// has asked for the lock, and had not been granted it when the question was sent.
fn without_orphans(events: Vec<Event>) -> Vec<Event> {
    let mut sent = BTreeMap::new();
    let mut asked = BTreeSet::new();
    let mut granted = BTreeMap::new();
    let mut kept = Vec::new();
    for event in events {
        match &event {
            Event::Call {
                at,
                id,
                client,
                call,
            } => {
                sent.insert(*id, (*at, client.clone()));
                if let Call::Acquire { .. } = call {
                    asked.insert(client.clone());
                }
            }
            Event::Answer {
                at,
                id,
                answer: Answer::Granted { token, .. },
            } => {
                if let Some((_, client)) = sent.get(id) {
                    granted.entry(client.clone()).or_insert((*token, *at));
                }
            }
            _ => {}
        }
        kept.push(event);
    }
    kept.retain(|event| match event {
        Event::Answer {
            id,
            answer: Answer::Held { token, holder },
            ..
        } => {
            let before = sent.get(id).map_or(Timestamp::ZERO, |(at, _)| *at);
            match granted.get(holder) {
                Some((own, back)) => own == token || *back < before,
                None => !asked.contains(holder),
            }
        }
        _ => true,
    });
    kept
}

/// How many grants of each kind there are in a history.
fn kinds(events: &[Event]) -> BTreeMap<&'static str, u64> {
    let mut asked = BTreeMap::new();
    let mut kinds = BTreeMap::new();
    for event in events {
        match event {
            Event::Call { id, call, .. } => drop(asked.insert(*id, call)),
            Event::Answer {
                id,
                answer: Answer::Granted { .. },
                ..
            } => {
                let kind = match asked.get(id) {
                    Some(call) if call.is_of_set() => "sets",
                    Some(Call::Acquire { mode, under, .. }) => match mode {
                        LockMode::Exclusive => "exclusive",
                        LockMode::Shared if under.is_some() => "downgrades",
                        LockMode::Shared => "readers",
                        LockMode::Update => "updates",
                        LockMode::Upgrade => "upgrades",
                        LockMode::Permits(_) => "permits",
                    },
                    _ => continue,
                };
                *kinds.entry(kind).or_default() += 1;
            }
            Event::Answer { .. } | Event::Away { .. } => {}
        }
    }
    kinds
}

/// How long an acquire is repeated beyond its wait.
const PATIENCE: Duration = Duration::from_secs(5);
