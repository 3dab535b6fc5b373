//! Illegal histories: clean ones with one change that no order of instants can explain.
//!
//! Each kind says why. None of them uses the checker: the calls and answers of the clean history are enough.

mod sites;

use fastrand::Rng;
use palisade_core::{
    ClientId, Ending, LockMode, LockName, Permits, Slots, Span, Timestamp, Token, Ttl,
};

use super::event::{Answer, Call, Event};
use sites::{Grant, Sites};

/// The kind of change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Two grants exchange their tokens; the later one was requested after the earlier one was answered.
    SwappedTokens,
    /// A grant has another grant's token.
    RepeatedToken,
    /// Another client is granted the lock while its holder's lease cannot be over.
    OverlappingGrant,
    /// The next grant comes while the last lease, which nobody ended, cannot be over: that lease is lengthened beyond
    /// the time between them.
    EarlyGrant,
    /// A renewal is acknowledged after the next grant was.
    RenewedAfterLoss,
    /// A release is acknowledged after the next grant was.
    ReleasedAfterLoss,
    /// A renewal is acknowledged after the release was.
    RenewedAfterRelease,
    /// A renewal gets `expired` while the lease cannot be over.
    ExpiredEarly,
    /// A try is denied because of a grant after the next grant was acknowledged.
    HeldByThePast,
    /// A renewal gets another token.
    TokenChanged,
    /// The lock is shown as free while its holder's lease cannot be over.
    FreeWhileHeld,
    /// A renewal is acknowledged long after the lease ended, with no grant in between.
    Revived,
    /// A reader joins readers that certainly hold, and gets its own number as its token.
    ReaderApart,
    /// A reader's token is that of a writer before it.
    PhaseBack,
    /// Another client joins in mode update while the lease of the one that has it cannot be over.
    UpdateTwice,
    /// An upgrade is granted while another reader's lease cannot be over.
    UpgradeBesideReader,
    /// A reader that is not in mode update is granted its upgrade.
    ReaderUpgraded,
    /// Another client is granted a slot while its holder's lease cannot be over.
    SlotTwice,
    /// A slot is granted that the semaphore does not have.
    SlotBeyond,
    /// Fewer slots are granted than permits were asked for.
    PermitsInPart,
    /// Another client is granted a permit of a larger semaphore of this name while a holder's lease cannot be over.
    OtherCount,
    /// Another client is granted two locks at once, one of which is held by a lease that cannot be over.
    SetInPart,
    /// One lock of a set is shown with another token than the set's.
    SetApart,
    /// One lock of a set is shown as free after another was released, while the lease cannot be over.
    WholeSetReleased,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 24] = [
        Kind::SwappedTokens,
        Kind::RepeatedToken,
        Kind::OverlappingGrant,
        Kind::EarlyGrant,
        Kind::RenewedAfterLoss,
        Kind::ReleasedAfterLoss,
        Kind::RenewedAfterRelease,
        Kind::ExpiredEarly,
        Kind::HeldByThePast,
        Kind::TokenChanged,
        Kind::FreeWhileHeld,
        Kind::Revived,
        Kind::ReaderApart,
        Kind::PhaseBack,
        Kind::UpdateTwice,
        Kind::UpgradeBesideReader,
        Kind::ReaderUpgraded,
        Kind::SlotTwice,
        Kind::SlotBeyond,
        Kind::PermitsInPart,
        Kind::OtherCount,
        Kind::SetInPart,
        Kind::SetApart,
        Kind::WholeSetReleased,
    ];

    /// The kind's name.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Kind::SwappedTokens => "swapped_tokens",
            Kind::RepeatedToken => "repeated_token",
            Kind::OverlappingGrant => "overlapping_grant",
            Kind::EarlyGrant => "early_grant",
            Kind::RenewedAfterLoss => "renewed_after_loss",
            Kind::ReleasedAfterLoss => "released_after_loss",
            Kind::RenewedAfterRelease => "renewed_after_release",
            Kind::ExpiredEarly => "expired_early",
            Kind::HeldByThePast => "held_by_the_past",
            Kind::TokenChanged => "token_changed",
            Kind::FreeWhileHeld => "free_while_held",
            Kind::Revived => "revived",
            Kind::ReaderApart => "reader_apart",
            Kind::PhaseBack => "phase_back",
            Kind::UpdateTwice => "update_twice",
            Kind::UpgradeBesideReader => "upgrade_beside_reader",
            Kind::ReaderUpgraded => "reader_upgraded",
            Kind::SlotTwice => "slot_twice",
            Kind::SlotBeyond => "slot_beyond",
            Kind::PermitsInPart => "permits_in_part",
            Kind::OtherCount => "other_count",
            Kind::SetInPart => "set_in_part",
            Kind::SetApart => "set_apart",
            Kind::WholeSetReleased => "whole_set_released",
        }
    }
}

/// Makes a clean history illegal in a way chosen by the seed; `None` if no kind fits.
#[must_use]
pub fn mutate(events: &[Event], seed: u64) -> Option<(Kind, Vec<Event>)> {
    let mut rng = Rng::with_seed(seed ^ 0x6d75_7461_7465);
    let mut kinds = Kind::ALL;
    rng.shuffle(&mut kinds);
    let sites = Sites::of(events);
    kinds.into_iter().find_map(|kind| {
        let mut work = Work {
            sites: &sites,
            rng: &mut rng,
            events: events.to_vec(),
        };
        work.make(kind)?;
        Some((kind, work.events))
    })
}

struct Work<'w> {
    sites: &'w Sites,
    rng: &'w mut Rng,
    events: Vec<Event>,
}

impl Work<'_> {
    fn make(&mut self, kind: Kind) -> Option<()> {
        match kind {
            Kind::SwappedTokens => self.swap_tokens(),
            Kind::RepeatedToken => self.repeat_token(),
            Kind::OverlappingGrant => self.overlap(),
            Kind::EarlyGrant => self.lengthen(),
            Kind::RenewedAfterLoss => {
                self.after_loss(|grant| Answer::Renewed { token: grant.token })
            }
            Kind::ReleasedAfterLoss => {
                self.after_loss(|grant| Answer::Released { token: grant.token })
            }
            Kind::RenewedAfterRelease => self.after_release(),
            Kind::ExpiredEarly => self.expired_early(),
            Kind::HeldByThePast => self.held_by_the_past(),
            Kind::TokenChanged => self.change_token(),
            Kind::FreeWhileHeld => self.free_while_held(),
            Kind::Revived => self.revive(),
            Kind::ReaderApart => self.reader_apart(),
            Kind::PhaseBack => self.phase_back(),
            Kind::UpdateTwice => self.update_twice(),
            Kind::UpgradeBesideReader => self.upgrade_beside_reader(),
            Kind::ReaderUpgraded => self.reader_upgraded(),
            Kind::SlotTwice => self.another_permit(false),
            Kind::OtherCount => self.another_permit(true),
            Kind::SlotBeyond => self.reslot(|permits, slots| {
                let kept = slots.without(slots.lowest(1)?);
                let beyond = Slots::all(permits.of() + 1).without(Slots::all(permits.of()));
                Some(kept.with(beyond))
            }),
            Kind::PermitsInPart => self.reslot(|_, slots| slots.lowest(slots.count() - 1)),
            Kind::SetInPart => self.set_in_part(),
            Kind::SetApart => self.set_apart(),
            Kind::WholeSetReleased => self.whole_set_released(),
        }
    }

    /// Two grants that do not overlap in time.
    fn swap_tokens(&mut self) -> Option<()> {
        let first = self.pick(|_| true)?;
        let second = self.pick(|grant| grant.sent > first.answered)?;
        self.reanswer(&first, second.token);
        self.reanswer(&second, first.token);
        Some(())
    }

    fn repeat_token(&mut self) -> Option<()> {
        let first = self.pick(|_| true)?;
        let second = self.pick(|grant| grant.token > first.token)?;
        self.reanswer(&second, first.token);
        Some(())
    }

    fn overlap(&mut self) -> Option<()> {
        let grant = self.pick(Grant::is_sure)?;
        self.also_granted(&grant, LockMode::Exclusive, Slots::NONE, Box::default())
    }

    fn set_in_part(&mut self) -> Option<()> {
        let grant = self.pick(Grant::is_sure)?;
        let other = LockName::new("newcomer-lock").ok()?;
        self.also_granted(&grant, LockMode::Exclusive, Slots::NONE, [other].into())
    }

    fn another_permit(&mut self, more: bool) -> Option<()> {
        let grant = self.pick_permits(Grant::is_sure)?;
        let (permits, slots) = grant.permits?;
        let of = permits.of() + u32::from(more);
        let slot = if more {
            Slots::all(of).without(Slots::all(permits.of()))
        } else {
            slots.lowest(1)?
        };
        let mode = LockMode::Permits(Permits::new(1, of).ok()?);
        self.also_granted(&grant, mode, slot, Box::default())
    }

    /// A new client gets the token after the holder's: those above move up by one.
    fn also_granted(
        &mut self,
        grant: &Grant,
        mode: LockMode,
        slots: Slots,
        also: Box<[LockName]>,
    ) -> Option<()> {
        let token = self.room_after(grant)?;
        let (sent, back) = self.within(grant.answered, grant.sure_until);
        // Nothing but leases that last shows that two grants of different slots were live together.
        let ttl = match mode {
            LockMode::Permits(_) => Ttl::MAX,
            _ => Ttl::MIN,
        };
        let call = Call::Acquire {
            lock: grant.lock.clone(),
            also,
            ttl: Some(ttl),
            under: None,
            request: None,
            mode,
        };
        let answer = Answer::Granted {
            token,
            lease: token,
            phase: match mode {
                LockMode::Update => grant.phase,
                _ => None,
            },
            slots,
        };
        self.insert(newcomer()?, call, answer, sent, back);
        Some(())
    }

    fn update_twice(&mut self) -> Option<()> {
        let grant = self.pick_reader(|grant| grant.update && grant.is_sure())?;
        self.also_granted(&grant, LockMode::Update, Slots::NONE, Box::default())
    }

    fn upgrade_beside_reader(&mut self) -> Option<()> {
        let readers = &self.sites.readers;
        let pairs = readers
            .iter()
            .filter(|grant| grant.update)
            .flat_map(|update| {
                let beside = move |other: &&Grant| {
                    (&other.lock, other.phase) == (&update.lock, update.phase)
                        && other.client != update.client
                        && is_long(update.both_from(other), update.both_until(other))
                };
                let others = readers.iter().filter(beside);
                others.map(move |other| (update, other))
            });
        let pairs: Vec<(&Grant, &Grant)> = pairs.collect();
        let (update, other) = *self.rng.choice(&pairs)?;
        let (from, until) = (update.both_from(other), update.both_until(other));
        let last = if update.token > other.token {
            update
        } else {
            other
        };
        self.upgraded(update, last, from, until)
    }

    fn reader_upgraded(&mut self) -> Option<()> {
        let grant = self.pick_reader(|grant| !grant.update && grant.is_sure())?;
        self.upgraded(&grant, &grant, grant.answered, grant.sure_until)
    }

    /// A reader's upgrade is granted within a span, with the token after another grant's.
    fn upgraded(
        &mut self,
        reader: &Grant,
        after: &Grant,
        from: Timestamp,
        until: Timestamp,
    ) -> Option<()> {
        let token = self.room_after(after)?;
        let (sent, back) = self.within(from, until);
        let call = Call::Acquire {
            lock: reader.lock.clone(),
            also: Box::default(),
            ttl: None,
            under: Some(reader.token),
            request: None,
            mode: LockMode::Upgrade,
        };
        let answer = Answer::Granted {
            token,
            lease: reader.token,
            phase: None,
            slots: Slots::NONE,
        };
        self.insert(reader.client.clone(), call, answer, sent, back);
        Some(())
    }

    /// The token after a grant's, which nobody has any more.
    fn room_after(&mut self, grant: &Grant) -> Option<Token> {
        let token = grant.token.next()?;
        for event in &mut self.events {
            shift(event, token);
        }
        Some(token)
    }

    fn reslot(&mut self, to: impl Fn(Permits, Slots) -> Option<Slots>) -> Option<()> {
        let fits = |grant: &Grant| {
            let new = grant
                .permits
                .and_then(|(permits, slots)| to(permits, slots));
            new.is_some_and(|new| !new.is_empty())
        };
        let grant = self.pick_permits(fits)?;
        let (permits, old) = grant.permits?;
        let new = to(permits, old)?;
        for event in &mut self.events {
            if let Event::Answer {
                id,
                answer: Answer::Granted { slots, .. },
                ..
            } = event
                && *id == grant.id
            {
                *slots = new;
            }
        }
        Some(())
    }

    /// Two locks of one set, and until when both were certainly held.
    fn parts(&mut self) -> Option<(Grant, Grant, Timestamp)> {
        let grants = &self.sites.grants;
        let pairs = grants.iter().flat_map(|part| {
            let others = grants.iter().filter(move |other| {
                part.id == other.id && part.lock != other.lock && part.is_sure() && other.is_sure()
            });
            others.map(move |other| (part, other))
        });
        let pairs: Vec<(&Grant, &Grant)> = pairs.collect();
        let (part, other) = *self.rng.choice(&pairs)?;
        let until = part.sure_until.min(other.sure_until);
        Some((part.clone(), other.clone(), until))
    }

    fn set_apart(&mut self) -> Option<()> {
        let (part, _, until) = self.parts()?;
        let token = self.room_after(&part)?;
        let (sent, back) = self.within(part.answered, until);
        let answer = Answer::Held {
            token,
            holder: part.client.clone(),
        };
        self.insert(newcomer()?, part.show(), answer, sent, back);
        Some(())
    }

    fn whole_set_released(&mut self) -> Option<()> {
        let (part, other, until) = self.parts()?;
        let (sent, back) = self.within(part.answered, until);
        let answer = Answer::Released { token: part.token };
        self.insert(part.client.clone(), part.release(), answer, sent, sent);
        self.insert(newcomer()?, other.show(), Answer::Free, back, back);
        Some(())
    }

    /// Lengthens to a day, which cannot have passed.
    fn lengthen(&mut self) -> Option<()> {
        let grant = self.pick(|grant| grant.left_alone && grant.next_answered.is_some())?;
        for event in &mut self.events {
            if let Event::Call {
                id,
                call: Call::Acquire { ttl: Some(ttl), .. },
                ..
            } = event
                && grant.attempts.contains(id)
            {
                *ttl = Ttl::MAX;
            }
        }
        Some(())
    }

    fn after_loss(&mut self, answer: impl Fn(&Grant) -> Answer) -> Option<()> {
        let grant = self.pick(|grant| grant.next_answered.is_some())?;
        let answer = answer(&grant);
        let call = match answer {
            Answer::Renewed { .. } => grant.renew(),
            _ => grant.release(),
        };
        self.late(&grant, grant.next_answered?, call, answer)
    }

    fn after_release(&mut self) -> Option<()> {
        let grant = self.pick(|grant| grant.released.is_some())?;
        let answer = Answer::Renewed { token: grant.token };
        self.late(&grant, grant.released?, grant.renew(), answer)
    }

    fn expired_early(&mut self) -> Option<()> {
        let grant = self.pick(Grant::is_sure)?;
        let (sent, back) = self.within(grant.answered, grant.sure_until);
        let answer = Answer::Ended {
            token: grant.token,
            how: Ending::Expired,
        };
        self.insert(grant.client.clone(), grant.renew(), answer, sent, back);
        Some(())
    }

    fn held_by_the_past(&mut self) -> Option<()> {
        let grant = self.pick(|grant| grant.next_answered.is_some())?;
        let call = grant.show();
        let answer = Answer::Held {
            token: grant.token,
            holder: grant.client.clone(),
        };
        self.late(&grant, grant.next_answered?, call, answer)
    }

    fn change_token(&mut self) -> Option<()> {
        let renewed = |event: &Event| {
            let Event::Answer {
                answer: Answer::Renewed { .. },
                ..
            } = event
            else {
                return false;
            };
            true
        };
        let places: Vec<usize> = (0..self.events.len())
            .filter(|at| renewed(&self.events[*at]))
            .collect();
        let place = *self.rng.choice(&places)?;
        if let Event::Answer {
            answer: Answer::Renewed { token },
            ..
        } = &mut self.events[place]
        {
            *token = token.next()?;
        }
        Some(())
    }

    fn free_while_held(&mut self) -> Option<()> {
        let grant = self.pick(Grant::is_sure)?;
        let (sent, back) = self.within(grant.answered, grant.sure_until);
        self.insert(newcomer()?, grant.show(), Answer::Free, sent, back);
        Some(())
    }

    fn revive(&mut self) -> Option<()> {
        let grant = self.pick(|grant| grant.surely_over.is_some())?;
        let over = grant.surely_over?;
        let answer = Answer::Renewed { token: grant.token };
        self.late(&grant, over, grant.renew(), answer)
    }

    fn reader_apart(&mut self) -> Option<()> {
        let readers = &self.sites.readers;
        let joins = |late: &&Grant| {
            let beside = |other: &Grant| {
                (&other.lock, other.phase) == (&late.lock, late.phase)
                    && other.answered < late.sent
                    && late.answered < other.sure_until
            };
            late.phase != Some(late.token) && readers.iter().any(beside)
        };
        let late: Vec<&Grant> = readers.iter().filter(joins).collect();
        let late = (*self.rng.choice(&late)?).clone();
        self.rephase(&late, late.token);
        Some(())
    }

    fn phase_back(&mut self) -> Option<()> {
        let (grants, readers) = (&self.sites.grants, &self.sites.readers);
        let pairs = readers.iter().flat_map(|reader| {
            let before = grants
                .iter()
                .filter(move |writer| writer.lock == reader.lock && writer.token < reader.token);
            before.map(move |writer| (reader, writer.token))
        });
        let pairs: Vec<(&Grant, Token)> = pairs.collect();
        let (reader, token) = *self.rng.choice(&pairs)?;
        self.rephase(&reader.clone(), token);
        Some(())
    }

    fn rephase(&mut self, grant: &Grant, to: Token) {
        for event in &mut self.events {
            if let Event::Answer {
                id,
                answer: Answer::Granted { phase, .. },
                ..
            } = event
                && *id == grant.id
            {
                *phase = Some(to);
            }
        }
    }

    fn pick(&mut self, fits: impl Fn(&Grant) -> bool) -> Option<Grant> {
        let sites = self.sites;
        self.pick_of(&sites.grants, fits)
    }

    fn pick_reader(&mut self, fits: impl Fn(&Grant) -> bool) -> Option<Grant> {
        let sites = self.sites;
        self.pick_of(&sites.readers, fits)
    }

    fn pick_permits(&mut self, fits: impl Fn(&Grant) -> bool) -> Option<Grant> {
        let sites = self.sites;
        self.pick_of(&sites.permits, fits)
    }

    fn pick_of(&mut self, grants: &[Grant], fits: impl Fn(&Grant) -> bool) -> Option<Grant> {
        let fitting: Vec<&Grant> = grants.iter().filter(|grant| fits(grant)).collect();
        self.rng.choice(&fitting).map(|grant| (*grant).clone())
    }

    /// Two ordered instants within a span.
    fn within(&mut self, from: Timestamp, to: Timestamp) -> (Timestamp, Timestamp) {
        let (from, to) = (from.as_nanos() + 1, to.as_nanos() - 1);
        let (a, b) = (self.rng.u64(from..=to), self.rng.u64(from..=to));
        (
            Timestamp::from_nanos(a.min(b)),
            Timestamp::from_nanos(a.max(b)),
        )
    }

    /// A call of the grant's holder, sent after an instant.
    fn late(&mut self, grant: &Grant, after: Timestamp, call: Call, answer: Answer) -> Option<()> {
        let wait = Span::from_nanos(self.rng.u64(1..50_000_000));
        let sent = after.after(wait);
        let back = sent.after(Span::from_nanos(self.rng.u64(1..5_000_000)));
        self.insert(grant.client.clone(), call, answer, sent, back);
        Some(())
    }

    fn insert(
        &mut self,
        client: ClientId,
        call: Call,
        answer: Answer,
        sent: Timestamp,
        back: Timestamp,
    ) {
        let id = self.events.len() as u64;
        self.events.push(Event::Call {
            at: sent,
            id,
            client,
            call,
        });
        self.events.push(Event::Answer {
            at: back,
            id,
            answer,
        });
    }

    /// Gives a grant another token, only in its own answer: later calls keep naming the old one.
    fn reanswer(&mut self, grant: &Grant, new: Token) {
        for event in &mut self.events {
            if let Event::Answer {
                id,
                answer: Answer::Granted { token, lease, .. },
                ..
            } = event
                && *id == grant.id
            {
                (*token, *lease) = (new, (*lease).min(new));
            }
        }
    }
}

/// Whether there is room for a call and its answer.
fn is_long(from: Timestamp, until: Timestamp) -> bool {
    until.since(from) > Span::from_nanos(10)
}

fn newcomer() -> Option<ClientId> {
    ClientId::new("newcomer").ok()
}

/// Increments every token from `first` on.
fn shift(event: &mut Event, first: Token) {
    let up = |token: &mut Token| {
        if *token >= first {
            *token = token.next().unwrap_or(*token);
        }
    };
    match event {
        Event::Call { call, .. } => match call {
            Call::Renew { token, .. }
            | Call::Release { token, .. }
            | Call::Revoke { token, .. } => {
                up(token);
            }
            Call::Acquire { under, .. } => {
                if let Some(lease) = under {
                    up(lease);
                }
            }
            Call::Abandon { .. } | Call::Show { .. } => {}
        },
        Event::Answer { answer, .. } => match answer {
            Answer::Granted {
                token,
                lease,
                phase,
                ..
            } => {
                up(token);
                up(lease);
                phase.iter_mut().for_each(up);
            }
            Answer::HeldShared { phase } => up(phase),
            Answer::Held { token, .. }
            | Answer::Renewed { token }
            | Answer::Released { token }
            | Answer::Revoked { token }
            | Answer::Ended { token, .. }
            | Answer::Stale { token } => up(token),
            Answer::Denied
            | Answer::Free
            | Answer::NotHeld
            | Answer::Abandoned
            | Answer::Refused
            | Answer::Done => {}
        },
        Event::Away { .. } => {}
    }
}

impl Grant {
    fn renew(&self) -> Call {
        Call::Renew {
            lock: self.lock.clone(),
            token: self.token,
            ttl: None,
        }
    }

    fn release(&self) -> Call {
        Call::Release {
            lock: self.lock.clone(),
            token: self.token,
        }
    }

    fn show(&self) -> Call {
        Call::Show {
            lock: self.lock.clone(),
        }
    }

    /// Whether it was certainly live for a while.
    fn is_sure(&self) -> bool {
        is_long(self.answered, self.sure_until)
    }

    /// From when on this grant and another one were both certainly live.
    fn both_from(&self, other: &Grant) -> Timestamp {
        self.answered.max(other.answered)
    }

    /// Until when they were.
    fn both_until(&self, other: &Grant) -> Timestamp {
        self.sure_until.min(other.sure_until)
    }
}
