//! Observers: clients over plain HTTP whose calls and answers become a history for the history checker.
//!
//! They repeat a request with its id at the next node until it is answered, renew, show and release through any node,
//! and sometimes forget a grant. Their locks are few, so that they wait for one another. A call without a clear answer
//! stays without one in the history: its outcome is unknown.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::Duration;

use palisade_client::clock::{BootClock, Clock as _};
use palisade_core::{ClientId, Ending, LockMode, LockName, Slots, Timestamp, Token, Ttl};
use serde_json::{Value, json};

use super::http::{Reply, ask};
use super::{Observed, Watched, queue};
use crate::chaos::server::lock;
use crate::chaos::stop::Stop;
use crate::history::event::Expiry;
use crate::history::{Answer, Call, Event, Header, History, check};

const OBSERVERS: u64 = 8;
const LOCKS: usize = 6;
/// How many calls of all observers use the same names.
const EPOCH: u64 = 200;
const RETRY: Duration = Duration::from_millis(20);
/// How long an answer may take beyond the wait that was asked for.
pub(super) const ANSWER: Duration = Duration::from_secs(1);

/// Threads that work until they are ended.
pub(super) struct Observers {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// What all observers of a cluster share.
pub(super) struct Shared {
    pub(super) watched: Arc<Watched>,
    pub(super) stop: Stop,
    pub(super) queues: Mutex<queue::Count>,
    events: Mutex<Vec<Event>>,
    calls: Mutex<u64>,
}

impl Observers {
    pub(super) fn start(watched: &Arc<Watched>, seed: u64) -> Observers {
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
        let mut threads: Vec<_> = (0..OBSERVERS).map(observer).collect();
        let queues = Arc::clone(&shared);
        threads.push(std::thread::spawn(move || queue::run(&queues)));
        Observers { shared, threads }
    }

    /// Ends them and checks their history.
    pub(super) fn end(self) -> Observed {
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
    lock: LockName,
    client: ClientId,
    token: Token,
    key: String,
    ttl: Ttl,
    deadline: Timestamp,
}

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

    /// Asks for a lock under a client id and a request id of its own, at one node after the other, until an answer is
    /// clear or the patience is over.
    fn acquire(&mut self, count: u64) -> Option<Held> {
        // New names now and then: each leader change gives a forgotten lease its full time again.
        let epoch = *lock(&self.shared.calls) / EPOCH;
        let name = format!("seen-{epoch}-{}", self.random.usize(0..LOCKS));
        let lock = LockName::new(&name).ok()?;
        let client = ClientId::new(&format!("o{}-{count}", self.number)).ok()?;
        let ttl = Ttl::from_millis(self.random.u64(1_000..6_000)).ok()?;
        let request = format!("{:032x}", self.random.u128(..));
        let wait = Duration::from_millis(self.random.u64(0..1_500));
        let begun = BootClock.now();
        let call = Call::Acquire {
            lock: lock.clone(),
            ttl: Some(ttl),
            under: None,
            request: Some(request.clone().into()),
            also: Box::default(),
            mode: LockMode::Exclusive,
        };
        loop {
            let waited = BootClock.now().since(begun).to_duration();
            if waited > wait + PATIENCE || self.shared.stop.comes_within(Duration::ZERO) {
                return None;
            }
            let left = wait.saturating_sub(waited);
            let body = json!({
                "client_id": client.to_string(), "request_id": request, "lease_duration_ms": ttl.as_millis(),
                "wait_ms": left.as_millis() as u64,
            });
            let path = format!("/v1/locks/{lock}/acquire");
            let sent = BootClock.now();
            let reply = self.call(
                &client,
                &call,
                &path,
                Some(&body),
                left + ANSWER,
                |reply| match (reply.status, reply.code()) {
                    (200, _) => token(&reply.body).map(|token| Answer::Granted {
                        token,
                        lease: token,
                        phase: None,
                        slots: Slots::NONE,
                    }),
                    (409, "held") => holder(&reply.body["holder"]),
                    _ => None,
                },
            );
            match reply {
                Some(reply) if reply.status == 200 => {
                    return Some(Held {
                        lock,
                        client,
                        token: token(&reply.body)?,
                        key: reply.body["lock_token"].as_str()?.to_owned(),
                        ttl,
                        deadline: sent.after(ttl.span()),
                    });
                }
                Some(reply) if reply.status < 500 => return None,
                _ => {}
            }
        }
    }

    /// Renews and shows for a while, then releases, or forgets.
    fn hold(&mut self, mut held: Held) {
        let until = BootClock
            .now()
            .after(Duration::from_millis(self.random.u64(0..1_500)).into());
        let renew = json!({ "lock_token": held.key });
        while BootClock.now() < until.min(held.deadline) {
            let sent = BootClock.now();
            if self.random.bool() {
                let call = Call::Renew {
                    lock: held.lock.clone(),
                    token: held.token,
                    ttl: None,
                };
                let reply = self.settle(&held, &call, "renew", &renew);
                if reply.is_some_and(|reply| reply.status == 200) {
                    held.deadline = sent.after(held.ttl.span());
                }
            } else {
                self.show(&held);
            }
            let pause = Duration::from_millis(self.random.u64(10..150));
            self.shared.stop.comes_within(pause);
        }
        if self.random.u8(0..8) > 0 {
            let call = Call::Release {
                lock: held.lock.clone(),
                token: held.token,
            };
            while BootClock.now() < held.deadline {
                let reply = self.settle(&held, &call, "release", &renew);
                if reply.is_some_and(|reply| reply.status < 500) {
                    return;
                }
            }
        }
    }

    fn settle(&mut self, held: &Held, call: &Call, verb: &str, body: &Value) -> Option<Reply> {
        let path = format!("/v1/locks/{}/{verb}", held.lock);
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
            Some(body),
            ANSWER,
            |reply| match (reply.status, reply.code()) {
                (200, _) if verb == "renew" => {
                    token(&reply.body).map(|token| Answer::Renewed { token })
                }
                (200, _) if reply.body["already_released"] == true => ended(Ending::Released),
                (200, _) => token(&reply.body).map(|token| Answer::Released { token }),
                (410, "expired") => ended(Ending::Expired),
                (410, "revoked") => ended(Ending::Revoked),
                (410, "superseded") => ended(Ending::Superseded),
                (409, "not_held") | (412, _) => Some(Answer::NotHeld),
                _ => None,
            },
        )
    }

    fn show(&mut self, held: &Held) {
        let call = Call::Show {
            lock: held.lock.clone(),
        };
        let path = format!("/v1/locks/{}", held.lock);
        self.call(
            &held.client,
            &call,
            &path,
            None,
            ANSWER,
            |reply| match reply.status {
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

impl Shared {
    fn next(&self) -> u64 {
        let mut calls = lock(&self.calls);
        *calls += 1;
        *calls
    }

    fn record(&self, event: Event) {
        lock(&self.events).push(event);
    }

    /// How many faults have begun after which a connection says nothing.
    pub(super) fn silent(&self) -> u64 {
        self.watched.silent.load(Ordering::SeqCst)
    }
}

/// Leaves out what says nothing about a holder. While a lock is kept for a waiter that has not come back since a change
/// of leader (R16), `held` names that waiter and the lock's last token. So `held` counts as unknown if its client has
/// asked for the lock, and had not been granted it when the question was sent.
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

/// How long an acquire is repeated beyond its wait.
const PATIENCE: Duration = Duration::from_secs(5);

fn token(body: &Value) -> Option<Token> {
    Token::new(body["fencing_token"].as_u64()?).ok()
}

fn holder(body: &Value) -> Option<Answer> {
    Some(Answer::Held {
        token: token(body)?,
        holder: ClientId::new(body["client_id"].as_str()?).ok()?,
    })
}
