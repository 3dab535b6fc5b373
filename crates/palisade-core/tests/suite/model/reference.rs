//! The rules once more, as plainly as they can be written: lists that are searched from the front.
//!
//! Nothing here is shared with the machine but the types of questions and answers. There is one
//! concession to how the machine works: what nobody asks about ends at the next whole millisecond
//! ([`rung`]), what somebody asks about ends to the nanosecond.

use palisade_core::machine::Answered;
use palisade_core::{
    Acquire, Away, Change, ClientId, Command, Effect, Ending, Entry, Event, GrantRef, Granted,
    Holder, Invalid, LeaseId, LeaseKey, Limits, LockName, Outcome, QueueBound, Renewed, RequestId,
    Span, Timestamp, Token, Ttl, Under, WallTime,
};

/// A live lease.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Lease {
    pub(crate) key: LeaseKey,
    pub(crate) id: LeaseId,
    pub(crate) client: ClientId,
    pub(crate) ttl: Ttl,
    pub(crate) expires: Timestamp,
}

/// A live grant.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Grant {
    pub(crate) lock: LockName,
    pub(crate) token: Token,
    pub(crate) key: LeaseKey,
    client: ClientId,
    wall: WallTime,
}

/// A request in a queue. There is one list for all queues, in order of arrival.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Wait {
    pub(crate) request: RequestId,
    pub(crate) lock: LockName,
    client: ClientId,
    under: Under,
    since: Timestamp,
    pub(crate) deadline: Timestamp,
}

/// A grant that is over.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Over {
    pub(crate) key: LeaseKey,
    pub(crate) lock: LockName,
    pub(crate) token: Token,
    how: Ending,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Reference {
    /// The number of the next token; beyond the range when it is exhausted.
    pub(crate) next: u64,
    pub(crate) leases: Vec<Lease>,
    pub(crate) grants: Vec<Grant>,
    pub(crate) waits: Vec<Wait>,
    pub(crate) over: Vec<Over>,
    pub(crate) answers: Vec<Answered>,
    limits: Limits,
    revision: u64,
}

/// An entry being applied.
struct Now {
    at: Timestamp,
    wall: WallTime,
    effects: Vec<Effect>,
}

/// The end of the millisecond in which an instant lies; a whole millisecond is its own.
fn rung(instant: Timestamp) -> Timestamp {
    Timestamp::from_millis(instant.as_nanos().div_ceil(1_000_000))
}

impl Reference {
    pub(crate) fn new() -> Reference {
        Reference {
            next: 1,
            leases: Vec::new(),
            grants: Vec::new(),
            waits: Vec::new(),
            over: Vec::new(),
            answers: Vec::new(),
            limits: Limits::DEFAULT,
            revision: 0,
        }
    }

    /// What the machine should answer and cause. The entry's instant is not before the last one's.
    pub(crate) fn step(&mut self, entry: Entry) -> (Outcome, Vec<Effect>) {
        let mut now = Now {
            at: entry.at,
            wall: entry.wall,
            effects: Vec::new(),
        };
        if let Command::Grace(away) = entry.command {
            for lease in &mut self.leases {
                let quarter = lease.ttl.span().as_nanos() / 4;
                if !matches!(away, Away::Paused(pause) if pause.as_nanos() <= quarter) {
                    lease.expires = lease.expires.max(now.at.after(lease.ttl.span()));
                }
            }
            if away == Away::Restarted {
                self.waits.clear();
            }
            self.sweep(&mut now);
            return (Outcome::Done, now.effects);
        }
        self.sweep(&mut now);
        let outcome = self.command(entry.command, &mut now);
        (outcome, now.effects)
    }

    fn command(&mut self, command: Command, now: &mut Now) -> Outcome {
        match command {
            Command::Acquire(acquire) => self.acquire(acquire, now),
            Command::Renew { grant, ttl } => self.renew(&grant, ttl, now),
            Command::Release(named) => match self.live(&named, now) {
                Some(grant) => {
                    self.end(&grant, Ending::Released, None, now);
                    self.hand_on(&grant, now);
                    Outcome::Released { token: grant.token }
                }
                None => self.past(&named),
            },
            Command::Revoke {
                lock,
                token,
                reason,
            } => {
                self.touch_lock(&lock, now);
                match self.grant_on(&lock) {
                    None => Outcome::NotHeld,
                    Some(grant) if grant.token != token => Outcome::Stale {
                        highest: grant.token,
                    },
                    Some(grant) => {
                        self.end(&grant, Ending::Revoked, Some(reason), now);
                        self.hand_on(&grant, now);
                        Outcome::Revoked { token }
                    }
                }
            }
            Command::Withdraw(request) => {
                self.waits.retain(|wait| wait.request != request);
                Outcome::Done
            }
            Command::Abandon(request) => self.abandon(request, now),
            Command::Expire => Outcome::Done,
            Command::Grace(_) => unreachable!("handled before anything is swept"),
            Command::Leap { by } => {
                self.revision += by;
                self.next = self.next.saturating_add(by).min(Token::MAX.get() + 1);
                self.token()
                    .map_or(Outcome::TokensExhausted, |_| Outcome::Done)
            }
            Command::Configure(limits) => {
                self.limits = limits;
                Outcome::Done
            }
        }
    }

    fn token(&self) -> Option<Token> {
        Token::new(self.next).ok()
    }

    fn sweep(&mut self, now: &mut Now) {
        let mut late: Vec<Wait> = self.waits.clone();
        late.retain(|wait| rung(wait.deadline) <= now.at);
        late.sort_by_key(|wait| wait.deadline);
        for wait in late {
            self.waits.retain(|other| *other != wait);
            let holder = self.holder(&self.grant_on(&wait.lock).unwrap(), now);
            self.settle(wait, Outcome::Held(holder), now);
        }
        let mut dead: Vec<Lease> = self.leases.clone();
        dead.retain(|lease| rung(lease.expires) <= now.at);
        dead.sort_by_key(|lease| (lease.expires, lease.id));
        for lease in dead {
            self.expire(&lease.key, now);
        }
    }

    fn expire(&mut self, key: &LeaseKey, now: &mut Now) {
        let mut grants = self.grants.clone();
        grants.retain(|grant| grant.key == *key);
        grants.sort_by_key(|grant| grant.token);
        for grant in grants {
            self.end(&grant, Ending::Expired, None, now);
            self.hand_on(&grant, now);
        }
    }

    fn touch_lease(&mut self, key: &LeaseKey, now: &mut Now) {
        if self.lease(key).is_some_and(|lease| lease.expires <= now.at) {
            self.expire(key, now);
        }
    }

    fn touch_lock(&mut self, lock: &LockName, now: &mut Now) {
        if let Some(grant) = self.grant_on(lock) {
            self.touch_lease(&grant.key, now);
        }
    }

    fn acquire(&mut self, acquire: Acquire, now: &mut Now) -> Outcome {
        let Some(request) = acquire.request else {
            return self.decide(&acquire, now);
        };
        if let Some(wait) = self.waits.iter_mut().find(|wait| wait.request == request) {
            if (&wait.lock, &wait.client) != (&acquire.lock, &acquire.client) {
                return Outcome::Invalid(Invalid::RequestReused);
            }
            wait.since = now.at;
            return Outcome::Queued;
        }
        if let Some(known) = self.answer_to(&request) {
            return self.first_answer(known, &acquire, now);
        }
        let outcome = self.decide(&acquire, now);
        if !matches!(outcome, Outcome::Queued | Outcome::Invalid(_)) {
            self.remember(request, Some(acquire.lock), outcome.clone());
        }
        outcome
    }

    fn first_answer(&mut self, known: Answered, acquire: &Acquire, now: &mut Now) -> Outcome {
        if known.lock.is_some_and(|lock| lock != acquire.lock) {
            return Outcome::Invalid(Invalid::RequestReused);
        }
        let Outcome::Granted(first) = known.outcome else {
            return known.outcome;
        };
        let named = GrantRef {
            lock: acquire.lock.clone(),
            key: first.key,
            token: Some(first.token),
        };
        match self.live(&named, now) {
            None => self.past(&named),
            Some(grant) if grant.client != acquire.client => {
                Outcome::Invalid(Invalid::RequestReused)
            }
            Some(grant) => Outcome::Granted(self.granted(&grant, Span::ZERO, now)),
        }
    }

    fn decide(&mut self, acquire: &Acquire, now: &mut Now) -> Outcome {
        if let Under::New { ttl, .. } = acquire.under
            && let Some(invalid) = self.refused(ttl)
        {
            return invalid;
        }
        self.touch_lock(&acquire.lock, now);
        let (Under::New { key, .. } | Under::Existing { key, .. }) = acquire.under;
        self.touch_lease(&key, now);
        if let Some(wrong) = self.wrong_lease(&acquire.lock, &acquire.client, &acquire.under, now) {
            return wrong;
        }
        let Some(grant) = self.grant_on(&acquire.lock) else {
            if self.grants.len() >= self.limits.locks as usize {
                return Outcome::TooManyLocks {
                    max: self.limits.locks,
                };
            }
            return self.grant(
                &acquire.lock,
                &acquire.client,
                &acquire.under,
                Span::ZERO,
                now,
            );
        };
        if grant.key == key {
            return Outcome::Granted(self.granted(&grant, Span::ZERO, now));
        }
        if grant.client == acquire.client {
            if self.token().is_none() {
                return Outcome::TokensExhausted;
            }
            self.end(&grant, Ending::Superseded, None, now);
            return self.grant(
                &acquire.lock,
                &acquire.client,
                &acquire.under,
                Span::ZERO,
                now,
            );
        }
        let (Some(wait), Some(request)) = (acquire.wait, acquire.request) else {
            return Outcome::Held(self.holder(&grant, now));
        };
        if wait == Span::ZERO {
            return Outcome::Held(self.holder(&grant, now));
        }
        let for_lock = self
            .waits
            .iter()
            .filter(|other| other.lock == acquire.lock)
            .count();
        let of_client = self
            .waits
            .iter()
            .filter(|other| other.client == acquire.client)
            .count();
        let Limits {
            waiters_per_lock,
            waiters_per_client,
            ..
        } = self.limits;
        if for_lock >= waiters_per_lock as usize {
            return Outcome::QueueFull(QueueBound::Lock {
                max: waiters_per_lock,
            });
        }
        if of_client >= waiters_per_client as usize {
            return Outcome::QueueFull(QueueBound::Client {
                max: waiters_per_client,
            });
        }
        let under = match acquire.under {
            Under::Existing { key, .. } => Under::Existing { key, ttl: None },
            Under::New { key, ttl } => Under::New { key, ttl },
        };
        self.waits.push(Wait {
            request,
            lock: acquire.lock.clone(),
            client: acquire.client.clone(),
            under,
            since: now.at,
            deadline: now.at.after(wait),
        });
        Outcome::Queued
    }

    fn renew(&mut self, named: &GrantRef, ttl: Option<Ttl>, now: &mut Now) -> Outcome {
        if let Some(invalid) = ttl.and_then(|ttl| self.refused(ttl)) {
            return invalid;
        }
        let Some(grant) = self.live(named, now) else {
            return self.past(named);
        };
        let lease = self
            .leases
            .iter_mut()
            .find(|lease| lease.key == grant.key)
            .unwrap();
        lease.ttl = ttl.unwrap_or(lease.ttl);
        lease.expires = lease.expires.max(now.at.after(lease.ttl.span()));
        let valid_for = lease.expires.since(now.at);
        Outcome::Renewed(Renewed {
            token: grant.token,
            ttl: lease.ttl,
            valid_for,
        })
    }

    fn abandon(&mut self, request: RequestId, now: &mut Now) -> Outcome {
        if let Some(at) = self.waits.iter().position(|wait| wait.request == request) {
            let wait = self.waits.remove(at);
            self.settle(wait, Outcome::Abandoned, now);
            return Outcome::Done;
        }
        let known = self.answer_to(&request);
        let lock = known.as_ref().and_then(|known| known.lock.clone());
        if let (Some(Outcome::Granted(first)), Some(lock)) =
            (known.map(|known| known.outcome), &lock)
            && let Some(grant) = self.grant_on(lock)
            && (grant.key, grant.token) == (first.key, first.token)
            && self.lease(&grant.key).unwrap().expires > now.at
        {
            self.end(&grant, Ending::Released, None, now);
            self.hand_on(&grant, now);
        }
        self.remember(request, lock, Outcome::Abandoned);
        Outcome::Done
    }

    /// Grants a free lock under a lease that is good.
    fn grant(
        &mut self,
        lock: &LockName,
        client: &ClientId,
        under: &Under,
        waited: Span,
        now: &mut Now,
    ) -> Outcome {
        let Some(token) = self.token() else {
            return Outcome::TokensExhausted;
        };
        self.next += 1;
        let key = match *under {
            Under::Existing { key, .. } => key,
            Under::New { key, ttl } => {
                let (id, expires) = (LeaseId(token), now.at.after(ttl.span()));
                self.leases.push(Lease {
                    key,
                    id,
                    client: client.clone(),
                    ttl,
                    expires,
                });
                key
            }
        };
        let (client, wall) = (client.clone(), now.wall);
        let grant = Grant {
            lock: lock.clone(),
            token,
            key,
            client,
            wall,
        };
        self.grants.push(grant.clone());
        let ttl = self.lease(&key).unwrap().ttl;
        self.event(&grant, Change::Granted { ttl }, now);
        Outcome::Granted(self.granted(&grant, waited, now))
    }

    fn end(&mut self, grant: &Grant, how: Ending, reason: Option<Box<str>>, now: &mut Now) {
        self.event(grant, Change::Ended { how, reason }, now);
        let Grant {
            key, lock, token, ..
        } = grant.clone();
        self.over.push(Over {
            key,
            lock,
            token,
            how,
        });
        self.grants.retain(|other| other != grant);
        // Superseded under one and the same lease is a repeat and never comes here, so a lease that
        // has no grant left is over.
        if !self.grants.iter().any(|other| other.key == grant.key) {
            self.leases.retain(|lease| lease.key != grant.key);
        }
    }

    /// Gives the lock of a grant that just ended to whoever is first and still there.
    fn hand_on(&mut self, last: &Grant, now: &mut Now) {
        while let Some(at) = self.waits.iter().position(|wait| wait.lock == last.lock) {
            let wait = self.waits.remove(at);
            let outcome = if wait.deadline <= now.at {
                let (client, token) = (last.client.clone(), last.token);
                Outcome::Held(Holder {
                    client,
                    token,
                    remaining: Span::ZERO,
                })
            } else if let Some(wrong) = self.wrong_lease(&wait.lock, &wait.client, &wait.under, now)
            {
                wrong
            } else {
                let waited = now.at.since(wait.since);
                self.grant(&wait.lock, &wait.client, &wait.under, waited, now)
            };
            let granted = matches!(outcome, Outcome::Granted(_));
            self.settle(wait, outcome, now);
            if granted {
                return;
            }
        }
    }

    /// What is wrong with the lease a request wants its grant under.
    fn wrong_lease(
        &self,
        lock: &LockName,
        client: &ClientId,
        under: &Under,
        now: &Now,
    ) -> Option<Outcome> {
        match *under {
            Under::New { key, .. } => self
                .lease(&key)
                .map(|_| Outcome::Invalid(Invalid::LeaseKeyInUse)),
            Under::Existing { key, ttl } => match self.lease(&key) {
                Some(lease) if lease.expires > now.at => {
                    if lease.client != *client {
                        return Some(Outcome::NotHeld);
                    }
                    let differs = ttl.is_some_and(|ttl| ttl != lease.ttl);
                    differs.then_some(Outcome::Invalid(Invalid::TtlDiffers { lease: lease.ttl }))
                }
                _ => {
                    let mut over = self.over.iter().rev().filter(|over| over.key == key);
                    let of_lock = over.clone().find(|over| over.lock == *lock);
                    let known = of_lock.or_else(|| over.next());
                    Some(known.map_or(Outcome::NotHeld, ended))
                }
            },
        }
    }

    /// The grant named, if that very one is live; its lock is looked at, so it ends to the nanosecond.
    fn live(&mut self, named: &GrantRef, now: &mut Now) -> Option<Grant> {
        self.touch_lock(&named.lock, now);
        let grant = self.grant_on(&named.lock)?;
        let meant = named.token.is_none_or(|token| token == grant.token);
        (meant && named.key == grant.key).then_some(grant)
    }

    /// The newest ending of that lease's grants on that lock, if it is the one meant.
    fn past(&self, named: &GrantRef) -> Outcome {
        let mut over = self.over.iter().rev();
        let meant = over.find(|over| {
            over.key == named.key
                && over.lock == named.lock
                && named.token.is_none_or(|token| token == over.token)
        });
        meant.map_or(Outcome::NotHeld, ended)
    }

    fn refused(&self, ttl: Ttl) -> Option<Outcome> {
        let (min, max) = (self.limits.min_ttl, self.limits.max_ttl);
        let invalid = Invalid::Ttl {
            given_ms: ttl.as_millis().into(),
            min,
            max,
        };
        (ttl < min || ttl > max).then_some(Outcome::Invalid(invalid))
    }

    pub(crate) fn lease(&self, key: &LeaseKey) -> Option<Lease> {
        self.leases.iter().find(|lease| lease.key == *key).cloned()
    }

    fn grant_on(&self, lock: &LockName) -> Option<Grant> {
        self.grants
            .iter()
            .find(|grant| grant.lock == *lock)
            .cloned()
    }

    fn answer_to(&self, request: &RequestId) -> Option<Answered> {
        self.answers
            .iter()
            .find(|known| known.request == *request)
            .cloned()
    }

    fn remember(&mut self, request: RequestId, lock: Option<LockName>, outcome: Outcome) {
        self.answers.retain(|known| known.request != request);
        self.answers.push(Answered {
            request,
            lock,
            outcome,
        });
    }

    fn settle(&mut self, wait: Wait, outcome: Outcome, now: &mut Now) {
        let request = wait.request;
        if !matches!(outcome, Outcome::Invalid(_)) {
            self.remember(request, Some(wait.lock), outcome.clone());
        }
        now.effects.push(Effect::Settled { request, outcome });
    }

    fn holder(&self, grant: &Grant, now: &Now) -> Holder {
        let lease = self.lease(&grant.key).unwrap();
        Holder {
            client: lease.client,
            token: grant.token,
            remaining: lease.expires.since(now.at),
        }
    }

    fn granted(&self, grant: &Grant, waited: Span, now: &Now) -> Granted {
        let lease = self.lease(&grant.key).unwrap();
        Granted {
            token: grant.token,
            lease: lease.id,
            key: lease.key,
            ttl: lease.ttl,
            valid_for: waited.plus(lease.expires.since(now.at)),
            waited,
            acquired_at: grant.wall,
        }
    }

    fn event(&mut self, grant: &Grant, change: Change, now: &mut Now) {
        self.revision += 1;
        now.effects.push(Effect::Event(Event {
            revision: self.revision,
            at: now.at,
            lock: grant.lock.clone(),
            client: grant.client.clone(),
            token: grant.token,
            change,
        }));
    }
}

fn ended(over: &Over) -> Outcome {
    Outcome::Ended {
        token: over.token,
        how: over.how,
    }
}
