//! Readers: how they join, leave, and are distinguished (rules S1–S7 and S10). How one of them becomes a writer (S8) is
//! in [`upgrade`](super::upgrade).

use alloc::boxed::Box;
use alloc::vec::Vec;

use super::Machine;
use super::grant::GrantSlot;
use super::grants::{LeaseFor, Missing, is_meant};
use super::memory::Over;
use super::record::Closing;
use super::slab::{LeaseSlot, LockSlot, ShareSlot};
use crate::command::{Acquire, GrantRef, LockMode};
use crate::invalid::Invalid;
use crate::outcome::{Change, Effect, Ending, Event, Granted, Holder, Outcome};
use crate::permits::Slots;
use crate::time::Span;
use crate::token::Token;

// Kept out of the path of an exclusive lock: without `#[cold]` and `#[inline(never)]` here and on `settle_each` (`waiting.rs`),
// a pair of acquire and release takes 2.0 % more instructions, and a renewal 6.9 %.
impl Machine {
    /// A lock that has readers is asked for. A reader joins them unless somebody waits already: strict order of
    /// arrival, so that neither side starves (S6).
    #[cold]
    #[inline(never)]
    pub(super) fn decide_shared(
        &mut self,
        lock: LockSlot,
        acquire: Acquire,
        lease: LeaseFor,
        effects: &mut Vec<Effect>,
    ) -> Outcome {
        if let Err(invalid) = self.check_kind(lock, acquire.mode) {
            return Outcome::Invalid(invalid);
        }
        if let LockMode::Permits(permits) = acquire.mode {
            return self.decide_permits(lock, acquire, permits, lease, effects);
        }
        if acquire.mode == LockMode::Upgrade {
            return self.decide_upgrade(lock, acquire, lease, effects);
        }
        if let LeaseFor::Live(mine) = lease
            && let Some(share) = self.tables.find_share(lock, mine)
        {
            return self.held_already(share, acquire.mode, Span::ZERO);
        }
        if self.is_in_the_way(lock, acquire.mode) || self.tables.first_waiter(lock).is_some() {
            return self.wait_or_deny(lock, acquire);
        }
        let Some(number) = self.draw() else {
            return Outcome::TokensExhausted;
        };
        let lease = self.open(number, lease, self.contender(&acquire.client));
        let (mode, metadata) = (acquire.mode, acquire.metadata);
        self.grant_share(lock, number, lease, mode, metadata, Span::ZERO, effects)
    }

    /// Whether a lock's phase is from before a restore. Its token may be lower than one of a later writer, which may have
    /// changed the data that the phase's readers have read (S11).
    pub(crate) fn is_restored(&self, lock: LockSlot) -> bool {
        self.restored
            .is_some_and(|first| self.tables.writer(lock).token() < first)
    }

    /// Adds a reader, or a holder of permits. On a lock that nobody holds it begins a phase, with the reader's number as
    /// its token (S1).
    #[cold]
    #[inline(never)]
    #[expect(clippy::too_many_arguments, reason = "what a grant consists of")]
    pub(super) fn grant_share(
        &mut self,
        lock: LockSlot,
        number: Token,
        lease: LeaseSlot,
        mode: LockMode,
        metadata: Option<Box<str>>,
        waited: Span,
        effects: &mut Vec<Effect>,
    ) -> Outcome {
        self.changed = true;
        if !self.tables.is_shared(lock) {
            self.tables.begin_phase(lock, number);
        }
        let slots = match mode.permits() {
            None => Slots::NONE,
            Some(permits) => {
                self.tables
                    .extra_mut(lock)
                    .permits
                    .get_or_insert(permits.of());
                let free = self.tables.free_slots(lock);
                match free.lowest(permits.wanted()) {
                    Some(slots) => slots,
                    None => {
                        unreachable!("{permits:?} are granted, and only {free:?} are free (P2)")
                    }
                }
            }
        };
        let share = self
            .tables
            .add_share(lock, number, self.wall, slots, metadata);
        self.tables.tie(share.grant(), lease);
        if mode == LockMode::Update {
            self.tables.mark_update(share);
        }
        let ttl = self.tables.leases[lease].ttl;
        self.event(share.grant(), Change::Granted { ttl }, waited, effects);
        Outcome::Granted(self.granted_share(share, waited))
    }

    /// A lease that has a lock together with others asks for it again: a repeat, if it asks for the same.
    pub(super) fn held_already(&self, share: ShareSlot, mode: LockMode, waited: Span) -> Outcome {
        match (mode, self.tables.is_update(share)) {
            (LockMode::Permits(permits), _) => self.again(share, permits, waited),
            (LockMode::Shared, false) | (LockMode::Update, true) => {
                Outcome::Granted(self.granted_share(share, waited))
            }
            _ => Outcome::Invalid(self.other_mode(share)),
        }
    }

    /// The first reader of a lock that had no record.
    #[cold]
    #[inline(never)]
    pub(super) fn grant_first_share(
        &mut self,
        acquire: Acquire,
        lease: LeaseFor,
        effects: &mut Vec<Effect>,
    ) -> Outcome {
        if acquire.mode == LockMode::Upgrade {
            return self.refuse_upgrade(&acquire, lease);
        }
        if let Some(too_many) = self.too_many_locks(1) {
            return too_many;
        }
        let Some(number) = self.draw() else {
            return Outcome::TokensExhausted;
        };
        let lease = self.open(number, lease, self.contender(&acquire.client));
        let lock = self.tables.add_lock(acquire.lock, number, self.wall);
        let (mode, metadata) = (acquire.mode, acquire.metadata);
        self.grant_share(lock, number, lease, mode, metadata, Span::ZERO, effects)
    }

    #[cold]
    #[inline(never)]
    pub(super) fn granted_share(&self, share: ShareSlot, waited: Span) -> Granted {
        let (grant, named) = self.tables.named(share);
        Granted {
            slots: named.slots,
            ..self.granted_by(grant, named.token, named.reader, waited)
        }
    }

    #[cold]
    #[inline(never)]
    pub(super) fn event_of_share(
        &self,
        share: ShareSlot,
        change: Change,
        waited: Span,
        effects: &mut Vec<Effect>,
    ) {
        let (grant, named) = self.tables.named(share);
        let lease = &self.tables.leases[grant.lease()];
        let client = &self.tables.clients[lease.client.slot()];
        effects.push(Effect::Event(Event {
            revision: self.revision,
            at: self.now,
            wall: self.wall,
            token: named.token,
            shared: named.reader,
            slots: named.slots,
            lock: named.lock.clone(),
            client: Some(client.id.clone()),
            by: client.by,
            lease: Some(lease.id),
            held: self.wall.since(grant.wall()),
            detail: self.detail(share.grant(), lease, &change, waited),
            change,
        }));
    }

    /// Ends a shared grant and remembers how.
    #[cold]
    #[inline(never)]
    pub(super) fn end_share(
        &mut self,
        share: ShareSlot,
        how: Ending,
        reason: Option<Box<str>>,
        effects: &mut Vec<Effect>,
    ) {
        self.note_end_of_share(share, how, reason, effects);
        self.tables.remove_share(share);
    }

    /// Reports that a shared grant ends, and remembers how.
    pub(super) fn note_end_of_share(
        &mut self,
        share: ShareSlot,
        how: Ending,
        reason: Option<Box<str>>,
        effects: &mut Vec<Effect>,
    ) {
        self.changed = true;
        self.ended += 1;
        let change = Change::Ended {
            how,
            reason,
            delayed: None,
        };
        self.event(share.grant(), change, Span::ZERO, effects);
        let (ends, named) = self.tables.named(share);
        let lease = &self.tables.leases[ends.lease()];
        self.over.remember(Over {
            by: self.tables.principal_of(lease.client),
            key: lease.key,
            lock: named.lock.clone(),
            token: ends.token(),
            how,
            again: 0,
        });
    }

    /// As [`Machine::end_and_wake`], for a reader: the phase goes on with the others (S2). Only a semaphore, or a request
    /// that has to do with mode update, is handed on while readers are left.
    #[cold]
    #[inline(never)]
    pub(super) fn leave_phase(
        &mut self,
        share: ShareSlot,
        how: Ending,
        reason: Option<Box<str>>,
        effects: &mut Vec<Effect>,
    ) {
        let lock = self.tables.lock_of_share(share);
        let waits = self.tables.first_waiter(lock).is_some();
        let last = waits.then(|| Outcome::Held(self.holder_by(share.grant())));
        self.end_share(share, how, reason, effects);
        match last {
            Some(last)
                if !self.tables.is_shared(lock)
                    || self.tables.permits(lock).is_some()
                    || self.update_is_first(lock) =>
            {
                self.wake(lock, &last, effects);
            }
            None if self.tables.is_kept(lock) => self.tables.close_lock(lock),
            _ => {}
        }
    }

    /// A writer becomes a reader, in one step and with a new number, so that its own delayed write does not pass (S7).
    #[cold]
    #[inline(never)]
    pub(super) fn downgrade(
        &mut self,
        grant: GrantSlot,
        acquire: Acquire,
        effects: &mut Vec<Effect>,
    ) -> Outcome {
        if acquire.mode != LockMode::Shared {
            return Outcome::Invalid(Invalid::NotUpdate);
        }
        let lock = self.tables.lock_of(grant);
        if self.tables.closing(lock) != Closing::NONE {
            return Outcome::Invalid(Invalid::OptionsOfShared);
        }
        let Some(number) = self.draw() else {
            return Outcome::TokensExhausted;
        };
        let lease = self.tables.grant(grant).lease();
        // Tied before the exclusive grant ends: the lease must not end with it.
        let share = self
            .tables
            .add_share(lock, number, self.wall, Slots::NONE, acquire.metadata);
        self.tables.tie(share.grant(), lease);
        self.end(grant, Ending::Superseded, None, effects);
        self.tables.begin_phase(lock, number);
        let ttl = self.tables.leases[lease].ttl;
        self.event(share.grant(), Change::Granted { ttl }, Span::ZERO, effects);
        let granted = Outcome::Granted(self.granted_share(share, Span::ZERO));
        self.admit(lock, effects);
        granted
    }

    /// Admits the run of readers at the head of the queue to the phase in progress (S6).
    #[cold]
    #[inline(never)]
    pub(super) fn admit(&mut self, lock: LockSlot, effects: &mut Vec<Effect>) {
        if self.tables.first_waiter(lock).is_some() {
            self.wake(lock, &self.denial(LockMode::Exclusive, lock), effects);
        }
    }

    /// Brings a lock without a writer up to this instant. Ends orphans whose window is over and readers whose leases
    /// expired, as many as an entry may end beside its command. The rest end within the millisecond.
    #[cold]
    #[inline(never)]
    pub(super) fn bring_up(&mut self, lock: LockSlot, effects: &mut Vec<Effect>) {
        let is_for_nobody = self.tables.is_kept(lock)
            && self.tables.first_waiter(lock).is_none()
            && self.tables.closed(lock).is_none();
        assert!(!is_for_nobody, "a lock is kept for nobody");
        if self.tables.permits(lock).is_some() {
            return self.bring_up_semaphore(lock, effects);
        }
        if self.tables.closed(lock).is_some() {
            return self.open_due(lock, effects);
        }
        let most = self.expiry.beside.max(1);
        let mut ended = 0;
        while ended < most
            && let Some(oldest) = self.tables.oldest_reader(lock)
            && self.tables.lease_of(oldest.grant()).is_expired(self.now)
        {
            let last = self.tables.readers(lock) == 1;
            self.leave_phase(oldest, Ending::Expired, None, effects);
            if last {
                return;
            }
            ended += 1;
        }
        // The last one to go may have let an upgrade have the lock.
        if !self.tables.is_exclusive(lock) {
            self.admit(lock, effects);
        }
    }

    /// The grant of the lease with this key in the lock's phase, if the principal that asks may use it. A grant with a
    /// lease that is over by this instant ends.
    #[cold]
    #[inline(never)]
    pub(super) fn find_reader(
        &mut self,
        lock: LockSlot,
        named: &GrantRef,
        effects: &mut Vec<Effect>,
    ) -> Result<GrantSlot, Missing> {
        let lease = self.tables.find_lease(&named.key).ok_or(Missing::Gone)?;
        let share = self.tables.find_share(lock, lease).ok_or(Missing::Gone)?;
        let record = &self.tables.leases[lease];
        if record.is_expired(self.now) {
            self.leave_phase(share, Ending::Expired, None, effects);
            return Err(Missing::Gone);
        }
        if !is_meant(self.tables.grant_of_share(share), record, named) {
            return Err(Missing::Gone);
        }
        if self.may_use(record.client) {
            Ok(share.grant())
        } else {
            Err(Missing::Anothers)
        }
    }

    /// The reader that a reference names, if its lease is live.
    #[cold]
    #[inline(never)]
    pub(super) fn live_share(&self, lock: LockSlot, named: &GrantRef) -> Option<GrantSlot> {
        let lease = self.tables.find_lease(&named.key)?;
        let share = self.tables.find_share(lock, lease)?.grant();
        let (grant, lease) = self.tables.held(share);
        (is_meant(grant, lease, named) && !lease.is_expired(self.now)).then_some(share)
    }

    /// No grant of the lock's phase has the number that was named. Readers have one token, and of a semaphore's holders
    /// the youngest has the highest: nobody else is looked at.
    pub(super) fn stale(&self, lock: LockSlot, named: Token) -> Outcome {
        let Some(youngest) = self.tables.youngest_reader(lock) else {
            unreachable!("a lock in a shared phase has no reader (S1)");
        };
        Outcome::Stale {
            named,
            highest: self.tables.fencing_of_share(youngest),
        }
    }

    /// Returns whoever blocks a request made now. For a reader that finds readers, this is the first request in the
    /// queue.
    #[cold]
    #[inline(never)]
    pub(super) fn ahead_of(&self, mode: LockMode, lock: LockSlot) -> Outcome {
        let ahead = self.ahead_on(lock);
        let reader = match mode {
            LockMode::Upgrade => self.tables.ahead_of_upgrade(lock),
            LockMode::Update => self.tables.update_on(lock),
            _ => None,
        };
        match self.tables.first_waiter(lock) {
            first
                if let Some(reader) = reader
                    && (first.is_none() || mode == LockMode::Upgrade) =>
            {
                Outcome::Held(self.holder_by(reader.grant()))
            }
            Some(first) if mode != LockMode::Exclusive && self.tables.is_shared(lock) => {
                match ahead {
                    Outcome::Held(Holder { remaining, .. }) => self.behind(first, remaining),
                    ahead => ahead,
                }
            }
            _ => ahead,
        }
    }
}
