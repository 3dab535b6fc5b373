//! What a history tells about each lock, gathered per grant.
//!
//! ```text
//!            sent            by            seen              told over
//!   ──────────┼───────────────┼─────────────┼──────────────────┼────────► time
//!             └─ began within ┘   held at some instant         over at the latest here
//! ```
//!
//! Tokens say in which order the grants of a lock were made, so nothing has to be searched: each
//! grant's life is bounded by what was seen of it.

use std::collections::BTreeMap;
use std::ops::Bound;

use palisade_core::{ClientId, Ending, LockName, Timestamp, Token, Ttl};

use super::event::{Answer, Call, Tokens};
use super::read::{History, Operation};
use super::violation::{Broken, Violation};

/// When an operation was under way; it took effect at one instant of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    pub(super) sent: Timestamp,
    pub(super) back: Timestamp,
}

/// An operation that ends a grant if it arrives in time.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    pub(super) sent: Timestamp,
    /// When it was acknowledged to have been the one that did; `None`: it may have been.
    pub(super) back: Option<Timestamp>,
    pub(super) how: Ending,
}

/// Somebody was told that the grant is over.
#[derive(Clone, Copy, Debug)]
pub(super) struct ToldOver {
    pub(super) back: Timestamp,
    pub(super) how: Option<Ending>,
}

/// One grant and all that was seen of it.
#[derive(Clone, Debug)]
pub(super) struct Life<'h> {
    pub(super) token: Token,
    pub(super) client: &'h ClientId,
    pub(super) lease: Token,
    /// Asked for under a lease that was there.
    pub(super) under: bool,
    /// It began after this.
    pub(super) sent: Timestamp,
    /// It had begun by then.
    pub(super) by: Timestamp,
    /// The holder itself had the answer then; `None` if only others told of the grant.
    pub(super) answered: Option<Timestamp>,
    /// Somebody saw it held at one instant of each of these.
    pub(super) seen: Vec<Window>,
    pub(super) ends: Vec<End>,
    pub(super) told_over: Vec<ToldOver>,
}

/// A wish whose outcome nobody was told.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish<'h> {
    pub(super) client: &'h ClientId,
    pub(super) sent: Timestamp,
    /// Of the lease that would be opened; `None` under one that is there.
    pub(super) ttl: Option<Ttl>,
    pub(super) under: Option<Token>,
    /// When it was given up, if it was.
    pub(super) abandoned: Option<Timestamp>,
    /// That was acknowledged: from then on it has no effect any more.
    pub(super) dead: Option<Timestamp>,
}

/// All that was seen of one lock.
#[derive(Debug, Default)]
pub(super) struct Timeline<'h> {
    /// By token, which is their order.
    pub(super) lives: BTreeMap<Token, Life<'h>>,
    pub(super) wishes: Vec<Wish<'h>>,
    /// Somebody saw it free at one instant of each of these.
    pub(super) free: Vec<Window>,
}

/// A moment from which a lease lasts its full time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refresh {
    pub(super) sent: Timestamp,
    /// `None`: perhaps.
    pub(super) back: Option<Timestamp>,
    pub(super) ttl: Option<Ttl>,
}

/// What prolongs one lease.
#[derive(Clone, Debug, Default)]
pub(super) struct Lease {
    pub(super) refreshes: Vec<Refresh>,
    /// Its beginning was seen.
    pub(super) begun: bool,
    /// Every time to live it ever had.
    pub(super) ttls: Option<(Ttl, Ttl)>,
}

impl Lease {
    fn refresh(&mut self, refresh: Refresh) {
        self.refreshes.push(refresh);
        if let Some(ttl) = refresh.ttl {
            let (low, high) = self.ttls.unwrap_or((ttl, ttl));
            self.ttls = Some((low.min(ttl), high.max(ttl)));
        }
    }
}

/// A history, sorted by what it is about.
#[derive(Debug, Default)]
pub(super) struct Gathered<'h> {
    pub(super) locks: BTreeMap<&'h LockName, Timeline<'h>>,
    leases: BTreeMap<LeaseName<'h>, Lease>,
    per_lock: bool,
    /// Every token somebody has, sorted, where they are counted over all locks.
    tokens: Vec<Token>,
}

/// Where tokens are counted per lock, so are leases.
type LeaseName<'h> = (Option<&'h LockName>, Token);

/// The attempts of one wish.
struct Attempts<'h> {
    first: &'h Operation,
    granted: Option<(Token, Token, Timestamp)>,
    ended: Option<(Token, Ending, Timestamp)>,
    /// At least one attempt may have taken effect without anybody being told.
    open: bool,
    abandons: Vec<(Timestamp, Option<Timestamp>)>,
}

type WishKey<'h> = (&'h LockName, &'h ClientId, Result<&'h str, u64>);

/// Gathers; what cannot even be gathered is a violation already.
pub(super) fn gather<'h>(history: &'h History, found: &mut Vec<Violation>) -> Gathered<'h> {
    let mut gathered = Gathered {
        per_lock: history.header.tokens == Tokens::PerLock,
        ..Gathered::default()
    };
    let wishes = wishes(history);
    for attempts in wishes.values() {
        gathered.unanswered(attempts);
    }
    for attempts in wishes.values() {
        gathered.wish(attempts, found);
    }
    gathered.spread_abandons();
    for operation in &history.operations {
        gathered.observe(operation, first_sent(operation, &wishes), found);
    }
    let lives = gathered.locks.values().flat_map(|lock| lock.lives.keys());
    gathered.tokens = lives.copied().collect();
    gathered.tokens.sort_unstable();
    gathered
}

/// When the question was first asked to which this is the answer: a denial is remembered, and another
/// attempt of the same wish gets it again. A grant that is repeated is looked at anew.
fn first_sent<'h>(operation: &'h Operation, wishes: &BTreeMap<WishKey<'h>, Attempts<'h>>) -> Timestamp {
    let (Call::Acquire { lock, request: Some(request), .. }, Some((_, answer))) =
        (&operation.call, &operation.answer)
    else {
        return operation.sent;
    };
    let wish = wishes.get(&(lock, &operation.client, Ok(request)));
    match (wish, answer) {
        (Some(wish), Answer::Held { .. }) => wish.first.sent,
        _ => operation.sent,
    }
}

fn wishes(history: &History) -> BTreeMap<WishKey<'_>, Attempts<'_>> {
    let mut wishes: BTreeMap<WishKey<'_>, Attempts<'_>> = BTreeMap::new();
    for operation in &history.operations {
        let Call::Acquire { lock, request, .. } = &operation.call else {
            continue;
        };
        let name = request.as_deref().ok_or(operation.id);
        let attempts = wishes
            .entry((lock, &operation.client, name))
            .or_insert_with(|| Attempts::of(operation));
        attempts.attempt(operation);
    }
    for operation in &history.operations {
        let Call::Abandon { lock, request } = &operation.call else {
            continue;
        };
        if let Some(attempts) = wishes.get_mut(&(lock, &operation.client, Ok(request))) {
            let back = operation.answer.as_ref().map(|(at, _)| *at);
            attempts.abandons.push((operation.sent, back));
        }
    }
    wishes
}

impl<'h> Attempts<'h> {
    fn of(first: &'h Operation) -> Attempts<'h> {
        Attempts {
            first,
            granted: None,
            ended: None,
            open: false,
            abandons: Vec::new(),
        }
    }

    fn attempt(&mut self, operation: &'h Operation) {
        if operation.sent < self.first.sent {
            self.first = operation;
        }
        match &operation.answer {
            Some((at, Answer::Granted { token, lease })) => {
                if self.granted.is_none_or(|(_, _, before)| *at < before) {
                    self.granted = Some((*token, *lease, *at));
                }
            }
            Some((at, Answer::Ended { token, how })) => self.ended = Some((*token, *how, *at)),
            None | Some((_, Answer::Abandoned)) => self.open = true,
            _ => {}
        }
    }
}

/// What is known of a wish that was granted.
struct Known {
    token: Token,
    lease: Token,
    by: Timestamp,
    /// Whether the holder was told in time.
    answered: bool,
}

impl Attempts<'_> {
    fn known(&self) -> Option<Known> {
        if let Some((token, lease, by)) = self.granted {
            return Some(Known {
                token,
                lease,
                by,
                answered: true,
            });
        }
        // Under a lease that is over, the token may be of another of its grants.
        let Call::Acquire { under: None, .. } = self.first.call else {
            return None;
        };
        self.ended.map(|(token, _, by)| Known {
            token,
            lease: token,
            by,
            answered: false,
        })
    }
}

impl<'h> Gathered<'h> {
    /// The lease of a grant, as far as it was seen.
    pub(super) fn lease(&self, lock: &'h LockName, lease: Token) -> Option<&Lease> {
        self.leases.get(&(self.per_lock.then_some(lock), lease))
    }

    /// Whether there is a token between these two of one lock that nobody is known to have.
    pub(super) fn may_hide(&self, lock: &'h LockName, low: Token, high: Token) -> bool {
        let between = high.get().saturating_sub(low.get()).saturating_sub(1);
        let known = match self.per_lock {
            true => self.locks.get(lock).map_or(0, |timeline| {
                let after = (Bound::Excluded(low), Bound::Excluded(high));
                timeline.lives.range(after).count()
            }),
            false => {
                let place = |token| self.tokens.partition_point(|known| *known < token);
                place(high).saturating_sub(place(low) + 1)
            }
        };
        between > known as u64
    }

    fn lease_mut(&mut self, lock: &'h LockName, lease: Token) -> &mut Lease {
        let name = (self.per_lock.then_some(lock), lease);
        self.leases.entry(name).or_default()
    }

    fn unanswered(&mut self, attempts: &Attempts<'h>) {
        let Call::Acquire {
            lock, ttl, under, ..
        } = &attempts.first.call
        else {
            return;
        };
        if attempts.open && attempts.known().is_none() {
            self.locks.entry(lock).or_default().wishes.push(Wish {
                client: &attempts.first.client,
                sent: attempts.first.sent,
                ttl: *ttl,
                under: *under,
                abandoned: attempts.abandons.iter().map(|(sent, _)| *sent).min(),
                dead: attempts.abandons.iter().filter_map(|(_, back)| *back).min(),
            });
        }
    }

    fn wish(&mut self, attempts: &Attempts<'h>, found: &mut Vec<Violation>) {
        let Operation { client, call, .. } = attempts.first;
        let (Call::Acquire { lock, ttl, under, .. }, Some(known)) = (call, attempts.known()) else {
            return;
        };
        // An earlier wish under the same lease that nobody was told about was the same wish.
        let wishes = self.locks.entry(lock).or_default().wishes.iter();
        let same = wishes.filter(|wish| under.is_some() && (wish.client, wish.under) == (client, *under));
        let sent = same.map(|wish| wish.sent).fold(attempts.first.sent, Timestamp::min);
        if let Some(ttl) = ttl {
            let lease = self.lease_mut(lock, known.lease);
            lease.begun = true;
            lease.refresh(Refresh {
                sent,
                back: Some(known.by),
                ttl: Some(*ttl),
            });
        }
        let mut life = Life {
            token: known.token,
            client,
            lease: known.lease,
            under: under.is_some(),
            sent,
            by: known.by,
            answered: known.answered.then_some(known.by),
            seen: Vec::new(),
            ends: Vec::new(),
            told_over: Vec::new(),
        };
        for (sent, back) in &attempts.abandons {
            life.ends.push(End {
                sent: *sent,
                back: None,
                how: Ending::Released,
            });
            let told = back.map(|back| ToldOver { back, how: None });
            life.told_over.extend(told);
        }
        self.grant(lock, life, found);
    }

    fn grant(&mut self, lock: &'h LockName, life: Life<'h>, found: &mut Vec<Violation>) {
        let lives = &mut self.locks.entry(lock).or_default().lives;
        let Some(known) = lives.get_mut(&life.token) else {
            lives.insert(life.token, life);
            return;
        };
        let under_its_own = life.under || known.under;
        if under_its_own && (known.client, known.lease) == (life.client, life.lease) {
            // Asked again under the lease that holds it already: the same grant.
            known.under &= life.under;
            known.sent = known.sent.min(life.sent);
            known.by = known.by.min(life.by);
            known.answered = known.answered.or(life.answered);
            known.ends.extend(life.ends);
            return;
        }
        found.push(Violation::new(
            Broken::RepeatedToken,
            lock,
            &[life.token],
            format!("granted to {} and to {}", known.client, life.client),
        ));
    }

    /// A wish under a lease may have been answered with a grant the lease had already. Giving that wish
    /// up releases the grant.
    fn spread_abandons(&mut self) {
        for Timeline { lives, wishes, .. } in self.locks.values_mut() {
            for wish in wishes.iter().filter(|wish| wish.under.is_some()) {
                let Some(sent) = wish.abandoned else {
                    continue;
                };
                let of_lease = |life: &&mut Life<'_>| Some(life.lease) == wish.under;
                for life in lives.values_mut().filter(of_lease) {
                    life.ends.push(End {
                        sent,
                        back: None,
                        how: Ending::Released,
                    });
                }
            }
        }
    }

    fn observe(
        &mut self,
        operation: &'h Operation,
        sent: Timestamp,
        found: &mut Vec<Violation>,
    ) {
        let lock = operation.call.lock();
        match (&operation.call, &operation.answer) {
            (Call::Renew { token, ttl, .. }, None) => {
                self.refresh(lock, *token, operation.sent, None, *ttl);
            }
            (Call::Release { token, .. }, None) => {
                self.end(lock, *token, operation.sent, None, Ending::Released);
            }
            (Call::Revoke { token, .. }, None) => {
                self.end(lock, *token, operation.sent, None, Ending::Revoked);
            }
            (_, None) => {}
            (_, Some((back, answer))) => {
                let window = Window { sent, back: *back };
                self.answered(operation, window, answer, found);
            }
        }
    }

    fn answered(
        &mut self,
        operation: &'h Operation,
        window: Window,
        answer: &'h Answer,
        found: &mut Vec<Violation>,
    ) {
        let lock = operation.call.lock();
        let named = match &operation.call {
            Call::Renew { token, .. } | Call::Release { token, .. } | Call::Revoke { token, .. } => {
                Some(*token)
            }
            _ => None,
        };
        match answer {
            Answer::Abandoned | Answer::Refused | Answer::Done => {}
            Answer::Granted { token, .. } => {
                self.seen(lock, *token, Some(&operation.client), window, found);
            }
            Answer::Held { token, holder } => self.seen(lock, *token, Some(holder), window, found),
            Answer::Stale { token } => self.seen(lock, *token, None, window, found),
            Answer::Free => self.locks.entry(lock).or_default().free.push(window),
            Answer::NotHeld => {
                if let Some(life) = named.and_then(|token| self.life(lock, token)) {
                    life.told_over.push(ToldOver { back: window.back, how: None });
                }
            }
            Answer::Ended { token, how } => {
                if let Some(life) = self.life(lock, *token) {
                    life.told_over.push(ToldOver { back: window.back, how: Some(*how) });
                }
            }
            Answer::Renewed { token } | Answer::Released { token } | Answer::Revoked { token } => {
                if named != Some(*token) {
                    found.push(Violation::new(
                        Broken::TokenChanged,
                        lock,
                        &[*token],
                        format!("call {} names another token than its answer", operation.id),
                    ));
                }
                let holder = match operation.call {
                    Call::Revoke { .. } => None,
                    _ => Some(&operation.client),
                };
                self.seen(lock, *token, holder, window, found);
                match (&operation.call, answer) {
                    (Call::Renew { ttl, .. }, _) => {
                        self.refresh(lock, *token, window.sent, Some(window.back), *ttl);
                    }
                    (_, Answer::Released { .. }) => {
                        self.end(lock, *token, window.sent, Some(window.back), Ending::Released);
                    }
                    _ => self.end(lock, *token, window.sent, Some(window.back), Ending::Revoked),
                }
            }
        }
    }

    fn life(&mut self, lock: &'h LockName, token: Token) -> Option<&mut Life<'h>> {
        self.locks.get_mut(lock)?.lives.get_mut(&token)
    }

    /// Somebody saw the lock held with this token, perhaps by a holder that was never told itself.
    fn seen(
        &mut self,
        lock: &'h LockName,
        token: Token,
        holder: Option<&'h ClientId>,
        window: Window,
        found: &mut Vec<Violation>,
    ) {
        let timeline = self.locks.entry(lock).or_default();
        if !timeline.lives.contains_key(&token) {
            if holder.is_none() && !timeline.wishes.is_empty() {
                // Whose it is, nobody said.
                return;
            }
            let asked = |wish: &&Wish<'h>| Some(wish.client) == holder;
            let asked: Vec<Wish<'h>> = timeline.wishes.iter().filter(asked).copied().collect();
            let Some(wish) = asked.iter().min_by_key(|wish| wish.sent) else {
                found.push(Violation::new(
                    Broken::UnknownToken,
                    lock,
                    &[token],
                    "seen with a token that nobody can have been granted".to_owned(),
                ));
                return;
            };
            timeline.lives.insert(token, adopted(token, wish, window));
            self.adopt_lease(lock, token, &asked, window);
        }
        let Some(life) = self.life(lock, token) else {
            return;
        };
        life.seen.push(window);
        life.by = life.by.min(window.back);
        if let Some(holder) = holder.filter(|holder| *holder != life.client) {
            found.push(Violation::new(
                Broken::UnknownToken,
                lock,
                &[token],
                format!("granted to {}, seen with {holder}", life.client),
            ));
        }
    }

    /// The lease of a grant that was one of these wishes. If it may be one that was there before,
    /// nothing is known of it.
    fn adopt_lease(&mut self, lock: &'h LockName, token: Token, asked: &[Wish<'h>], window: Window) {
        let ttls: Option<Vec<Ttl>> = asked.iter().map(|wish| wish.ttl).collect();
        let Some(ttls) = ttls else {
            return;
        };
        let lease = self.lease_mut(lock, token);
        lease.begun = true;
        lease.ttls = ttls.iter().min().copied().zip(ttls.iter().max().copied());
        lease.refresh(Refresh {
            sent: asked.iter().map(|wish| wish.sent).min().unwrap_or_default(),
            back: Some(window.back),
            ttl: None,
        });
    }

    fn refresh(
        &mut self,
        lock: &'h LockName,
        token: Token,
        sent: Timestamp,
        back: Option<Timestamp>,
        ttl: Option<Ttl>,
    ) {
        if let Some(lease) = self.life(lock, token).map(|life| life.lease) {
            let refresh = Refresh { sent, back, ttl };
            self.lease_mut(lock, lease).refresh(refresh);
        }
    }

    fn end(
        &mut self,
        lock: &'h LockName,
        token: Token,
        sent: Timestamp,
        back: Option<Timestamp>,
        how: Ending,
    ) {
        if let Some(life) = self.life(lock, token) {
            life.ends.push(End { sent, back, how });
        }
    }
}

/// A grant that only others saw; what its lease lasts is not known.
fn adopted<'h>(token: Token, wish: &Wish<'h>, window: Window) -> Life<'h> {
    let abandoned = wish.abandoned.map(|sent| End {
        sent,
        back: None,
        how: Ending::Released,
    });
    Life {
        token,
        client: wish.client,
        lease: token,
        under: false,
        sent: wish.sent,
        by: window.back,
        answered: None,
        seen: Vec::new(),
        ends: abandoned.into_iter().collect(),
        told_over: Vec::new(),
    }
}
