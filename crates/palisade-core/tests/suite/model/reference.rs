// long file: the rules in one place, so that they are read from the first to the last
//! The rules once more, as plainly as they can be written: lists that are searched from the front.
//!
//! Nothing here is shared with the machine but the types of questions and answers. There is one concession to how the
//! machine works. Leases and waits that nobody asks about end at the next whole millisecond ([`rung`]), and only a bounded
//! number of them in one entry. If somebody asks, they end to the nanosecond.

use palisade_core::machine::{Answered, Expiry};
use std::collections::{BTreeMap, BTreeSet, VecDeque};

use palisade_core::{
    Acquire, Ahead, Away, Change, ClientId, Command, Delayed, Detail, Effect, Ending, Entry, Event,
    GrantId, GrantOptions, GrantRef, Granted, Holder, Invalid, LeaseId, LeaseKey, Limits, LockMode,
    LockName, Others, Outcome, Permits, Principal, QueueBound, Renewed, RequestId, Slots, Span,
    Timestamp, Token, Ttl, Under, WallTime,
};

/// A live lease.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Lease {
    pub(crate) by: Principal,
    pub(crate) key: LeaseKey,
    pub(crate) id: LeaseId,
    pub(crate) client: ClientId,
    pub(crate) ttl: Ttl,
    pub(crate) expires: Timestamp,
    /// How far it may be extended, if it was since its last renewal.
    limit: Option<Timestamp>,
}

/// A live grant.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Grant {
    pub(crate) lock: LockName,
    pub(crate) token: Token,
    pub(crate) key: LeaseKey,
    by: Principal,
    pub(crate) client: ClientId,
    wall: WallTime,
    /// For a reader, the token of its phase, which is its fencing token. For permits, the first number of the holders that
    /// have had the semaphore without a gap.
    phase: Option<Token>,
    /// A reader that may become the writer.
    pub(crate) update: bool,
    slots: Slots,
    options: GrantOptions,
    /// Nobody else is granted before this.
    reserved: Option<Timestamp>,
    /// The reservations of the grants that it superseded.
    inherited: Option<Timestamp>,
    /// The value that the holder gives about itself.
    says: Option<Box<str>>,
}

impl Grant {
    fn fencing(&self) -> Token {
        match self.phase {
            Some(phase) if self.slots.is_empty() => phase,
            _ => self.token,
        }
    }

    fn id(&self) -> Option<GrantId> {
        let reads = self.phase.is_some() && self.slots.is_empty();
        reads.then_some(GrantId(self.token))
    }
}

/// A request in a queue. There is one list for all queues, in order of arrival except for upgrades, which are at its head.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Wait {
    pub(crate) by: Principal,
    pub(crate) request: RequestId,
    pub(crate) lock: LockName,
    /// The other locks of a set. The set is still one line of the list, and in the queue of each lock.
    pub(crate) also: Vec<LockName>,
    pub(crate) client: ClientId,
    pub(crate) mode: LockMode,
    pub(crate) under: Under,
    options: GrantOptions,
    says: Option<Box<str>>,
    since: Timestamp,
    deadline: Timestamp,
    /// Until when an orphan's place is reserved.
    orphan: Option<Timestamp>,
    /// How many came before it.
    arrival: usize,
}

impl Wait {
    /// Whether it is in this lock's queue.
    fn wants(&self, lock: &LockName) -> bool {
        self.lock == *lock || self.also.contains(lock)
    }

    /// The request once more, as its caller would send it now.
    pub(crate) fn again(&self, at: Timestamp) -> Acquire {
        Acquire {
            also: self.also.iter().cloned().collect(),
            mode: self.mode,
            wait: Some(self.deadline.since(at)),
            metadata: self.says.clone(),
            options: self.options,
            ..Acquire::new(
                self.lock.clone(),
                self.client.clone(),
                self.under,
                Some(self.request),
            )
        }
    }

    fn locks(&self) -> Vec<LockName> {
        [std::slice::from_ref(&self.lock), &self.also[..]].concat()
    }

    /// Whether it is not granted any more; an orphan's place is lost at the very end of its window.
    fn is_over(&self, now: &Now) -> bool {
        match self.orphan {
            Some(until) => until <= now.at,
            None => self.deadline < now.at,
        }
    }

    /// When it leaves the queue if nothing else happens.
    pub(crate) fn ends(&self) -> Timestamp {
        self.orphan.unwrap_or(self.deadline)
    }
}

/// A lock that nobody holds and nobody is granted.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Closed {
    lock: LockName,
    last: Token,
    pub(crate) until: Timestamp,
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
    /// The next token at the last restore.
    restored: Option<Token>,
    pub(crate) leases: Vec<Lease>,
    pub(crate) grants: Vec<Grant>,
    pub(crate) waits: Vec<Wait>,
    arrivals: usize,
    /// Locks that nobody holds and an orphan or a set is first for, each with its last token; or the newest of all, if it
    /// was free when the set came.
    kept: BTreeMap<LockName, Token>,
    pub(crate) closed: Vec<Closed>,
    /// How many permits locks had when they were last a semaphore; counts while they are in use.
    sizes: Vec<(LockName, u32)>,
    pub(crate) over: Vec<Over>,
    pub(crate) answers: Vec<Answered>,
    limits: Limits,
    revision: u64,
    expiry: Expiry,
    /// The instant of the last entry.
    pub(crate) last: Timestamp,
}

/// The fields of a request.
#[derive(Clone, Copy)]
struct Wanted<'a> {
    by: Principal,
    lock: &'a LockName,
    also: &'a [LockName],
    client: &'a ClientId,
    mode: LockMode,
    under: &'a Under,
    options: GrantOptions,
    says: Option<&'a str>,
}

impl Wanted<'_> {
    fn by(by: Principal, acquire: &Acquire) -> Wanted<'_> {
        Wanted {
            by,
            lock: &acquire.lock,
            also: &acquire.also,
            client: &acquire.client,
            mode: acquire.mode,
            under: &acquire.under,
            options: acquire.options,
            says: acquire.metadata.as_deref(),
        }
    }

    fn of(wait: &Wait) -> Wanted<'_> {
        Wanted {
            by: wait.by,
            lock: &wait.lock,
            also: &wait.also,
            client: &wait.client,
            mode: wait.mode,
            under: &wait.under,
            options: wait.options,
            says: wait.says.as_deref(),
        }
    }

    fn key(&self) -> LeaseKey {
        let (Under::New { key, .. } | Under::Existing { key, .. }) = *self.under;
        key
    }
}

/// An entry being applied.
struct Now {
    at: Timestamp,
    by: Principal,
    wall: WallTime,
    effects: Vec<Effect>,
    /// Grants that ended and requests that were settled.
    ended: u32,
    /// Locks that sets have left, each with the answer for a request that is over; looked at one after the other.
    left: VecDeque<(LockName, Outcome)>,
}

/// The end of the millisecond in which an instant lies; a whole millisecond is its own.
fn rung(instant: Timestamp) -> Timestamp {
    Timestamp::from_millis(instant.as_nanos().div_ceil(1_000_000))
}

impl Reference {
    pub(crate) fn new(expiry: Expiry) -> Reference {
        Reference {
            next: 1,
            restored: None,
            leases: Vec::new(),
            grants: Vec::new(),
            waits: Vec::new(),
            arrivals: 0,
            kept: BTreeMap::new(),
            closed: Vec::new(),
            sizes: Vec::new(),
            over: Vec::new(),
            answers: Vec::new(),
            limits: Limits::DEFAULT,
            revision: 0,
            expiry,
            last: Timestamp::ZERO,
        }
    }

    /// The answer and the effects that the machine should have. The entry's instant is not before the last one's.
    pub(crate) fn step(&mut self, entry: Entry) -> (Outcome, Vec<Effect>) {
        let mut now = Now {
            at: entry.at,
            by: entry.by,
            wall: entry.wall,
            effects: Vec::new(),
            ended: 0,
            left: VecDeque::new(),
        };
        let last = std::mem::replace(&mut self.last, entry.at);
        if let Command::Grace(away) = entry.command {
            for lease in &mut self.leases {
                let quarter = lease.ttl.span().as_nanos() / 4;
                let told = self.over.iter().any(|over| {
                    over.key == lease.key && over.token >= lease.id.0 && over.how == Ending::Expired
                });
                if rung(lease.expires) <= last || (told && lease.expires <= now.at) {
                    continue;
                }
                let borne = |pause: Span| pause.as_nanos() <= quarter.min(499_999_999);
                if matches!(away, Away::Paused(pause) if borne(pause)) {
                    continue;
                }
                // Twice its time since its last renewal, and its own absences beside that.
                let absent = match away {
                    Away::Paused(span) | Away::Down(span) => span,
                    _ => Span::ZERO,
                };
                let limit = lease.limit.unwrap_or(lease.expires.after(lease.ttl.span()));
                let limit = limit.after(absent);
                let until = now.at.after(lease.ttl.span()).min(limit);
                if until > lease.expires || lease.limit.is_some() {
                    lease.limit = Some(limit);
                }
                lease.expires = lease.expires.max(until);
            }
            match away {
                Away::Restarted | Away::Down(_) | Away::Restored => {
                    self.waits.clear();
                    self.kept.clear();
                    if away == Away::Restored {
                        self.restored = self.token();
                    }
                }
                Away::Led => {
                    let open = self
                        .waits
                        .iter_mut()
                        .filter(|wait| rung(wait.ends()) > last);
                    let window = now.at.after(Span::from_millis(2_000));
                    open.for_each(|wait| wait.orphan = Some(window.min(wait.deadline)));
                }
                Away::Paused(_) => {}
            }
            self.sweep(true, &mut now);
            self.settle_rest(&mut now);
            return (Outcome::Done, now.effects);
        }
        self.sweep(entry.command == Command::Expire, &mut now);
        self.settle_rest(&mut now);
        let asked = match &entry.command {
            Command::Acquire(acquire) => acquire.request,
            _ => None,
        };
        let before = now.effects.len();
        let mut outcome = self.command(entry.command, &mut now);
        self.settle_rest(&mut now);
        if outcome == Outcome::Queued {
            // A request that waited for a moment gets its answer by itself.
            let its = now.effects[before..].iter().position(|effect| {
                matches!(effect, Effect::Settled { by, request, .. }
                    if (*by, Some(*request)) == (now.by, asked))
            });
            if let Some(at) = its
                && let Effect::Settled { outcome: its, .. } = now.effects.remove(before + at)
            {
                outcome = its;
            }
        }
        (outcome, now.effects)
    }

    /// Requests leave if their leases have ended. Then sets are granted or refused if only their own clients block them: the
    /// oldest first.
    fn settle_rest(&mut self, now: &mut Now) {
        loop {
            let bereaved = |wait: &&Wait| match wait.under {
                Under::New { .. } => false,
                Under::Existing { key, .. } => self.lease(&key).is_none(),
            };
            let bereaved = self.waits.iter().filter(bereaved);
            if let Some(wait) = bereaved.min_by_key(|wait| wait.arrival).cloned() {
                let over = self.wrong_lease(Wanted::of(&wait), now);
                self.leave(&wait, over.filter(|_| wait.orphan.is_none()), now);
                continue;
            }
            let ready = self.waits.iter().filter(|wait| {
                wait.orphan.is_none()
                    && !wait.is_over(now)
                    && !wait.also.is_empty()
                    && self.is_ready(wait, now)
            });
            let Some(wait) = ready.min_by_key(|wait| wait.arrival).cloned() else {
                return;
            };
            let told = self.told(&wait.lock, now);
            self.turn_of(wait, &told, None, now);
            self.hand_on_what_is_left(now);
        }
    }

    fn command(&mut self, command: Command, now: &mut Now) -> Outcome {
        match command {
            Command::Acquire(acquire) => self.acquire(acquire, now),
            Command::Renew { grant, ttl } => self.renew(&grant, ttl, now),
            Command::Proclaim { grant, value } => self.proclaim(&grant, value, now),
            Command::Release(named) => match self.live(&named, now) {
                Some(grant) if !may_use(&grant, now) => {
                    Outcome::WrongPrincipal { lock: named.lock }
                }
                Some(grant) => {
                    let delayed = self.closed_after(&grant, Ending::Released, now);
                    self.end_and_hand_on(&grant, Ending::Released, None, now);
                    Outcome::Released {
                        token: grant.token,
                        delayed: delayed.map(|until| until.since(now.at)),
                    }
                }
                None => self.missing(&named, now),
            },
            Command::Revoke {
                lock,
                token,
                reason,
            } => {
                self.touch_lock(&lock, now);
                let mut holders = self.holders(&lock);
                let named = holders.iter().position(|grant| grant.token == token);
                match named.map(|at| holders.remove(at)) {
                    None => holders
                        .last()
                        .map_or(Outcome::NotHeld, |held| Outcome::Stale {
                            named: token,
                            highest: held.fencing(),
                        }),
                    Some(grant) => {
                        self.end_and_hand_on(&grant, Ending::Revoked, Some(reason), now);
                        Outcome::Revoked { token }
                    }
                }
            }
            Command::Withdraw(request) => {
                if let Some(wait) = self.waiting(now.by, &request) {
                    self.leave(&wait, None, now);
                }
                Outcome::Done
            }
            Command::Orphan(request) => {
                let window = now.at.after(Span::from_millis(2_000));
                let mut waits = self.waits.iter_mut();
                let its = waits.find(|wait| (wait.by, wait.request) == (now.by, request));
                if let Some(wait) = its.filter(|wait| wait.orphan.is_none()) {
                    wait.orphan = Some(window.min(wait.deadline));
                }
                Outcome::Done
            }
            Command::Abandon(request) => self.abandon(request, now),
            Command::Open { lock, reason } => {
                self.touch_lock(&lock, now);
                let closed = self.closed.iter().position(|closed| closed.lock == lock);
                match closed {
                    None => Outcome::NotHeld,
                    Some(at) => {
                        let told = self.told(&lock, now);
                        let Closed { lock, last, .. } = self.closed.remove(at);
                        self.opened(&lock, last, reason, now);
                        self.kept.insert(lock.clone(), last);
                        self.hand_on(&lock, &told, now);
                        Outcome::Done
                    }
                }
            }
            Command::Resize { lock, permits } => self.resize(&lock, permits, now),
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

    fn sweep(&mut self, alone: bool, now: &mut Now) {
        let most = if alone {
            self.expiry.alone
        } else {
            self.expiry.beside
        };
        while now.ended < most {
            let leases = self.leases.iter();
            let lease = leases.filter(|lease| rung(lease.expires) <= now.at);
            let lease = lease.min_by_key(|lease| (lease.expires, lease.id)).cloned();
            let closed = self.closed.iter();
            let closed = closed.filter(|closed| closed.until <= now.at);
            let closed = closed.min_by_key(|closed| (closed.until, closed.last));
            let closed = closed.cloned();
            let waits = self.waits.iter();
            let wait = waits.filter(|wait| rung(wait.ends()) <= now.at);
            let wait = wait.min_by_key(|wait| (wait.ends(), wait.arrival)).cloned();
            // At equal instants: leases, openings, waits.
            let instants = [
                lease.as_ref().map(|lease| lease.expires),
                closed.as_ref().map(|closed| closed.until),
                wait.as_ref().map(|wait| wait.ends()),
            ];
            let Some(first) = instants.iter().flatten().min() else {
                return;
            };
            if let Some(lease) = lease.filter(|lease| lease.expires == *first) {
                let grants = self.grants.iter();
                let its = grants.filter(|grant| grant.key == lease.key);
                let oldest = its.min_by_key(|grant| grant.token).cloned().unwrap();
                self.end_and_hand_on(&oldest, Ending::Expired, None, now);
            } else if let Some(closed) = closed.filter(|closed| closed.until == *first) {
                self.hand_on(&closed.lock, &self.told(&closed.lock, now), now);
            } else if let Some(wait) = wait {
                let held = self.told(&self.blocks(&wait, now), now);
                self.leave(&wait, Some(held).filter(|_| wait.orphan.is_none()), now);
            }
        }
    }

    /// Until when a lock is closed after a grant that ends now.
    fn closed_after(&self, grant: &Grant, how: Ending, now: &Now) -> Option<Timestamp> {
        let delayed = match how {
            Ending::Superseded => return None,
            Ending::Released => None,
            Ending::Expired => Some(self.lease(&grant.key).unwrap().expires),
            Ending::Revoked => Some(now.at),
        };
        let delayed = delayed.filter(|_| grant.options.lock_delay() > Span::ZERO);
        let delayed = delayed.map(|from| from.after(grant.options.lock_delay()));
        [delayed, grant.reserved]
            .into_iter()
            .flatten()
            .filter(|until| *until > now.at)
            .max()
    }

    fn touch_lock(&mut self, lock: &LockName, now: &mut Now) {
        if self.is_kept(lock) {
            self.hand_on(lock, &self.told(lock, now), now);
        }
        if !self.readers(lock).is_empty() {
            return self.touch_readers(lock, now);
        }
        let Some(grant) = self.writer(lock) else {
            return;
        };
        if self.lease(&grant.key).unwrap().expires <= now.at {
            self.end_and_hand_on(&grant, Ending::Expired, None, now);
        }
    }

    /// The oldest readers that have leases over, as many as an entry may end beside its command.
    fn touch_readers(&mut self, lock: &LockName, now: &mut Now) {
        let most = self.expiry.beside;
        if self.size(lock).is_some() {
            let mut over = self.readers(lock);
            over.retain(|grant| self.lease(&grant.key).unwrap().expires <= now.at);
            if !over.is_empty() {
                return over
                    .iter()
                    .for_each(|grant| self.end_and_hand_on(grant, Ending::Expired, None, now));
            }
            return self.hand_on(lock, &self.told(lock, now), now);
        }
        for _ in 0..most {
            let readers = self.readers(lock);
            if readers.is_empty() || self.lease(&readers[0].key).unwrap().expires > now.at {
                break;
            }
            self.end_and_hand_on(&readers[0], Ending::Expired, None, now);
            if readers.len() == 1 {
                return;
            }
        }
        if self.writer(lock).is_none() {
            self.hand_on(lock, &self.told(lock, now), now);
        }
    }

    fn acquire(&mut self, acquire: Acquire, now: &mut Now) -> Outcome {
        let Some(request) = acquire.request else {
            return self.decide(&acquire, now);
        };
        if let Some(wait) = self.waiting(now.by, &request) {
            if (&wait.lock, &wait.client, wait.mode)
                != (&acquire.lock, &acquire.client, acquire.mode)
                || wait.also[..] != acquire.also[..]
            {
                return Outcome::Invalid(Invalid::RequestReused);
            }
            if wait.orphan.is_none_or(|until| until > now.at) {
                return self.rejoin(wait, now);
            }
            self.leave(&wait, None, now);
        }
        if let Some(known) = self.answer_to(now.by, &request) {
            return self.first_answer(known, &acquire, now);
        }
        let outcome = self.decide(&acquire, now);
        if !matches!(
            outcome,
            Outcome::Queued | Outcome::Invalid(_) | Outcome::WrongPrincipal { .. }
        ) {
            self.remember(
                now.by,
                request,
                Some(acquire.lock),
                acquire.also,
                outcome.clone(),
            );
        }
        outcome
    }

    fn first_answer(&mut self, known: Answered, acquire: &Acquire, now: &mut Now) -> Outcome {
        if known
            .lock
            .is_some_and(|lock| lock != acquire.lock || known.also != acquire.also)
        {
            return Outcome::Invalid(Invalid::RequestReused);
        }
        let Outcome::Granted(first) = known.outcome else {
            return known.outcome;
        };
        let wanted = acquire.mode.permits().map_or(0, Permits::wanted);
        if first.shared.is_some() != acquire.mode.is_shared() || first.slots.count() != wanted {
            return Outcome::Invalid(Invalid::RequestReused);
        }
        let named = GrantRef {
            lock: acquire.lock.clone(),
            key: first.key,
            token: Some(first.number()),
        };
        match self.live(&named, now) {
            None => self.missing(&named, now),
            Some(grant) if grant.client != acquire.client => {
                Outcome::Invalid(Invalid::RequestReused)
            }
            Some(grant)
                if grant.phase.is_some() && grant.update != (acquire.mode == LockMode::Update) =>
            {
                Outcome::Invalid(Invalid::RequestReused)
            }
            Some(grant) => {
                let granted = Outcome::Granted(self.granted(&grant, Span::ZERO, now));
                for lock in &*acquire.also {
                    let lock = lock.clone();
                    let named = GrantRef {
                        lock,
                        ..named.clone()
                    };
                    if self.live(&named, now).is_none() {
                        return self.missing(&named, now);
                    }
                }
                granted
            }
        }
    }

    /// Several locks at once: all of them or none.
    fn decide_set(&mut self, acquire: &Acquire, now: &mut Now) -> Outcome {
        let names: Vec<LockName> = acquire.locks().cloned().collect();
        for pair in names.windows(2) {
            let lock = pair[1].clone();
            if pair[0] == pair[1] {
                return Outcome::Invalid(Invalid::SetTwice { lock });
            }
            if pair[0] > pair[1] {
                return Outcome::Invalid(Invalid::SetOrder { lock });
            }
        }
        if acquire.mode != LockMode::Exclusive || acquire.options != GrantOptions::NONE {
            return Outcome::Invalid(Invalid::SetMode);
        }
        if let Under::New { ttl, .. } = acquire.under
            && let Some(invalid) = self.refused(ttl)
        {
            return invalid;
        }
        for lock in &names {
            self.touch_lock(lock, now);
        }
        let wanted = Wanted::by(now.by, acquire);
        let key = wanted.key();
        if let Some(wrong) = self.wrong_lease(wanted, now) {
            return wrong;
        }
        let (mut own, mut blocked) = (Vec::new(), None);
        let in_use = |lock: &LockName| !self.holders(lock).is_empty() || self.is_kept(lock);
        let free: Vec<&LockName> = names.iter().filter(|lock| !in_use(lock)).collect();
        for lock in names.iter().filter(|lock| in_use(lock)) {
            if let has @ Some(_) = self.size(lock) {
                return Outcome::Invalid(Invalid::PermitsDiffer { asked: None, has });
            }
            let holders = self.holders(lock);
            let mine = holders.iter().find(|grant| grant.key == key);
            match (mine, self.writer(lock)) {
                (Some(mine), None) => return other_mode(mine),
                (Some(mine), Some(_)) => own.push(mine.clone()),
                (None, Some(writer))
                    if (writer.by, &writer.client) == (now.by, &acquire.client) =>
                {
                    if !writer.options.is_none() || writer.reserved.is_some() {
                        let lock = lock.clone();
                        return Outcome::Invalid(Invalid::SetDelayed { lock });
                    }
                }
                (None, _) => blocked = blocked.or(Some(lock)),
            }
        }
        if let Some(first) = own.first() {
            let whole = own.len() == names.len();
            if whole && own.iter().all(|grant| grant.token == first.token) {
                return Outcome::Granted(self.granted(first, Span::ZERO, now));
            }
            let lock = first.lock.clone();
            return Outcome::Invalid(Invalid::SetPartlyHeld { lock });
        }
        let max = self.limits.locks;
        let too_many = !free.is_empty() && self.in_use() + free.len() > max as usize;
        let Some(blocked) = blocked else {
            if too_many {
                return Outcome::TooManyLocks { max };
            }
            if self.token().is_some() {
                self.sizes.retain(|(lock, _)| !names.contains(lock));
            }
            return self.grant(Wanted::by(now.by, acquire), Span::ZERO, now);
        };
        let (Some(wait), Some(request)) = (acquire.wait, acquire.request) else {
            return self.told(blocked, now);
        };
        if wait == Span::ZERO {
            return self.told(blocked, now);
        }
        let waiting = |lock: &LockName| self.waits.iter().filter(|wait| wait.wants(lock)).count();
        let (per_lock, per_client) = (self.limits.waiters_per_lock, self.limits.waiters_per_client);
        if names.iter().any(|lock| waiting(lock) >= per_lock as usize) {
            return Outcome::QueueFull(QueueBound::Lock { max: per_lock });
        }
        if self.waiting_of(&acquire.client, now) + names.len() > per_client as usize {
            return Outcome::QueueFull(QueueBound::Client { max: per_client });
        }
        if too_many {
            return Outcome::TooManyLocks { max };
        }
        let free: Vec<LockName> = free.into_iter().cloned().collect();
        self.sizes.retain(|(lock, _)| !free.contains(lock));
        let newest = token_of(self.next - 1);
        self.kept
            .extend(free.into_iter().map(|lock| (lock, newest)));
        self.enqueue(acquire, request, wait, now);
        Outcome::Queued
    }

    /// How many locks are held, kept or closed.
    fn in_use(&self) -> usize {
        let held: BTreeSet<&str> = self.grants.iter().map(|grant| &*grant.lock).collect();
        held.len() + self.kept.len() + self.closed.len()
    }

    /// How many places in queues a client has.
    fn waiting_of(&self, client: &ClientId, now: &Now) -> usize {
        let waits = self.waits.iter();
        let its = waits.filter(|other| (other.by, &other.client) == (now.by, client));
        its.map(|wait| wait.locks().len()).sum()
    }

    /// Whether a set is granted, or refused because of its own client's grants: each lock is free and the set first in its
    /// queue, or the set's client has it under a lease that is live.
    fn is_ready(&self, wait: &Wait, now: &Now) -> bool {
        wait.locks()
            .iter()
            .all(|lock| self.is_open(lock, wait, now))
    }

    fn is_open(&self, lock: &LockName, wait: &Wait, now: &Now) -> bool {
        match self.writer(lock) {
            Some(writer) => {
                (writer.by, &writer.client) == (wait.by, &wait.client)
                    && self.lease(&writer.key).unwrap().expires > now.at
            }
            None => self.is_kept_for(lock, wait),
        }
    }

    fn is_kept_for(&self, lock: &LockName, wait: &Wait) -> bool {
        self.waits.iter().find(|other| other.wants(lock)) == Some(wait)
            && self.holders(lock).is_empty()
            && self.closed.iter().all(|closed| closed.lock != *lock)
    }

    /// The lock that a request waits for; for a set, the first one that others have or come before.
    fn blocks(&self, wait: &Wait, now: &Now) -> LockName {
        if wait.also.is_empty() {
            return wait.lock.clone();
        }
        let locks = wait.locks();
        let blocks = locks.iter().find(|lock| !self.is_open(lock, wait, now));
        blocks.unwrap_or(&wait.lock).clone()
    }

    fn enqueue(&mut self, acquire: &Acquire, request: RequestId, wait: Span, now: &Now) {
        let under = match acquire.under {
            Under::Existing { key, .. } => Under::Existing { key, ttl: None },
            Under::New { key, ttl } => Under::New { key, ttl },
        };
        let place = match acquire.mode {
            LockMode::Upgrade => 0,
            _ => self.waits.len(),
        };
        self.arrivals += 1;
        let arrival = self.arrivals;
        let wait = Wait {
            by: now.by,
            request,
            lock: acquire.lock.clone(),
            also: acquire.also.to_vec(),
            client: acquire.client.clone(),
            mode: acquire.mode,
            under,
            options: acquire.options,
            says: acquire.metadata.clone(),
            since: now.at,
            deadline: now.at.after(wait),
            orphan: None,
            arrival,
        };
        self.waits.insert(place, wait);
    }

    fn decide(&mut self, acquire: &Acquire, now: &mut Now) -> Outcome {
        if !acquire.also.is_empty() {
            return self.decide_set(acquire, now);
        }
        if acquire.mode != LockMode::Exclusive && acquire.options != GrantOptions::NONE {
            return Outcome::Invalid(Invalid::OptionsOfShared);
        }
        if let Under::New { ttl, .. } = acquire.under
            && let Some(invalid) = self.refused(ttl)
        {
            return invalid;
        }
        self.touch_lock(&acquire.lock, now);
        let (Under::New { key, .. } | Under::Existing { key, .. }) = acquire.under;
        if let Some(wrong) = self.wrong_lease(Wanted::by(now.by, acquire), now) {
            return wrong;
        }
        if self.holders(&acquire.lock).is_empty() && !self.is_kept(&acquire.lock) {
            if acquire.mode == LockMode::Upgrade {
                return self.decide_upgrade(acquire, now);
            }
            if self.in_use() >= self.limits.locks as usize {
                return Outcome::TooManyLocks {
                    max: self.limits.locks,
                };
            }
            if self.token().is_some() {
                self.sizes.retain(|(lock, _)| *lock != acquire.lock);
                let size = acquire.mode.permits().map(Permits::of);
                self.sizes
                    .extend(size.map(|size| (acquire.lock.clone(), size)));
            }
            return self.grant(Wanted::by(now.by, acquire), Span::ZERO, now);
        }
        let (asked, has) = (acquire.mode.permits(), self.size(&acquire.lock));
        if asked.map(Permits::of) != has {
            let asked = asked.map(Permits::of);
            return Outcome::Invalid(Invalid::PermitsDiffer { asked, has });
        }
        if acquire.mode == LockMode::Upgrade {
            return self.decide_upgrade(acquire, now);
        }
        let holders = self.holders(&acquire.lock);
        if let Some(grant) = holders.iter().find(|grant| grant.key == key) {
            return match (grant.phase, acquire.mode) {
                (_, LockMode::Permits(permits)) => self.again(grant, permits, Span::ZERO, now),
                (None, LockMode::Exclusive) => {
                    Outcome::Granted(self.granted(grant, Span::ZERO, now))
                }
                (None, LockMode::Shared) => self.take_over(grant, acquire, now),
                (None, _) => Outcome::Invalid(Invalid::NotUpdate),
                (Some(_), mode) if is_of_mode(grant, mode) => {
                    Outcome::Granted(self.granted(grant, Span::ZERO, now))
                }
                (Some(_), _) => other_mode(grant),
            };
        }
        if let Some(grant) = self.writer(&acquire.lock)
            && (grant.by, &grant.client) == (now.by, &acquire.client)
        {
            return self.take_over(&grant, acquire, now);
        }
        let waits = self.waits.iter().any(|wait| wait.wants(&acquire.lock));
        let readers = self.readers(&acquire.lock);
        let updates = acquire.mode == LockMode::Update && readers.iter().any(|other| other.update);
        let joins = !readers.is_empty() && !updates && !self.is_restored(&readers);
        if acquire.mode.is_shared() && !waits && joins {
            return self.grant(Wanted::by(now.by, acquire), Span::ZERO, now);
        }
        if let Some(permits) = acquire.mode.permits()
            && !waits
            && self.room(&acquire.lock) >= permits.wanted()
        {
            return self.grant(Wanted::by(now.by, acquire), Span::ZERO, now);
        }
        self.wait_or_deny(acquire, now)
    }

    /// Whether these readers were there before a restore.
    fn is_restored(&self, readers: &[Grant]) -> bool {
        let before = |reader: &Grant| reader.phase < self.restored;
        readers.first().is_some_and(before)
    }

    fn wait_or_deny(&mut self, acquire: &Acquire, now: &Now) -> Outcome {
        let (Some(wait), Some(request)) = (acquire.wait, acquire.request) else {
            return self.in_the_way(acquire, now);
        };
        if wait == Span::ZERO {
            return self.in_the_way(acquire, now);
        }
        let for_lock = self
            .waits
            .iter()
            .filter(|other| other.wants(&acquire.lock))
            .count();
        let of_client = self.waiting_of(&acquire.client, now);
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
        self.enqueue(acquire, request, wait, now);
        Outcome::Queued
    }

    /// The one reader of a lock that may become its writer asks for that, or somebody else does.
    fn decide_upgrade(&mut self, acquire: &Acquire, now: &mut Now) -> Outcome {
        let wanted = Wanted::by(now.by, acquire);
        let holders = self.holders(&acquire.lock);
        let own = holders.iter().find(|grant| grant.key == wanted.key());
        let Some(own) = own else {
            return match acquire.under {
                Under::New { .. } => Outcome::Invalid(Invalid::NotUpdate),
                Under::Existing { key, .. } => self.past(&GrantRef {
                    lock: acquire.lock.clone(),
                    key,
                    token: None,
                }),
            };
        };
        if own.phase.is_none() {
            return Outcome::Invalid(Invalid::NotUpdate);
        }
        if !own.update {
            return Outcome::Invalid(Invalid::Upgrade);
        }
        if self.is_restored(std::slice::from_ref(own)) {
            return Outcome::Invalid(Invalid::Restored);
        }
        let its = |wait: &Wait| wait.mode == LockMode::Upgrade && wait.wants(&acquire.lock);
        if self.waits.iter().any(its) {
            return Outcome::Invalid(Invalid::UpgradeWaits);
        }
        match holders.len() {
            1 => self.upgrade(own, wanted, Span::ZERO, now),
            _ => self.wait_or_deny(acquire, now),
        }
    }

    /// The only reader becomes the writer.
    fn upgrade(&mut self, own: &Grant, wanted: Wanted<'_>, waited: Span, now: &mut Now) -> Outcome {
        if self.token().is_none() {
            return Outcome::TokensExhausted;
        }
        let lease = self.lease(&own.key).unwrap();
        self.end(own, Ending::Superseded, None, now);
        self.keep(lease);
        self.grant(wanted, waited, now)
    }

    /// A lease goes on when another grant replaces its grant.
    fn keep(&mut self, lease: Lease) {
        if self.lease(&lease.key).is_none() {
            self.leases.push(lease);
            self.leases.sort_by_key(|lease| lease.id);
        }
    }

    fn renew(&mut self, named: &GrantRef, ttl: Option<Ttl>, now: &mut Now) -> Outcome {
        if let Some(invalid) = ttl.and_then(|ttl| self.refused(ttl)) {
            return invalid;
        }
        let Some(grant) = self.live(named, now) else {
            return self.missing(named, now);
        };
        if !may_use(&grant, now) {
            return Outcome::WrongPrincipal {
                lock: named.lock.clone(),
            };
        }
        let lease = self
            .leases
            .iter_mut()
            .find(|lease| lease.key == grant.key)
            .unwrap();
        let near_deadline =
            lease.expires.since(now.at).as_nanos() * 4 < lease.ttl.span().as_nanos();
        // Nothing is shortened: a shorter time comes into force when no more than it is left.
        let asked = ttl.unwrap_or(lease.ttl);
        if now.at.after(asked.span()) >= lease.expires {
            (lease.ttl, lease.expires) = (asked, now.at.after(asked.span()));
        }
        lease.limit = None;
        let (ttl, valid_for) = (lease.ttl, lease.expires.since(now.at));
        let its = self.grants.iter().filter(|other| other.key == grant.key);
        let waiting = |other: &Grant| {
            self.waits
                .iter()
                .filter(|wait| wait.wants(&other.lock))
                .count()
        };
        let waiters = its.take(64).map(waiting).sum::<usize>();
        Outcome::Renewed(Renewed {
            token: grant.fencing(),
            ttl,
            valid_for,
            near_deadline,
            waiters: u32::try_from(waiters).unwrap(),
        })
    }

    fn proclaim(&mut self, named: &GrantRef, value: Box<str>, now: &mut Now) -> Outcome {
        let Some(grant) = self.live(named, now) else {
            return self.missing(named, now);
        };
        if !may_use(&grant, now) {
            return Outcome::WrongPrincipal {
                lock: named.lock.clone(),
            };
        }
        if grant.phase.is_some() {
            return Outcome::Invalid(Invalid::ProclaimOfShared);
        }
        let place = self.grants.iter().position(|other| *other == grant);
        let grant = &mut self.grants[place.unwrap()];
        grant.says = Some(value).filter(|value| !value.is_empty());
        let grant = grant.clone();
        self.event(&grant, Change::Proclaimed, Span::ZERO, now);
        Outcome::Proclaimed {
            token: grant.token,
            revision: self.revision,
        }
    }

    /// The values that the holders of exclusive grants proclaim.
    pub(crate) fn values(&self) -> BTreeMap<LockName, Option<Box<str>>> {
        let leaders = self.grants.iter().filter(|grant| grant.phase.is_none());
        leaders
            .map(|grant| (grant.lock.clone(), grant.says.clone()))
            .collect()
    }

    fn abandon(&mut self, request: RequestId, now: &mut Now) -> Outcome {
        if let Some(wait) = self.waiting(now.by, &request) {
            self.leave(&wait, Some(Outcome::Abandoned), now);
            return Outcome::Done;
        }
        let known = self.answer_to(now.by, &request);
        let lock = known.as_ref().and_then(|known| known.lock.clone());
        let also = known
            .as_ref()
            .map_or(Others::NONE, |known| known.also.clone());
        let asked: Vec<LockName> = lock.iter().chain(&*also).cloned().collect();
        if let Some(Outcome::Granted(first)) = known.map(|known| known.outcome) {
            let named = |grant: &Grant| (grant.key, grant.token) == (first.key, first.number());
            let is_live = |lease: Lease| lease.expires > now.at;
            let mut grants = self.grants.clone();
            grants.retain(|grant| named(grant) && self.lease(&grant.key).is_some_and(is_live));
            grants.retain(|grant| asked.contains(&grant.lock));
            for grant in grants {
                let unused = Grant {
                    reserved: grant.inherited,
                    ..grant.clone()
                };
                let place = self.grants.iter().position(|other| *other == grant);
                self.grants[place.unwrap()] = unused.clone();
                self.end_and_hand_on(&unused, Ending::Released, None, now);
            }
        }
        self.remember(now.by, request, lock, also, Outcome::Abandoned);
        Outcome::Done
    }

    /// The writer's own client takes its lock over, or becomes a reader.
    fn take_over(&mut self, grant: &Grant, acquire: &Acquire, now: &mut Now) -> Outcome {
        if acquire.mode.is_shared() && (!grant.options.is_none() || grant.reserved.is_some()) {
            return Outcome::Invalid(Invalid::OptionsOfShared);
        }
        if self.token().is_none() {
            return Outcome::TokensExhausted;
        }
        let lease = self.lease(&grant.key).unwrap();
        self.end(grant, Ending::Superseded, None, now);
        if Wanted::by(now.by, acquire).key() == grant.key {
            // A downgrade.
            self.keep(lease);
        }
        let outcome = self.grant(Wanted::by(now.by, acquire), Span::ZERO, now);
        if acquire.mode.is_shared() {
            self.hand_on(&acquire.lock, &self.told(&acquire.lock, now), now);
        } else if let Some(mine) = self.grants.last_mut() {
            let before = grant.reserved.filter(|until| *until > now.at);
            (mine.inherited, mine.reserved) = (before, mine.reserved.max(before));
        }
        outcome
    }

    /// Grants under a valid lease, where nobody blocks the request. A set takes over the locks that its client has under
    /// another lease.
    fn grant(&mut self, wanted: Wanted<'_>, waited: Span, now: &mut Now) -> Outcome {
        let Wanted {
            by,
            lock,
            also,
            client,
            mode,
            under,
            options,
            says,
        } = wanted;
        let phase = self.readers(lock).first().and_then(|first| first.phase);
        let mut slots = Slots::NONE;
        for slot in self.free(lock).into_iter().take(
            mode.permits()
                .map_or(0, |permits| permits.wanted() as usize),
        ) {
            slots = slots.with(Slots::from_bits(1 << (slot - 1)));
        }
        let Some(token) = self.token() else {
            return Outcome::TokensExhausted;
        };
        self.next += 1;
        let key = match *under {
            Under::Existing { key, .. } => key,
            Under::New { key, ttl } => {
                let (id, expires) = (LeaseId(token), now.at.after(ttl.span()));
                self.leases.push(Lease {
                    by,
                    key,
                    id,
                    client: client.clone(),
                    ttl,
                    expires,
                    limit: None,
                });
                key
            }
        };
        let mut first = None;
        for lock in std::iter::once(lock).chain(also) {
            if mode == LockMode::Exclusive
                && let Some(former) = self.writer(lock)
            {
                self.end(&former, Ending::Superseded, None, now);
            }
            self.kept.remove(lock);
            let grant = Grant {
                lock: lock.clone(),
                token,
                key,
                by,
                client: client.clone(),
                wall: now.wall,
                phase: (!mode.is_exclusive()).then_some(phase.unwrap_or(token)),
                update: mode == LockMode::Update,
                slots,
                options,
                reserved: Some(options.at_least_for())
                    .filter(|span| *span > Span::ZERO)
                    .map(|span| now.at.after(span)),
                inherited: None,
                says: says.map(Box::from),
            };
            self.grants.push(grant.clone());
            let ttl = self.lease(&key).unwrap().ttl;
            self.event(&grant, Change::Granted { ttl }, waited, now);
            first.get_or_insert(grant);
        }
        Outcome::Granted(self.granted(&first.unwrap(), waited, now))
    }

    fn end(&mut self, grant: &Grant, how: Ending, reason: Option<Box<str>>, now: &mut Now) {
        now.ended += 1;
        let delayed = self.closed_after(grant, how, now);
        let change = Change::Ended {
            how,
            reason,
            delayed: delayed.map(|until| until.since(now.at)),
        };
        self.event(grant, change, Span::ZERO, now);
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

    fn end_and_hand_on(
        &mut self,
        grant: &Grant,
        how: Ending,
        reason: Option<Box<str>>,
        now: &mut Now,
    ) {
        let last = Outcome::Held(self.holder(grant, now));
        let until = self.closed_after(grant, how, now);
        self.end(grant, how, reason, now);
        if let Some(until) = until {
            return self.closed.push(Closed {
                lock: grant.lock.clone(),
                last: grant.token,
                until,
            });
        }
        if self.readers(&grant.lock).is_empty() {
            let last = grant.phase.unwrap_or(grant.token);
            self.kept.insert(grant.lock.clone(), last);
        } else if grant.slots.is_empty() {
            // Only these wait for some of the readers.
            let first = self.waits.iter().find(|wait| wait.wants(&grant.lock));
            let mode = first.map(|first| first.mode);
            if !matches!(mode, Some(LockMode::Update | LockMode::Upgrade)) {
                return;
            }
        }
        self.hand_on(&grant.lock, &last, now);
    }

    /// A request leaves its queue; the requests that it blocked go on.
    fn leave(&mut self, wait: &Wait, outcome: Option<Outcome>, now: &mut Now) {
        self.take_leave(wait, None, now);
        match outcome {
            Some(outcome) => self.settle(wait.clone(), outcome, now),
            None => now.ended += 1,
        }
        self.hand_on_what_is_left(now);
    }

    /// Takes a request out of its queues. The locks that nobody holds are looked at later, except one that is being handed
    /// on.
    fn take_leave(&mut self, wait: &Wait, but: Option<&LockName>, now: &mut Now) {
        for lock in wait.locks() {
            let listed = now.left.iter().any(|(left, _)| *left == lock);
            if but != Some(&lock) && !listed && self.writer(&lock).is_none() {
                now.left.push_back((lock.clone(), self.told(&lock, now)));
            }
        }
        self.waits.retain(|other| other != wait);
    }

    fn hand_on_what_is_left(&mut self, now: &mut Now) {
        while let Some((lock, ahead)) = now.left.pop_front() {
            if self.writer(&lock).is_none() {
                self.hand_on_one(&lock, &ahead, now);
            }
        }
    }

    /// The caller of a request that waits repeats it.
    fn rejoin(&mut self, wait: Wait, now: &mut Now) -> Outcome {
        let place = self.waits.iter().position(|other| *other == wait).unwrap();
        let first = self.waits.iter().find(|other| other.wants(&wait.lock));
        let is_first = first == Some(&wait);
        (self.waits[place].since, self.waits[place].orphan) = (now.at, None);
        let mut elsewhere = std::mem::take(&mut now.effects);
        if !wait.also.is_empty() {
            let wait = self.waits[place].clone();
            let over = wait.is_over(now);
            if !over && (self.is_ready(&wait, now) || self.outlived(&wait, now)) {
                let told = self.told(&wait.lock, now);
                self.turn_of(wait, &told, None, now);
                self.hand_on_what_is_left(now);
            }
        } else if is_first && self.writer(&wait.lock).is_none() {
            self.hand_on(&wait.lock, &self.told(&wait.lock, now), now);
        }
        let own = |effect: &Effect| matches!(effect, Effect::Settled { by, request, .. } if (*by, *request) == (wait.by, wait.request));
        let own = now.effects.iter().position(own);
        let own = own.map(|own| now.effects.remove(own));
        elsewhere.append(&mut now.effects);
        now.effects = elsewhere;
        match own {
            Some(Effect::Settled { outcome, .. }) => outcome,
            _ => Outcome::Queued,
        }
    }

    /// Gives a lock that no writer holds to the first request that is still there; an orphan that is first keeps it. After a
    /// reader come the readers right behind it.
    fn hand_on(&mut self, lock: &LockName, last: &Outcome, now: &mut Now) {
        self.hand_on_one(lock, last, now);
        self.hand_on_what_is_left(now);
    }

    fn hand_on_one(&mut self, lock: &LockName, last: &Outcome, now: &mut Now) {
        if let Some(at) = self.closed.iter().position(|closed| closed.lock == *lock) {
            if self.closed[at].until > now.at {
                return;
            }
            now.ended += 1;
            let Closed { lock, last, .. } = self.closed.remove(at);
            self.kept.insert(lock, last);
        }
        let kept = self.kept.remove_entry(lock);
        while let Some(at) = self.waits.iter().position(|wait| wait.wants(lock)) {
            let wait = &self.waits[at];
            let readers = self.readers(lock);
            let read = !readers.is_empty();
            let update = readers.iter().any(|reader| reader.update);
            let blocked = match wait.mode {
                _ if !wait.also.is_empty() => !self.is_ready(wait, now),
                LockMode::Exclusive => read,
                LockMode::Shared => self.is_restored(&readers),
                LockMode::Update => update || self.is_restored(&readers),
                LockMode::Upgrade => readers.len() > 1,
                LockMode::Permits(permits) => self.room(lock) < permits.wanted(),
            };
            // An upgrade ends with the grant that it is for, and any request with its lease.
            let lives = wait.mode != LockMode::Upgrade || update;
            let lives = lives && !wait.is_over(now) && !self.outlived(wait, now);
            if lives && (wait.orphan.is_some() || blocked) {
                self.kept.extend(kept.filter(|_| !read));
                return;
            }
            let wait = wait.clone();
            if self.turn_of(wait, last, Some(lock), now) {
                return;
            }
        }
    }

    /// Whether the lease that a request waits under is over.
    fn outlived(&self, wait: &Wait, now: &Now) -> bool {
        match wait.under {
            Under::New { .. } => false,
            Under::Existing { key, .. } => {
                self.lease(&key).is_none_or(|lease| lease.expires <= now.at)
            }
        }
    }

    /// Grants a request, or answers why not. Returns whether it has its locks alone now.
    fn turn_of(
        &mut self,
        wait: Wait,
        last: &Outcome,
        but: Option<&LockName>,
        now: &mut Now,
    ) -> bool {
        let at = self.waits.iter().position(|other| *other == wait).unwrap();
        let own = if wait.also.is_empty() {
            None
        } else {
            self.judge_own(&wait, now)
        };
        {
            let lock = &wait.lock.clone();
            let goes_on = wait.deadline >= now.at
                && self.wrong_lease(Wanted::of(&wait), now).is_none()
                && own.is_none()
                && self.token().is_some();
            if wait.orphan.is_none() && goes_on {
                drop(self.waits.remove(at))
            } else {
                self.take_leave(&wait, but, now)
            }
            if wait.orphan.is_some() {
                now.ended += 1;
                return false;
            }
            let outcome = if wait.deadline < now.at {
                let remaining = Span::ZERO;
                match last.clone() {
                    Outcome::Delayed(closed) => Outcome::Delayed(Delayed {
                        remaining,
                        ..closed
                    }),
                    Outcome::Held(holder) => Outcome::Held(Holder {
                        remaining,
                        ..holder
                    }),
                    Outcome::Behind(ahead) => Outcome::Behind(Ahead { remaining, ..ahead }),
                    other => panic!("no denial: {other:?}"),
                }
            } else if let Some(wrong) = self.wrong_lease(Wanted::of(&wait), now) {
                wrong
            } else if let Some(own) = own {
                own
            } else {
                let waited = now.at.since(wait.since);
                let wanted = Wanted::of(&wait);
                let its = self
                    .readers(lock)
                    .into_iter()
                    .find(|grant| grant.key == wanted.key());
                match (its, wait.mode) {
                    (Some(its), LockMode::Permits(permits)) => {
                        self.again(&its, permits, waited, now)
                    }
                    (Some(its), LockMode::Upgrade) => self.upgrade(&its, wanted, waited, now),
                    (None, LockMode::Upgrade) => self.past(&GrantRef {
                        lock: lock.clone(),
                        key: wanted.key(),
                        token: None,
                    }),
                    (Some(its), mode) if is_of_mode(&its, mode) => {
                        Outcome::Granted(self.granted(&its, waited, now))
                    }
                    (Some(its), _) => other_mode(&its),
                    (None, _) => self.grant(wanted, waited, now),
                }
            };
            let granted = matches!(outcome, Outcome::Granted(_)) && goes_on;
            let written = granted && wait.mode.is_exclusive();
            self.settle(wait, outcome, now);
            written
        }
    }

    /// The answer for a set whose client has some of its locks, unless it takes them over.
    fn judge_own(&self, wait: &Wait, now: &Now) -> Option<Outcome> {
        let locks = wait.locks();
        let writers: Vec<Grant> = locks.iter().filter_map(|lock| self.writer(lock)).collect();
        let key = Wanted::of(wait).key();
        let (own, others): (Vec<&Grant>, Vec<&Grant>) =
            writers.iter().partition(|grant| grant.key == key);
        let closes = |grant: &&&Grant| !grant.options.is_none() || grant.reserved.is_some();
        if let Some(delayed) = others.iter().find(closes) {
            let lock = delayed.lock.clone();
            return Some(Outcome::Invalid(Invalid::SetDelayed { lock }));
        }
        let first = own.first()?;
        let waited = now.at.since(wait.since);
        let one = own.iter().all(|grant| grant.token == first.token);
        Some(if one && own.len() == locks.len() {
            Outcome::Granted(self.granted(first, waited, now))
        } else {
            Outcome::Invalid(Invalid::SetPartlyHeld {
                lock: first.lock.clone(),
            })
        })
    }

    /// The fault of the lease that a request wants its grant under.
    fn wrong_lease(&self, wanted: Wanted<'_>, now: &Now) -> Option<Outcome> {
        let Wanted {
            by,
            lock,
            client,
            under,
            ..
        } = wanted;
        match *under {
            Under::New { key, .. } => self
                .lease(&key)
                .map(|_| Outcome::Invalid(Invalid::LeaseKeyInUse)),
            Under::Existing { key, ttl } => match self.lease(&key) {
                Some(lease) if lease.expires > now.at => {
                    if lease.by != by {
                        return Some(Outcome::WrongPrincipal { lock: lock.clone() });
                    }
                    if lease.client != *client {
                        return Some(Outcome::NotHeld);
                    }
                    let differs = ttl.is_some_and(|ttl| ttl != lease.ttl);
                    differs.then_some(Outcome::Invalid(Invalid::TtlDiffers { lease: lease.ttl }))
                }
                _ => {
                    let mut over = self.over.iter().rev().filter(|over| over.key == key);
                    let of_lock = over.clone().find(|over| over.lock == *lock);
                    let due = self.grants.iter().filter(|grant| grant.key == key);
                    let due = due
                        .map(|grant| grant.token)
                        .max()
                        .map(|token| Outcome::Ended {
                            token,
                            how: Ending::Expired,
                        });
                    let known = of_lock
                        .map(ended)
                        .or(due)
                        .or_else(|| over.next().map(ended));
                    Some(known.unwrap_or(Outcome::NotHeld))
                }
            },
        }
    }

    /// The grant named, if that very one is live; its lock is looked at, so it ends to the nanosecond.
    fn live(&mut self, named: &GrantRef, now: &mut Now) -> Option<Grant> {
        self.touch_lock(&named.lock, now);
        let holders = self.holders(&named.lock).into_iter();
        let grant = holders.into_iter().find(|grant| grant.key == named.key)?;
        if self.lease(&grant.key).unwrap().expires <= now.at {
            self.end_and_hand_on(&grant, Ending::Expired, None, now);
            return None;
        }
        let meant = named.token.is_none_or(|token| token == grant.token);
        meant.then_some(grant)
    }

    /// The answer for a grant that is not live.
    fn missing(&self, named: &GrantRef, now: &Now) -> Outcome {
        let has = self.holders(&named.lock).into_iter();
        let mut has = has.filter(|grant| grant.key == named.key && may_use(grant, now));
        match (self.past(named), has.next()) {
            (Outcome::NotHeld, Some(grant)) if self.lease(&grant.key).unwrap().expires > now.at => {
                Outcome::OtherNumber { has: grant.token }
            }
            (past, _) => past,
        }
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

    /// The client that has a lock, or the oldest of several.
    pub(crate) fn holder_of(&self, lock: &LockName) -> Option<ClientId> {
        let holders = self.holders(lock);
        holders.first().map(|grant| grant.client.clone())
    }

    /// Everybody who has a lock, the oldest first.
    fn holders(&self, lock: &LockName) -> Vec<Grant> {
        let mut holders = self.grants.clone();
        holders.retain(|grant| grant.lock == *lock);
        holders
    }

    fn writer(&self, lock: &LockName) -> Option<Grant> {
        let mut holders = self.holders(lock).into_iter();
        holders.find(|grant| grant.phase.is_none())
    }

    fn readers(&self, lock: &LockName) -> Vec<Grant> {
        let mut holders = self.holders(lock);
        holders.retain(|grant| grant.phase.is_some());
        holders
    }

    /// How many permits a lock in use has.
    fn size(&self, lock: &LockName) -> Option<u32> {
        let mut sizes = self.sizes.iter();
        sizes.find(|(name, _)| name == lock).map(|(_, size)| *size)
    }

    /// The numbers of a semaphore's slots that nobody holds.
    fn free(&self, lock: &LockName) -> Vec<u32> {
        let taken: Vec<u32> = self
            .holders(lock)
            .iter()
            .flat_map(|grant| grant.slots.iter())
            .collect();
        let mut slots: Vec<u32> = (1..=self.size(lock).unwrap_or(0)).collect();
        slots.retain(|slot| !taken.contains(slot));
        slots
    }

    /// How many permits are left. A semaphore that was made smaller has none as long as too many are held.
    fn room(&self, lock: &LockName) -> u32 {
        let held = self
            .holders(lock)
            .iter()
            .map(|grant| grant.slots.count())
            .sum();
        self.size(lock).unwrap_or(0).saturating_sub(held)
    }

    fn again(&self, grant: &Grant, permits: Permits, waited: Span, now: &Now) -> Outcome {
        let (held, asked) = (grant.slots.count(), permits.wanted());
        if held == asked {
            Outcome::Granted(self.granted(grant, waited, now))
        } else {
            Outcome::Invalid(Invalid::PermitsHeld { held, asked })
        }
    }

    fn resize(&mut self, lock: &LockName, of: u32, now: &mut Now) -> Outcome {
        if let Err(invalid) = Permits::new(1, of) {
            return Outcome::Invalid(invalid);
        }
        self.touch_lock(lock, now);
        if self.holders(lock).is_empty() && !self.is_kept(lock) {
            return Outcome::NotHeld;
        }
        match self.size(lock) {
            None => {
                return Outcome::Invalid(Invalid::PermitsDiffer {
                    asked: Some(of),
                    has: None,
                });
            }
            Some(has) if has == of => return Outcome::Done,
            Some(_) => {}
        }
        self.sizes.retain(|(name, _)| name != lock);
        self.sizes.push((lock.clone(), of));
        let larger = |wait: &&Wait| {
            let wanted = wait.mode.permits().map_or(0, Permits::wanted);
            wait.wants(lock) && wanted > of
        };
        while let Some(wait) = self.waits.iter().rev().find(larger).cloned() {
            let wanted = wait.mode.permits().unwrap().wanted();
            let refused = Outcome::Invalid(Invalid::Permits { wanted, of });
            self.leave(&wait, Some(refused).filter(|_| wait.orphan.is_none()), now);
        }
        if self.waits.iter().any(|wait| wait.wants(lock)) {
            self.hand_on(lock, &self.told(lock, now), now);
        }
        Outcome::Done
    }

    fn waiting(&self, by: Principal, request: &RequestId) -> Option<Wait> {
        let mut waits = self.waits.iter();
        let wait = waits.find(|wait| (wait.by, &wait.request) == (by, request));
        wait.cloned()
    }

    fn is_kept(&self, lock: &LockName) -> bool {
        self.kept.contains_key(lock) || self.closed.iter().any(|closed| closed.lock == *lock)
    }

    /// The holder or waiter that blocks a request made now. A reader must not overtake requests that wait for readers to
    /// leave.
    fn in_the_way(&self, acquire: &Acquire, now: &Now) -> Outcome {
        let ahead = match self.told(&acquire.lock, now) {
            Outcome::Held(ahead) => ahead,
            other => return other,
        };
        let first = self.waits.iter().find(|wait| wait.wants(&acquire.lock));
        let readers = self.readers(&acquire.lock);
        let read = !readers.is_empty();
        let reader = match acquire.mode {
            LockMode::Upgrade => readers.iter().find(|other| !other.update),
            LockMode::Update if first.is_none() => readers.iter().find(|other| other.update),
            _ => None,
        };
        if let Some(reader) = reader {
            return Outcome::Held(self.holder(reader, now));
        }
        match first.filter(|_| read && acquire.mode != LockMode::Exclusive) {
            Some(first) => Outcome::Behind(Ahead {
                client: first.client.clone(),
                remaining: ahead.remaining,
            }),
            None => Outcome::Held(ahead),
        }
    }

    /// The answer for a writer that cannot have the lock now.
    fn told(&self, lock: &LockName, now: &Now) -> Outcome {
        match self.closed.iter().find(|closed| closed.lock == *lock) {
            Some(closed) => Outcome::Delayed(Delayed {
                token: closed.last,
                remaining: closed.until.since(now.at),
            }),
            None => self.ahead(lock, now),
        }
    }

    /// The oldest holder that does not wait for the others, or the orphan that the lock is reserved for.
    fn ahead(&self, lock: &LockName, now: &Now) -> Outcome {
        let mut holders = self.holders(lock);
        let first = self.waits.iter().find(|wait| wait.wants(lock));
        // Not the one that waits for the others.
        if holders.len() > 1 && first.is_some_and(|first| first.mode == LockMode::Upgrade) {
            holders.retain(|grant| !grant.update);
        }
        if let Some(grant) = holders.first() {
            return Outcome::Held(self.holder(grant, now));
        }
        let first = first.unwrap();
        Outcome::Behind(Ahead {
            client: first.client.clone(),
            remaining: first.ends().since(now.at),
        })
    }

    fn answer_to(&self, by: Principal, request: &RequestId) -> Option<Answered> {
        self.answers
            .iter()
            .find(|known| (known.by, &known.request) == (by, request))
            .cloned()
    }

    fn remember(
        &mut self,
        by: Principal,
        request: RequestId,
        lock: Option<LockName>,
        also: Others,
        outcome: Outcome,
    ) {
        self.answers
            .retain(|known| (known.by, known.request) != (by, request));
        self.answers.push(Answered {
            by,
            request,
            lock,
            also,
            outcome,
        });
    }

    fn settle(&mut self, wait: Wait, outcome: Outcome, now: &mut Now) {
        let (by, request) = (wait.by, wait.request);
        now.ended += 1;
        if !matches!(
            outcome,
            Outcome::Invalid(_) | Outcome::WrongPrincipal { .. }
        ) {
            let also = wait.also.iter().cloned().collect();
            self.remember(by, request, Some(wait.lock), also, outcome.clone());
        }
        now.effects.push(Effect::Settled {
            by,
            request,
            outcome,
        });
    }

    fn holder(&self, grant: &Grant, now: &Now) -> Holder {
        let lease = self.lease(&grant.key).unwrap();
        Holder {
            client: lease.client,
            token: grant.fencing(),
            remaining: lease.expires.since(now.at),
        }
    }

    fn granted(&self, grant: &Grant, waited: Span, now: &Now) -> Granted {
        let lease = self.lease(&grant.key).unwrap();
        Granted {
            token: grant.fencing(),
            shared: grant.id(),
            slots: grant.slots,
            lease: lease.id,
            key: lease.key,
            ttl: lease.ttl,
            valid_for: waited.plus(lease.expires.since(now.at)),
            waited,
            acquired_at: grant.wall,
        }
    }

    fn opened(&mut self, lock: &LockName, last: Token, reason: Box<str>, now: &mut Now) {
        self.revision += 1;
        now.effects.push(Effect::Event(Event {
            revision: self.revision,
            at: now.at,
            wall: now.wall,
            lock: lock.clone(),
            client: None,
            token: last,
            shared: None,
            slots: Slots::NONE,
            by: now.by,
            lease: None,
            held: Span::ZERO,
            detail: Detail::default(),
            change: Change::Opened { reason },
        }));
    }

    fn event(&mut self, grant: &Grant, change: Change, waited: Span, now: &mut Now) {
        self.revision += 1;
        let lease = self.lease(&grant.key).unwrap();
        let detail = match &change {
            Change::Granted { .. } => Detail {
                waited,
                metadata: grant.says.clone(),
                options: grant.options,
                ..Detail::default()
            },
            Change::Proclaimed => Detail {
                metadata: grant.says.clone(),
                ..Detail::default()
            },
            Change::Ended { how, .. } => Detail {
                by: if *how == Ending::Revoked {
                    now.by
                } else {
                    Principal::ANONYMOUS
                },
                unrenewed: Span::from_nanos(
                    (now.at.as_nanos() + lease.ttl.span().as_nanos())
                        .saturating_sub(lease.expires.as_nanos()),
                ),
                ..Detail::default()
            },
            Change::Opened { .. } => unreachable!("it has no grant"),
        };
        now.effects.push(Effect::Event(Event {
            revision: self.revision,
            at: now.at,
            wall: now.wall,
            lock: grant.lock.clone(),
            client: Some(grant.client.clone()),
            token: grant.fencing(),
            shared: grant.id(),
            slots: grant.slots,
            by: grant.by,
            lease: Some(lease.id),
            held: Span::from_millis(now.wall.0.saturating_sub(grant.wall.0)),
            detail,
            change,
        }));
    }
}

/// Whether a reader has the mode that a request asks for.
fn is_of_mode(grant: &Grant, mode: LockMode) -> bool {
    mode.is_shared() && grant.update == (mode == LockMode::Update)
}

/// The refusal for a lease that has a lock as a reader and asks for it in another mode.
fn other_mode(grant: &Grant) -> Outcome {
    Outcome::Invalid(if grant.update {
        Invalid::UpdateHeld
    } else {
        Invalid::Upgrade
    })
}

fn token_of(number: u64) -> Token {
    Token::new(number).unwrap()
}

/// Whether the principal that asks may renew or release a grant after showing its secret.
fn may_use(grant: &Grant, now: &Now) -> bool {
    grant.by == Principal::ANONYMOUS || grant.by == now.by
}

fn ended(over: &Over) -> Outcome {
    Outcome::Ended {
        token: over.token,
        how: over.how,
    }
}
