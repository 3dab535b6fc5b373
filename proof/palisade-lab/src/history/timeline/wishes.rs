//! Wishes: the attempts of each, and the resulting grants.

use std::collections::BTreeMap;

use palisade_core::{ClientId, Ending, LockMode, LockName, Slots, Timestamp, Token};

use super::{End, Gathered, Lifetime, Place, Refresh, ReportedEnd, Window, Wish, places};
use crate::history::event::{Answer, Call};
use crate::history::read::{History, Operation};
use crate::history::violation::{Broken, Violation};

/// The attempts of one wish.
pub(super) struct Attempts<'h> {
    first: &'h Operation,
    granted: Option<Known>,
    ended: Option<(Token, Timestamp)>,
    /// Whether at least one attempt may have taken effect without an answer.
    open: bool,
    abandons: Vec<(Timestamp, Option<Timestamp>)>,
}

pub(super) type WishKey<'h> = (&'h LockName, &'h ClientId, Result<&'h str, u64>);
/// When the answered question was first asked: a denial is remembered, and another attempt of the same wish gets it
/// again. A repeated grant is evaluated anew.
pub(super) fn first_sent<'h>(
    operation: &'h Operation,
    wishes: &BTreeMap<WishKey<'h>, Attempts<'h>>,
) -> Timestamp {
    let (
        Call::Acquire {
            lock,
            request: Some(request),
            ..
        },
        Some((_, answer)),
    ) = (&operation.call, &operation.answer)
    else {
        return operation.sent;
    };
    let wish = wishes.get(&(lock, &operation.client, Ok(request)));
    match (wish, answer) {
        (Some(wish), Answer::Held { .. } | Answer::HeldShared { .. }) => wish.first.sent,
        _ => operation.sent,
    }
}

pub(super) fn wishes(history: &History) -> BTreeMap<WishKey<'_>, Attempts<'_>> {
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
            Some((
                at,
                Answer::Granted {
                    token,
                    lease,
                    phase,
                    slots,
                },
            )) if self.granted.is_none_or(|before| *at < before.by) => {
                self.granted = Some(Known {
                    token: *token,
                    lease: *lease,
                    phase: *phase,
                    slots: *slots,
                    by: *at,
                    answered: true,
                });
            }
            Some((at, Answer::Ended { token, .. })) => self.ended = Some((*token, *at)),
            None | Some((_, Answer::Abandoned)) => self.open = true,
            _ => {}
        }
    }
}

/// The known facts about a granted wish.
#[derive(Clone, Copy)]
struct Known {
    token: Token,
    lease: Token,
    phase: Option<Token>,
    slots: Slots,
    by: Timestamp,
    /// Whether the holder got the answer in time.
    answered: bool,
}

impl Attempts<'_> {
    fn known(&self) -> Option<Known> {
        if self.granted.is_some() {
            return self.granted;
        }
        // Under a lease that is over, the token may belong to another of its grants. A reader's phase is not known, nor
        // are slots.
        let Call::Acquire {
            under: None,
            mode: LockMode::Exclusive,
            ..
        } = self.first.call
        else {
            return None;
        };
        self.ended.map(|(token, by)| Known {
            token,
            lease: token,
            phase: None,
            slots: Slots::NONE,
            by,
            answered: false,
        })
    }
}

impl<'h> Gathered<'h> {
    pub(super) fn unanswered(&mut self, attempts: &Attempts<'h>) {
        let call = &attempts.first.call;
        let Call::Acquire { ttl, under, .. } = call else {
            return;
        };
        if !attempts.open || attempts.known().is_some() {
            return;
        }
        for lock in call.locks() {
            let timeline = self.places.entry(Place::of(lock)).or_default();
            timeline.wishes.push(Wish {
                client: &attempts.first.client,
                sent: attempts.first.sent,
                ttl: *ttl,
                under: *under,
                call,
                abandoned: attempts.abandons.iter().map(|(sent, _)| *sent).min(),
                dead: attempts.abandons.iter().filter_map(|(_, back)| *back).min(),
            });
        }
    }

    pub(super) fn wish(&mut self, attempts: &Attempts<'h>, found: &mut Vec<Violation>) {
        let (call, Some(known)) = (&attempts.first.call, attempts.known()) else {
            return;
        };
        let Call::Acquire { lock, mode, .. } = call else {
            return;
        };
        if let LockMode::Permits(permits) = mode {
            let beyond = known.slots.without(Slots::all(permits.of()));
            if known.slots.count() != permits.wanted() || !beyond.is_empty() {
                let slots: Vec<u32> = known.slots.iter().collect();
                let what = format!("{permits} permits were asked for, and slots {slots:?} granted");
                found.push(Violation::new(
                    Broken::WrongSlots,
                    lock,
                    &[known.token],
                    what,
                ));
            }
            // Permits under one lease are granted once: a repeat names the same slots.
            let before = self.slots.insert((lock, known.token), known.slots);
            if before.is_some_and(|before| before != known.slots) {
                let what = "granted twice, with other slots".to_owned();
                found.push(Violation::new(
                    Broken::RepeatedToken,
                    lock,
                    &[known.token],
                    what,
                ));
            }
        }
        for lock in call.locks() {
            self.granted(lock, attempts, known, found);
        }
    }

    /// One lock of a granted wish.
    fn granted(
        &mut self,
        lock: &'h LockName,
        attempts: &Attempts<'h>,
        known: Known,
        found: &mut Vec<Violation>,
    ) {
        let Operation { client, call, .. } = attempts.first;
        let Call::Acquire {
            ttl, under, mode, ..
        } = call
        else {
            return;
        };
        // An earlier unanswered wish under the same lease was the same wish.
        let wishes = self
            .places
            .entry(Place::of(lock))
            .or_default()
            .wishes
            .iter();
        let same =
            wishes.filter(|wish| under.is_some() && (wish.client, wish.under) == (client, *under));
        let sent = same
            .map(|wish| wish.sent)
            .fold(attempts.first.sent, Timestamp::min);
        if let Some(ttl) = ttl {
            let lease = self.lease_mut(lock, known.lease);
            lease.begun = true;
            lease.refresh(Refresh {
                sent,
                back: Some(known.by),
                ttl: Some(*ttl),
            });
        }
        let mut lifetime = Lifetime {
            token: known.token,
            phase: known.phase,
            update: *mode == LockMode::Update,
            upgrade: *mode == LockMode::Upgrade,
            permits: mode.permits(),
            set: if call.is_of_set() {
                call.locks().collect()
            } else {
                Vec::new()
            },
            client,
            lease: known.lease,
            under: under.is_some(),
            sent,
            by: known.by,
            answered: known.answered.then_some(known.by),
            seen: Vec::new(),
            ends: Vec::new(),
            reported_ends: Vec::new(),
        };
        for (sent, back) in &attempts.abandons {
            lifetime.ends.push(End {
                sent: *sent,
                back: None,
                how: Ending::Released,
            });
            let report = back.map(|back| ReportedEnd { back, how: None });
            lifetime.reported_ends.extend(report);
        }
        for place in places(lock, known.slots) {
            self.grant(place, lifetime.clone(), found);
        }
    }

    fn grant(&mut self, place: Place<'h>, lifetime: Lifetime<'h>, found: &mut Vec<Violation>) {
        let lifetimes = &mut self.places.entry(place).or_default().lifetimes;
        let Some(known) = lifetimes.get_mut(&lifetime.token) else {
            lifetimes.insert(lifetime.token, lifetime);
            return;
        };
        let under_its_own = lifetime.under || known.under;
        if under_its_own && (known.client, known.lease) == (lifetime.client, lifetime.lease) {
            // Requested again under the lease that already holds it: the same grant.
            if known.phase != lifetime.phase {
                let what = "granted twice, with other phases".to_owned();
                let tokens = [lifetime.token];
                found.push(Violation::new(Broken::PhaseToken, place, &tokens, what));
            }
            known.under &= lifetime.under;
            known.upgrade |= lifetime.upgrade;
            known.sent = known.sent.min(lifetime.sent);
            known.by = known.by.min(lifetime.by);
            known.answered = known.answered.or(lifetime.answered);
            known.ends.extend(lifetime.ends);
            known.set.extend(lifetime.set);
            return;
        }
        found.push(Violation::new(
            Broken::RepeatedToken,
            place,
            &[lifetime.token],
            format!("granted to {} and to {}", known.client, lifetime.client),
        ));
    }

    /// A grant in mode update lasts until its upgrade is granted.
    pub(super) fn see_upgraded(&mut self) {
        for timeline in self.places.values_mut() {
            let upgraded: Vec<(Token, Window)> = timeline
                .lifetimes
                .values()
                .filter_map(|writer| {
                    let window = Window {
                        sent: writer.sent,
                        back: writer.by,
                    };
                    Some((timeline.upgraded_to(writer)?.token, window))
                })
                .collect();
            for (token, window) in upgraded {
                if let Some(reader) = timeline.lifetimes.get_mut(&token) {
                    reader.seen.push(window);
                    reader.by = reader.by.min(window.back);
                }
            }
        }
    }

    /// A wish under a lease may have been answered with an existing grant of that lease. Abandoning the wish then
    /// releases the grant, and all parts of a set.
    pub(super) fn spread_abandons(&mut self) {
        let wishes = self.places.iter().flat_map(|(place, timeline)| {
            let under = move |wish: &Wish<'h>| Some((place.lock, wish.under?, wish.abandoned?));
            timeline.wishes.iter().filter_map(under)
        });
        let abandoned: Vec<_> = wishes.collect();
        for (lock, lease, sent) in abandoned {
            let end = || End {
                sent,
                back: None,
                how: Ending::Released,
            };
            let mut sets = Vec::new();
            for timeline in self.of_lock_mut(lock) {
                let lifetimes = timeline.lifetimes.values_mut();
                for lifetime in lifetimes.filter(|lifetime| lifetime.lease == lease) {
                    if lifetime.set.is_empty() {
                        lifetime.ends.push(end())
                    } else {
                        sets.push(lifetime.token)
                    }
                }
            }
            let lifetimes = self.places.values_mut();
            let lifetimes = lifetimes.flat_map(|timeline| timeline.lifetimes.values_mut());
            for part in lifetimes.filter(|lifetime| sets.contains(&lifetime.token)) {
                part.ends.push(end());
            }
        }
    }
}
