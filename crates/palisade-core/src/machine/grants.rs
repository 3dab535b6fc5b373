//! Acquire, renew, release, revoke, expire.

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::Machine;
use super::grant::{Grant, GrantAt, GrantSlot, HolderKind};
use super::memory::{NamedRequest, Over};
use super::record::{Closing, Contender, Lease, Owner};
use super::slab::{LeaseSlot, LockSlot};
use crate::command::{Acquire, GrantRef, LockMode, Under};
use crate::id::{GrantId, LeaseId, LeaseKey, Principal, RequestId};
use crate::invalid::Invalid;
use crate::limits;
use crate::name::{ClientId, LockName};
use crate::options::GrantOptions;
use crate::outcome::{Change, Effect, Ending, Granted, Holder, Outcome, Renewed};
use crate::permits::{Permits, Slots};
use crate::time::{Span, Timestamp, Ttl};
use crate::token::Token;

/// The lease a grant goes under, once it is known to be good.
#[derive(Clone, Copy)]
pub(super) enum LeaseFor {
    /// The lease is opened with the grant.
    New { key: LeaseKey, ttl: Ttl },
    /// Is live and belongs to the client.
    Live(LeaseSlot),
}

/// A request that is about to be granted.
pub(super) struct NextGrant {
    pub(super) lease: LeaseFor,
    pub(super) mode: LockMode,
    pub(super) metadata: Option<Box<str>>,
    pub(super) options: GrantOptions,
    pub(super) since: Timestamp,
}

/// A lock, after everything on it that is over by this instant has ended.
pub(super) enum LockStanding {
    /// It has no record.
    Free,
    /// Nobody holds it, and it is kept for an orphan, or closed.
    Kept(LockSlot),
    /// It has readers.
    Shared(LockSlot),
    /// It has a writer.
    Held(LockSlot),
}

/// Why a grant that was named is not to be had.
pub(super) enum Missing {
    /// It is not live.
    Gone,
    /// It is another principal's.
    Anothers,
}

impl Machine {
    pub(super) fn acquire(&mut self, acquire: Acquire, effects: &mut Vec<Effect>) -> Outcome {
        self.touch(&acquire);
        if let Some(request) = acquire.request
            && let Some(known) = self.repeated(&request, &acquire, effects)
        {
            return known;
        }
        if let Err(invalid) = self.check(&acquire) {
            return Outcome::Invalid(invalid);
        }
        let asked = acquire
            .request
            .map(|request| (request, acquire.lock.clone(), acquire.also.clone()));
        let outcome = self.decide(acquire, effects);
        if let Some((request, lock, also)) = asked
            && !matches!(
                outcome,
                Outcome::Queued | Outcome::Invalid(_) | Outcome::WrongPrincipal { .. }
            )
        {
            self.remember(self.by, request, Some(lock), also, outcome.clone());
        }
        outcome
    }

    /// Reads the places in the tables that this request needs: all of them at once, before the content of the first
    /// decides which is read next.
    fn touch(&self, acquire: &Acquire) {
        let (Under::New { key, .. } | Under::Existing { key, .. }) = &acquire.under;
        self.tables.touch_lock(&acquire.lock);
        self.tables.touch_lease(key);
    }

    /// The answer to a request that was here before (rule A12). A grant is reported with its remaining time, or as ended.
    fn repeated(
        &mut self,
        request: &RequestId,
        again: &Acquire,
        effects: &mut Vec<Effect>,
    ) -> Option<Outcome> {
        if let Some(slot) = self.tables.find_waiter(self.by, request)
            && let Some(outcome) = self.rejoin(slot, again, effects)
        {
            return Some(outcome);
        }
        let known = self.answers.get(&self.asked(*request))?;
        if let Some(lock) = &known.lock
            && (*lock != again.lock || known.also != again.also)
        {
            return Some(reused());
        }
        let Outcome::Granted(first) = &known.outcome else {
            return Some(known.outcome.clone());
        };
        if first.shared.is_some() != again.mode.is_shared()
            || first.slots.count() != again.mode.permits().map_or(0, Permits::wanted)
        {
            return Some(reused());
        }
        let (key, token) = (first.key, Some(first.number()));
        Some(self.still_granted(key, token, again, effects))
    }

    fn still_granted(
        &mut self,
        key: LeaseKey,
        token: Option<Token>,
        again: &Acquire,
        effects: &mut Vec<Effect>,
    ) -> Outcome {
        let grant = GrantRef {
            lock: again.lock.clone(),
            key,
            token,
        };
        let live = match self.find_granted(&grant, effects) {
            Err(missing) => return self.missing(&grant, missing),
            // No other client learns that it holds the lock, or gets the holder's secret.
            Ok(live) if *self.tables.client_of(live) != again.client => return reused(),
            Ok(live)
                if let GrantAt::Share(share) = live.at()
                    && self.tables.is_update(share) != (again.mode == LockMode::Update) =>
            {
                return reused();
            }
            Ok(live) => live,
        };
        // A set is answered as a whole, or with what became of its first missing lock.
        for name in &*again.also {
            let grant = GrantRef {
                lock: name.clone(),
                ..grant.clone()
            };
            if let Err(missing) = self.find_granted(&grant, effects) {
                return self.missing(&grant, missing);
            }
        }
        Outcome::Granted(self.granted(live, Span::ZERO))
    }

    fn check(&self, acquire: &Acquire) -> Result<(), Invalid> {
        check_text(
            "metadata",
            acquire.metadata.as_deref(),
            limits::METADATA_BYTES,
        )?;
        if let Some(wait) = acquire.wait
            && wait > limits::MAX_WAIT
        {
            return Err(Invalid::Wait {
                given_ms: wait.as_millis(),
            });
        }
        if !acquire.is_plain() {
            Machine::check_rare(acquire)?;
        }
        match acquire.under {
            Under::New { ttl, .. } => self.check_ttl(ttl),
            Under::Existing { .. } => Ok(()),
        }
    }

    /// Checks the options of a request that is not plain.
    fn check_rare(acquire: &Acquire) -> Result<(), Invalid> {
        if let LockMode::Permits(permits) = acquire.mode {
            Machine::check_permits(&acquire.lock, permits)?;
        }
        if !acquire.also.is_empty() {
            return Machine::check_set(acquire);
        }
        // Readers and permits have no time after them: a phase ends with its last holder, and a slot is another's.
        if acquire.mode == LockMode::Exclusive || acquire.options.is_none() {
            Ok(())
        } else {
            Err(Invalid::OptionsOfShared)
        }
    }

    fn check_ttl(&self, ttl: Ttl) -> Result<(), Invalid> {
        let (min, max) = (self.limits.min_ttl, self.limits.max_ttl);
        if (min..=max).contains(&ttl) {
            Ok(())
        } else {
            Err(Invalid::Ttl {
                given_ms: ttl.as_millis().into(),
                min,
                max,
            })
        }
    }

    /// Only a *different* client with an unexpired grant blocks.
    fn decide(&mut self, acquire: Acquire, effects: &mut Vec<Effect>) -> Outcome {
        if !acquire.also.is_empty() {
            return self.decide_set(acquire, effects);
        }
        // Bring the lock up to date first: this may hand on other locks and open the lease that the request names.
        let standing = self.stand(&acquire.lock, effects);
        let client = self.contender(&acquire.client);
        let lease = match self.lease_for(&acquire.lock, client, &acquire.under) {
            Ok(lease) => lease,
            Err(outcome) => return outcome,
        };
        let lock = match standing {
            LockStanding::Free => return self.grant_free(acquire, lease, effects),
            LockStanding::Kept(lock) => return self.decide_kept(lock, acquire, lease),
            LockStanding::Shared(lock) => return self.decide_shared(lock, acquire, lease, effects),
            LockStanding::Held(lock) => lock,
        };
        if let LockMode::Upgrade | LockMode::Permits(_) = acquire.mode {
            return self.decide_kept(lock, acquire, lease);
        }
        let grant = self.tables.grant_on(lock);
        let holder = self.tables.writer(lock).lease();
        if matches!(lease, LeaseFor::Live(mine) if mine == holder) {
            return match acquire.mode {
                LockMode::Exclusive => Outcome::Granted(self.granted(grant, Span::ZERO)),
                _ => self.downgrade(grant, acquire, effects),
            };
        }
        if self.tables.is_of(grant, self.contender(&acquire.client)) {
            return self.supersede(grant, acquire, lease, effects);
        }
        self.wait_or_deny(lock, acquire)
    }

    pub(super) fn wait_or_deny(&mut self, lock: LockSlot, acquire: Acquire) -> Outcome {
        match acquire.wait {
            None | Some(Span::ZERO) => self.denial(acquire.mode, lock),
            Some(wait) => self.enqueue(lock, acquire, wait),
        }
    }

    /// The lease that a request names, or the reason it cannot be used. An expired lease counts as gone even if its timer
    /// has not fired.
    pub(super) fn lease_for(
        &self,
        lock: &LockName,
        client: Contender<'_>,
        under: &Under,
    ) -> Result<LeaseFor, Outcome> {
        let (Under::New { key, .. } | Under::Existing { key, .. }) = under;
        let known = self.tables.find_lease(key);
        let (key, wanted) = match *under {
            Under::New { .. } if known.is_some() => {
                return Err(Outcome::Invalid(Invalid::LeaseKeyInUse));
            }
            Under::New { key, ttl } => return Ok(LeaseFor::New { key, ttl }),
            Under::Existing { key, ttl } => (key, ttl),
        };
        let live = known.filter(|slot| !self.tables.leases[*slot].is_expired(self.now));
        let Some(slot) = live else {
            return Err(self.past_lease(&key, lock));
        };
        let lease = &self.tables.leases[slot];
        if self.tables.principal_of(lease.client) != client.by {
            return Err(wrong_principal(lock));
        }
        if self.tables.clients[lease.client.slot()].id != *client.id {
            return Err(Outcome::NotHeld);
        }
        match wanted {
            Some(ttl) if ttl != lease.ttl => {
                Err(Outcome::Invalid(Invalid::TtlDiffers { lease: lease.ttl }))
            }
            _ => Ok(LeaseFor::Live(slot)),
        }
    }

    fn grant_free(
        &mut self,
        acquire: Acquire,
        lease: LeaseFor,
        effects: &mut Vec<Effect>,
    ) -> Outcome {
        if acquire.mode != LockMode::Exclusive {
            return self.grant_first_share(acquire, lease, effects);
        }
        if self.tables.locks.len() >= self.limits.locks as usize {
            return Outcome::TooManyLocks {
                max: self.limits.locks,
            };
        }
        let Some(token) = self.draw() else {
            return Outcome::TokensExhausted;
        };
        let lease = self.open(token, lease, self.contender(&acquire.client));
        let lock = self.tables.open_lock(acquire.lock, token, self.wall, lease);
        self.finish_grant(lock, acquire.metadata, acquire.options, Span::ZERO, effects)
    }

    /// The same client takes its own lock back: a new, higher token, and its former life is fenced.
    fn supersede(
        &mut self,
        grant: GrantSlot,
        acquire: Acquire,
        lease: LeaseFor,
        effects: &mut Vec<Effect>,
    ) -> Outcome {
        let lock = self.tables.lock_of(grant);
        if acquire.mode.is_shared() && self.tables.closing(lock) != Closing::NONE {
            return Outcome::Invalid(Invalid::OptionsOfShared);
        }
        let Some(token) = self.draw() else {
            return Outcome::TokensExhausted;
        };
        // Opened before the old lease can end: the slot of a live lease must not be reused.
        let lease = self.open(token, lease, self.contender(&acquire.client));
        self.end(grant, Ending::Superseded, None, effects);
        if acquire.mode.is_shared() {
            let (mode, metadata) = (acquire.mode, acquire.metadata);
            let granted = self.grant_share(lock, token, lease, mode, metadata, Span::ZERO, effects);
            self.admit(lock, effects);
            return granted;
        }
        self.tables.regrant(lock, token, self.wall, lease);
        self.finish_grant(lock, acquire.metadata, acquire.options, Span::ZERO, effects)
    }

    /// Grants a lock to a request from its queue, just after the lock's last grant ended.
    pub(super) fn grant_waiter(
        &mut self,
        lock: LockSlot,
        client: Contender<'_>,
        waiter: NextGrant,
        effects: &mut Vec<Effect>,
    ) -> Outcome {
        let Some(token) = self.draw() else {
            return Outcome::TokensExhausted;
        };
        let lease = self.open(token, waiter.lease, client);
        let waited = self.now.since(waiter.since);
        if waiter.mode != LockMode::Exclusive {
            let (mode, metadata) = (waiter.mode, waiter.metadata);
            return self.grant_share(lock, token, lease, mode, metadata, waited, effects);
        }
        self.tables.regrant(lock, token, self.wall, lease);
        self.finish_grant(lock, waiter.metadata, waiter.options, waited, effects)
    }

    /// Draws the next token. The grant follows in the same entry, so grant order is token order.
    pub(super) fn draw(&mut self) -> Option<Token> {
        let token = self.next_token?;
        self.next_token = token.next();
        Some(token)
    }

    pub(super) fn open(
        &mut self,
        token: Token,
        lease: LeaseFor,
        client: Contender<'_>,
    ) -> LeaseSlot {
        match lease {
            LeaseFor::Live(slot) => slot,
            LeaseFor::New { key, ttl } => {
                let expires = self.now.after(ttl.span());
                self.tables
                    .open_lease(LeaseId(token), key, client, ttl, expires)
            }
        }
    }

    pub(super) fn finish_grant(
        &mut self,
        lock: LockSlot,
        metadata: Option<Box<str>>,
        options: GrantOptions,
        waited: Span,
        effects: &mut Vec<Effect>,
    ) -> Outcome {
        self.changed = true;
        self.tables.set_metadata(lock, metadata);
        self.tables.set_closing(lock, options, self.now);
        let grant = self.tables.grant_on(lock);
        let Lease { ttl, client, .. } = *self.tables.held_by_writer(lock).1;
        if !self.tables.sets.is_empty() {
            self.tables.note_sets_of(client.slot());
        }
        self.event(grant, Change::Granted { ttl }, waited, effects);
        Outcome::Granted(self.granted(grant, waited))
    }

    #[inline]
    pub(super) fn granted(&self, slot: GrantSlot, waited: Span) -> Granted {
        let lock = match slot.at() {
            GrantAt::Share(share) => return self.granted_share(share, waited),
            GrantAt::Lock(lock) => lock,
        };
        let grant = self.tables.writer(lock);
        self.granted_by(grant, grant.token(), None, waited)
    }

    #[inline]
    pub(super) fn granted_by(
        &self,
        grant: &Grant,
        token: Token,
        shared: Option<GrantId>,
        waited: Span,
    ) -> Granted {
        let lease = &self.tables.leases[grant.lease()];
        Granted {
            token,
            shared,
            slots: Slots::NONE,
            lease: lease.id,
            key: lease.key,
            ttl: lease.ttl,
            valid_for: waited.plus(lease.expires.since(self.now)),
            waited,
            acquired_at: grant.wall(),
        }
    }

    pub(super) fn renew(
        &mut self,
        grant: &GrantRef,
        ttl: Option<Ttl>,
        effects: &mut Vec<Effect>,
    ) -> Outcome {
        if let Some(Err(invalid)) = ttl.map(|ttl| self.check_ttl(ttl)) {
            return Outcome::Invalid(invalid);
        }
        let live = match self.find_granted(grant, effects) {
            Ok(live) => live,
            Err(missing) => return self.missing(grant, missing),
        };
        self.changed = true;
        let (token, slot) = self.tables.fencing(live);
        self.tables.extensions.forget(slot);
        let lease = &mut self.tables.leases[slot];
        let left = lease.expires.since(self.now);
        let near_deadline = left.as_nanos() < lease.ttl.span().as_nanos() / 4;
        let before = lease.ttl;
        let asked = ttl.unwrap_or(before);
        let until = self.now.after(asked.span());
        // A renewal never shortens a lease: if its answer is lost, the holder still relies on its earlier time. So a
        // shorter time to live comes into force only when no more than that is left.
        let (ttl, valid_for) = if until >= lease.expires {
            lease.expires = until;
            (asked, asked.span())
        } else {
            (before, left)
        };
        if ttl != before {
            self.tables.set_ttl(slot, ttl);
        }
        Outcome::Renewed(Renewed {
            token,
            ttl,
            valid_for,
            near_deadline,
            waiters: self.waiting_under(slot),
        })
    }

    /// How many requests wait for the locks of a lease. A lease may have any number of grants, and a set has no more than
    /// are looked at.
    #[inline]
    fn waiting_under(&self, lease: LeaseSlot) -> u32 {
        if self.tables.waiters.len() == 0 {
            return 0;
        }
        let grants = self.tables.grants_of(lease).take(limits::SET_LOCKS);
        let waiting = grants.map(|grant| self.tables.waiting(self.tables.lock_of(grant)));
        waiting.fold(0, u32::saturating_add)
    }

    /// Draws no token, so claims made with the current one stay admitted (E2). An empty value deletes the earlier one.
    pub(super) fn proclaim(
        &mut self,
        grant: &GrantRef,
        value: Box<str>,
        effects: &mut Vec<Effect>,
    ) -> Outcome {
        if let Err(invalid) = check_text("value", Some(&value), limits::METADATA_BYTES) {
            return Outcome::Invalid(invalid);
        }
        let live = match self.find_granted(grant, effects) {
            Ok(live) => live,
            Err(missing) => return self.missing(grant, missing),
        };
        let GrantAt::Lock(lock) = live.at() else {
            return Outcome::Invalid(Invalid::ProclaimOfShared);
        };
        self.changed = true;
        let token = self.tables.writer(lock).token();
        self.tables
            .set_metadata(lock, Some(value).filter(|value| !value.is_empty()));
        self.event(live, Change::Proclaimed, Span::ZERO, effects);
        Outcome::Proclaimed {
            token,
            revision: self.revision,
        }
    }

    pub(super) fn release(&mut self, grant: &GrantRef, effects: &mut Vec<Effect>) -> Outcome {
        let live = match self.find_granted(grant, effects) {
            Ok(live) => live,
            Err(missing) => return self.missing(grant, missing),
        };
        let token = self.tables.grant(live).token();
        let delayed = match live.at() {
            GrantAt::Share(_) => None,
            GrantAt::Lock(lock) => self.closed_after(lock, Ending::Released),
        };
        let delayed = delayed.map(|until| until.since(self.now));
        self.end_and_wake(live, Ending::Released, None, effects);
        Outcome::Released { token, delayed }
    }

    pub(super) fn revoke(
        &mut self,
        lock: &LockName,
        token: Token,
        reason: Box<str>,
        effects: &mut Vec<Effect>,
    ) -> Outcome {
        if let Err(invalid) = check_text("reason", Some(&reason), limits::REASON_BYTES) {
            return Outcome::Invalid(invalid);
        }
        let grant = match self.stand(lock, effects) {
            LockStanding::Held(lock) => self.tables.grant_on(lock),
            LockStanding::Shared(lock) => match self.tables.reader(lock, token) {
                Some(share) => share.grant(),
                None => return self.stale(lock, token),
            },
            LockStanding::Free | LockStanding::Kept(_) => return Outcome::NotHeld,
        };
        let highest = self.tables.grant(grant).token();
        if highest != token {
            return Outcome::Stale {
                named: token,
                highest,
            };
        }
        self.end_and_wake(grant, Ending::Revoked, Some(reason), effects);
        Outcome::Revoked { token }
    }

    pub(super) fn end_and_wake(
        &mut self,
        grant: GrantSlot,
        how: Ending,
        reason: Option<Box<str>>,
        effects: &mut Vec<Effect>,
    ) {
        let lock = match grant.at() {
            GrantAt::Share(share) => return self.leave_phase(share, how, reason, effects),
            GrantAt::Lock(lock) => lock,
        };
        if !self.tables.locks[lock].extra.is_none() {
            return self.end_and_close(lock, how, reason, effects);
        }
        self.end(grant, how, reason, effects);
        self.tables.close_lock(lock);
    }

    /// As [`Machine::end_and_wake`], for the writer of a lock that may have a queue, or is closed for a time.
    fn end_and_close(
        &mut self,
        lock: LockSlot,
        how: Ending,
        reason: Option<Box<str>>,
        effects: &mut Vec<Effect>,
    ) {
        let waits = self.tables.first_waiter(lock).is_some();
        let grant = self.tables.grant_on(lock);
        let last = waits.then(|| Outcome::Held(self.holder_by(grant)));
        let until = self.closed_after(lock, how);
        self.end(grant, how, reason, effects);
        self.close(lock, until);
        match last {
            Some(last) => self.wake(lock, &last, effects),
            None if until.is_none() => self.tables.close_lock(lock),
            None => {}
        }
    }

    /// Ends a grant and remembers how. The lock's record stays for the next grant.
    pub(super) fn end(
        &mut self,
        grant: GrantSlot,
        how: Ending,
        reason: Option<Box<str>>,
        effects: &mut Vec<Effect>,
    ) {
        let lock = match grant.at() {
            GrantAt::Share(share) => return self.end_share(share, how, reason, effects),
            GrantAt::Lock(lock) => lock,
        };
        self.changed = true;
        self.ended += 1;
        let delayed = self.closed_after(lock, how);
        let change = Change::Ended {
            how,
            reason,
            delayed: delayed.map(|until| until.since(self.now)),
        };
        self.event(grant, change, Span::ZERO, effects);
        let (ends, lease) = self.tables.held_by_writer(lock);
        self.over.remember(Over {
            by: self.tables.principal_of(lease.client),
            key: lease.key,
            lock: self.tables.locks[lock].name.clone(),
            token: ends.token(),
            how,
            again: 0,
        });
        self.tables.set_metadata(lock, None);
        self.tables.untie(grant);
    }

    /// Whether a lock is held now. A grant whose lease is over by this very instant ends first, and so does the time of an
    /// orphan: the boundary is exact, even if no timer has fired. The lease's other grants wait for their turn.
    pub(super) fn stand(&mut self, lock: &LockName, effects: &mut Vec<Effect>) -> LockStanding {
        let Some(slot) = self.tables.find_lock(lock) else {
            return LockStanding::Free;
        };
        let grant = self.tables.grant_on(slot);
        match self.tables.lease_of_writer(slot) {
            Some(lease) if !lease.is_expired(self.now) => return LockStanding::Held(slot),
            Some(_) => self.end_and_wake(grant, Ending::Expired, None, effects),
            None if self.tables.has_live_readers_only(slot, self.now) => {
                return LockStanding::Shared(slot);
            }
            None => self.bring_up(slot, effects),
        }
        match self.tables.find_lock(lock) {
            None => LockStanding::Free,
            Some(slot) => match self.tables.writer(slot).by().holding() {
                HolderKind::Nobody => LockStanding::Kept(slot),
                HolderKind::Readers => LockStanding::Shared(slot),
                HolderKind::Lease(_) => LockStanding::Held(slot),
            },
        }
    }

    /// The grant that a reference names, if it is live and the principal that asks may use it. As [`Machine::stand`].
    #[inline(always)]
    pub(super) fn find_granted(
        &mut self,
        named: &GrantRef,
        effects: &mut Vec<Effect>,
    ) -> Result<GrantSlot, Missing> {
        match self.stand(&named.lock, effects) {
            LockStanding::Held(held) => {
                let (grant, lease) = self.tables.held_by_writer(held);
                if !is_meant(grant, lease, named) {
                    return Err(Missing::Gone);
                }
                if self.may_use(lease.client) {
                    Ok(self.tables.grant_on(held))
                } else {
                    Err(Missing::Anothers)
                }
            }
            LockStanding::Shared(lock) => self.find_reader(lock, named, effects),
            LockStanding::Free | LockStanding::Kept(_) => Err(Missing::Gone),
        }
    }

    /// The grant that a reference names, if it is live.
    pub(super) fn live_grant(&self, named: &GrantRef) -> Option<GrantSlot> {
        let held = self.tables.find_lock(&named.lock)?;
        let grant = self.tables.writer(held);
        let Some(lease) = self.tables.lease_of_writer(held) else {
            return self.live_share(held, named);
        };
        let is_live = is_meant(grant, lease, named) && !lease.is_expired(self.now);
        is_live.then(|| self.tables.grant_on(held))
    }

    /// Whether the principal that asks, and has shown the lease's secret, may renew or release a grant. Only the grant's
    /// own principal may. An anonymous grant may be from before there were rules, so everybody may.
    #[inline(always)]
    pub(super) fn may_use(&self, owner: Owner) -> bool {
        self.may_be_used_by(owner, self.by)
    }

    #[inline(always)]
    pub(super) fn may_be_used_by(&self, owner: Owner, by: Principal) -> bool {
        !owner.is_named() || self.tables.principal_of(owner) == by
    }

    pub(super) fn missing(&self, grant: &GrantRef, missing: Missing) -> Outcome {
        match missing {
            Missing::Gone => match (self.past(grant), self.other_number(grant)) {
                (Outcome::NotHeld, Some(has)) => Outcome::OtherNumber { has },
                (past, _) => past,
            },
            Missing::Anothers => wrong_principal(&grant.lock),
        }
    }

    /// The number of the live grant that a lease has of a lock, for a reference to another one.
    fn other_number(&self, grant: &GrantRef) -> Option<Token> {
        let any = GrantRef {
            token: None,
            ..grant.clone()
        };
        let live = self.live_grant(&any)?;
        let (held, lease) = self.tables.held(live);
        self.may_use(lease.client).then(|| held.token())
    }

    pub(super) fn contender<'a>(&self, id: &'a ClientId) -> Contender<'a> {
        Contender { by: self.by, id }
    }

    /// The name of a request of the principal that asks.
    pub(super) fn asked(&self, request: RequestId) -> NamedRequest {
        NamedRequest {
            by: self.by,
            request,
        }
    }

    /// The memory of a grant that is not live.
    pub(super) fn past(&self, grant: &GrantRef) -> Outcome {
        ended(self.over.latest(&grant.key, |over| {
            over.lock == grant.lock && grant.token.is_none_or(|token| token == over.token)
        }))
    }

    /// The memory of a lease that is not live: how it lost the lock asked for, or its last one. A lease that is still in
    /// line loses it by expiry.
    pub(super) fn past_lease(&self, key: &LeaseKey, lock: &LockName) -> Outcome {
        let of_lock = self.over.latest(key, |over| over.lock == *lock);
        if of_lock.is_none()
            && let Some(lease) = self.tables.find_lease(key)
        {
            return Outcome::Ended {
                token: self.tables.grant(self.tables.last_grant(lease)).token(),
                how: Ending::Expired,
            };
        }
        ended(of_lock.or_else(|| self.over.latest(key, |_| true)))
    }

    /// The holder by a grant.
    pub(super) fn holder_by(&self, grant: GrantSlot) -> Holder {
        let (held, lease) = self.tables.held(grant);
        Holder {
            client: self.tables.clients[lease.client.slot()].id.clone(),
            token: match grant.at() {
                GrantAt::Share(share) => self.tables.fencing_of_share(share),
                GrantAt::Lock(_) => held.token(),
            },
            remaining: lease.expires.since(self.now),
        }
    }
}

pub(super) fn is_meant(grant: &Grant, lease: &Lease, named: &GrantRef) -> bool {
    lease.key == named.key && named.token.is_none_or(|token| token == grant.token())
}

fn wrong_principal(lock: &LockName) -> Outcome {
    Outcome::WrongPrincipal { lock: lock.clone() }
}

fn ended(known: Option<&Over>) -> Outcome {
    known.map_or(Outcome::NotHeld, |over| Outcome::Ended {
        token: over.token,
        how: over.how,
    })
}

pub(super) fn check_text(
    what: &'static str,
    text: Option<&str>,
    max: usize,
) -> Result<(), Invalid> {
    match text.map_or(0, str::len) {
        bytes if bytes > max => Err(Invalid::TooLong { what, bytes, max }),
        _ => Ok(()),
    }
}

pub(super) fn reused() -> Outcome {
    Outcome::Invalid(Invalid::RequestReused)
}
