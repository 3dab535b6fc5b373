//! Observations: statements in answers about grants, including those of other clients.

use palisade_core::{ClientId, Ending, LockName, Timestamp, Token, Ttl};

use super::{End, Gathered, Lifetime, Place, Refresh, ReportedEnd, Window, Wish};
use crate::history::event::{Answer, Call};
use crate::history::read::Operation;
use crate::history::violation::{Broken, Violation};

impl<'h> Gathered<'h> {
    pub(super) fn observe(
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
            Call::Renew { token, .. }
            | Call::Release { token, .. }
            | Call::Revoke { token, .. } => Some(*token),
            _ => None,
        };
        match answer {
            Answer::HeldShared { .. }
            | Answer::Denied
            | Answer::Abandoned
            | Answer::Refused
            | Answer::Done => {}
            Answer::Granted { token, .. } => {
                for lock in operation.call.locks() {
                    self.seen(lock, *token, Some(&operation.client), window, found);
                }
            }
            // An answer about a set does not say which of its locks it is about.
            Answer::Held { .. } if operation.call.is_of_set() => {}
            Answer::Held { token, holder } => self.seen(lock, *token, Some(holder), window, found),
            Answer::Stale { token } => self.seen(lock, *token, None, window, found),
            Answer::Free => {
                self.places.entry(Place::of(lock)).or_default();
                let all = self.of_lock_mut(lock);
                all.for_each(|timeline| timeline.free.push(window));
            }
            Answer::NotHeld => {
                if let Some(token) = named {
                    self.reported_end(lock, token, window.back, None);
                }
            }
            // Which part of a set has ended is not said.
            Answer::Ended { .. } if operation.call.is_of_set() => {}
            Answer::Ended { token, how } => {
                self.reported_end(lock, *token, window.back, Some(*how));
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
                        self.end(
                            lock,
                            *token,
                            window.sent,
                            Some(window.back),
                            Ending::Released,
                        );
                    }
                    _ => self.end(
                        lock,
                        *token,
                        window.sent,
                        Some(window.back),
                        Ending::Revoked,
                    ),
                }
            }
        }
    }

    /// The lock was seen held with this token, perhaps by a holder that never got its answer.
    fn seen(
        &mut self,
        lock: &'h LockName,
        token: Token,
        holder: Option<&'h ClientId>,
        window: Window,
        found: &mut Vec<Violation>,
    ) {
        for place in self.held_by(lock, token) {
            self.seen_at(place, token, holder, window, found);
        }
    }

    fn seen_at(
        &mut self,
        place: Place<'h>,
        token: Token,
        holder: Option<&'h ClientId>,
        window: Window,
        found: &mut Vec<Violation>,
    ) {
        let lock = place.lock;
        let timeline = self.places.entry(place).or_default();
        if !timeline.lifetimes.contains_key(&token) {
            if holder.is_none() && !timeline.wishes.is_empty() {
                // The holder is not known.
                return;
            }
            let its = |wish: &&Wish<'h>| Some(wish.client) == holder && !wish.is_shared();
            let asked: Vec<Wish<'h>> = timeline.wishes.iter().filter(its).copied().collect();
            if asked.iter().any(Wish::is_for_permits) {
                // Its slots are not known.
                return;
            }
            let Some(wish) = asked.iter().min_by_key(|wish| wish.sent) else {
                found.push(Violation::new(
                    Broken::UnknownToken,
                    lock,
                    &[token],
                    "seen with a token that nobody can have been granted".to_owned(),
                ));
                return;
            };
            timeline
                .lifetimes
                .insert(token, adopted(token, wish, &asked, window));
            self.adopt_lease(lock, token, &asked, window);
        }
        let Some(lifetime) = self.lifetime(place, token) else {
            return;
        };
        lifetime.seen.push(window);
        lifetime.by = lifetime.by.min(window.back);
        if let Some(holder) = holder.filter(|holder| *holder != lifetime.client) {
            found.push(Violation::new(
                Broken::UnknownToken,
                lock,
                &[token],
                format!("granted to {}, seen with {holder}", lifetime.client),
            ));
        }
    }

    /// The lease of a grant that answered one of these wishes. If it may be an older lease, nothing is known of it.
    fn adopt_lease(
        &mut self,
        lock: &'h LockName,
        token: Token,
        asked: &[Wish<'h>],
        window: Window,
    ) {
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
        let held = self.held_by(lock, token).into_iter().next();
        let lifetime = held.and_then(|place| self.lifetime(place, token));
        if let Some(lease) = lifetime.map(|lifetime| lifetime.lease) {
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
        for place in self.held_by(lock, token) {
            if let Some(lifetime) = self.lifetime(place, token) {
                lifetime.ends.push(End { sent, back, how });
            }
        }
    }

    fn reported_end(
        &mut self,
        lock: &'h LockName,
        token: Token,
        back: Timestamp,
        how: Option<Ending>,
    ) {
        for place in self.held_by(lock, token) {
            if let Some(lifetime) = self.lifetime(place, token) {
                lifetime.reported_ends.push(ReportedEnd { back, how });
            }
        }
    }
}

/// A grant that only others saw: it answered one of these wishes, at the earliest the first.
fn adopted<'h>(token: Token, wish: &Wish<'h>, asked: &[Wish<'h>], window: Window) -> Lifetime<'h> {
    let abandoned = asked.iter().filter_map(|wish| wish.abandoned);
    let abandoned = abandoned.map(|sent| End {
        sent,
        back: None,
        how: Ending::Released,
    });
    let sets = asked.iter().filter(|wish| wish.call.is_of_set());
    Lifetime {
        token,
        phase: None,
        update: false,
        upgrade: false,
        permits: None,
        set: sets.flat_map(|wish| wish.call.locks()).collect(),
        client: wish.client,
        lease: token,
        under: false,
        sent: wish.sent,
        by: window.back,
        answered: None,
        seen: Vec::new(),
        ends: abandoned.collect(),
        reported_ends: Vec::new(),
    }
}
