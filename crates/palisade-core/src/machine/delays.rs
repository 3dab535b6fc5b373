//! Locks that are free and closed until an instant: lock-delay and at-least-for (rules D1, D2 and D4).
//!
//! ```text
//!   held { lock_delay, reserved } ──expired, revoked──► closed until the end of the delay, and of the reservation
//!                                 ──released──────────► closed until the end of the reservation
//! ```
//!
//! A closed lock has a record without a grant, like a lock kept for an orphan, and its queue stays. Closed locks are
//! few, so a map in the order of their instants serves as their timers.

use alloc::vec::Vec;

use super::Machine;
use super::grants::{LockStanding, check_text};
use super::record::Closing;
use super::slab::LockSlot;
use super::tables::Tables;
use crate::command::LockMode;
use crate::limits;
use crate::name::LockName;
use crate::options::GrantOptions;
use crate::outcome::{Change, Delayed, Detail, Effect, Ending, Event, Outcome};
use crate::permits::Slots;
use crate::time::{Span, Timestamp};

impl Tables {
    /// How long a lock stays closed after its grant, or after its last one.
    pub(crate) fn closing(&self, lock: LockSlot) -> Closing {
        self.extra(lock)
            .map_or(Closing::NONE, |extra| extra.closing)
    }

    /// Until when a lock that nobody holds is closed; perhaps that is over, and nobody has asked since.
    #[inline]
    pub(crate) fn closed(&self, lock: LockSlot) -> Option<Timestamp> {
        self.extra(lock)?.closed
    }

    /// Notes the options of a new grant.
    #[inline]
    pub(super) fn set_closing(&mut self, lock: LockSlot, options: GrantOptions, now: Timestamp) {
        if !options.is_none() || !self.locks[lock].extra.is_none() {
            self.note_closing(lock, options, now);
        }
    }

    /// A client that took its own lock over does not shorten the reservation of its former grant.
    fn note_closing(&mut self, lock: LockSlot, options: GrantOptions, now: Timestamp) {
        let at_least = Some(options.at_least_for()).filter(|span| *span > Span::ZERO);
        let closing = &mut self.extra_mut(lock).closing;
        let before = closing.reserved.filter(|until| *until > now);
        *closing = Closing {
            options,
            reserved: before.max(at_least.map(|span| now.after(span))),
            inherited: before,
        };
    }

    /// A grant that its caller gave up before using it reserves nothing. Reservations of earlier grants stay.
    pub(super) fn forget_reservation(&mut self, lock: LockSlot) {
        if !self.locks[lock].extra.is_none() {
            let closing = &mut self.extra_mut(lock).closing;
            closing.reserved = closing.inherited;
        }
    }

    /// Notes the options of a grant from a snapshot.
    pub(super) fn restore_closing(&mut self, lock: LockSlot, closing: Closing) {
        if closing != Closing::NONE {
            self.extra_mut(lock).closing = closing;
        }
    }

    /// Closes a lock that nobody holds.
    pub(super) fn close_until(&mut self, lock: LockSlot, until: Timestamp) {
        let last = self.writer(lock).token();
        assert!(
            self.is_kept(lock),
            "a lock is closed that somebody holds (D1)"
        );
        self.extra_mut(lock).closed = Some(until);
        let other = self.closed_locks.insert((until, last), lock);
        assert_eq!(other, None, "two closed locks have one last token");
    }

    /// Opens it again, if it was closed.
    pub(super) fn open_again(&mut self, lock: LockSlot) {
        if let Some(until) = self.closed(lock) {
            let last = self.writer(lock).token();
            self.extra_mut(lock).closed = None;
            let noted = self.closed_locks.remove(&(until, last));
            assert_eq!(noted, Some(lock), "a closed lock has no timer (D2)");
        }
    }

    /// When the first closed lock opens.
    #[inline]
    pub(super) fn first_opening(&self) -> Option<Timestamp> {
        let first = self.closed_locks.first_key_value();
        first.map(|((until, _), _)| *until)
    }

    /// The first closed lock that is due to open.
    pub(super) fn first_to_open(&self, now: Timestamp) -> Option<LockSlot> {
        let ((until, _), lock) = self.closed_locks.first_key_value()?;
        (*until <= now).then_some(*lock)
    }
}

impl Machine {
    /// Until when nobody is granted a lock after the end of its writer's grant.
    #[inline]
    pub(super) fn closed_after(&self, lock: LockSlot, how: Ending) -> Option<Timestamp> {
        if self.tables.locks[lock].extra.is_none() {
            return None;
        }
        let expires = self.tables.held_by_writer(lock).1.expires;
        self.closing_at(lock, how, expires)
            .filter(|until| *until > self.now)
    }

    fn closing_at(&self, lock: LockSlot, how: Ending, expires: Timestamp) -> Option<Timestamp> {
        let Closing {
            options,
            reserved,
            inherited: _,
        } = self.tables.closing(lock);
        let from = match how {
            Ending::Superseded => return None,
            Ending::Released => None,
            Ending::Expired => Some(expires),
            Ending::Revoked => Some(self.now),
        };
        let lock_delay = options.lock_delay();
        let delayed = from.filter(|_| lock_delay > Span::ZERO);
        delayed.map(|from| from.after(lock_delay)).max(reserved)
    }

    /// Closes a lock when its writer's grant has just ended.
    pub(super) fn close(&mut self, lock: LockSlot, until: Option<Timestamp>) {
        self.tables.extra_mut(lock).closing = Closing::NONE;
        if let Some(until) = until {
            self.tables.close_until(lock, until);
        }
    }

    /// Opens a lock that is due, and hands it on.
    pub(super) fn open_due(&mut self, lock: LockSlot, effects: &mut Vec<Effect>) {
        let last = self.denial(LockMode::Exclusive, lock);
        self.wake(lock, &last, effects);
    }

    /// An operator opens a closed lock, which is handed on (D3).
    pub(super) fn reopen(
        &mut self,
        name: &LockName,
        reason: &str,
        effects: &mut Vec<Effect>,
    ) -> Outcome {
        if let Err(invalid) = check_text("reason", Some(reason), limits::REASON_BYTES) {
            return Outcome::Invalid(invalid);
        }
        let lock = match self.stand(name, effects) {
            LockStanding::Kept(lock) if self.tables.closed(lock).is_some() => lock,
            _ => return Outcome::NotHeld,
        };
        let last = Outcome::Delayed(Delayed {
            token: self.tables.writer(lock).token(),
            remaining: Span::ZERO,
        });
        self.tables.open_again(lock);
        self.changed = true;
        self.event_of_opening(lock, reason, effects);
        self.wake(lock, &last, effects);
        Outcome::Done
    }

    /// The lease of the last grant may be over, and its client forgotten.
    fn event_of_opening(&mut self, lock: LockSlot, reason: &str, effects: &mut Vec<Effect>) {
        self.revision += 1;
        if self.silent {
            return;
        }
        let last = self.tables.writer(lock);
        effects.push(Effect::Event(Event {
            revision: self.revision,
            at: self.now,
            wall: self.wall,
            lock: self.tables.locks[lock].name.clone(),
            client: None,
            token: last.token(),
            shared: None,
            slots: Slots::NONE,
            by: self.by,
            lease: None,
            held: Span::ZERO,
            detail: Detail::default(),
            change: Change::Opened {
                reason: reason.into(),
            },
        }));
    }

    /// Why a request that comes now is not granted.
    pub(super) fn denial(&self, mode: LockMode, lock: LockSlot) -> Outcome {
        match self.tables.closed(lock) {
            Some(until) => Outcome::Delayed(Delayed {
                token: self.tables.writer(lock).token(),
                remaining: until.since(self.now),
            }),
            None => self.ahead_of(mode, lock),
        }
    }

    /// Until when a lock is closed at `now`, whether or not the end of its last grant was logged yet.
    pub(super) fn closed_then(&self, lock: LockSlot, now: Timestamp) -> Option<Timestamp> {
        let until = if self.tables.is_exclusive(lock) {
            let lease = self.tables.held_by_writer(lock).1;
            if lease.is_expired(now) {
                self.closing_at(lock, Ending::Expired, lease.expires)
            } else {
                None
            }
        } else {
            self.tables.closed(lock)
        };
        until.filter(|until| *until > now)
    }
}
