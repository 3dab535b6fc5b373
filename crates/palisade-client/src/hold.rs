//! The deadline until which a holder may act, shared between its guard and the task that renews the lease.
//!
//! It works without a token, because renewing, checking and releasing need none. Every [`Lease`](crate::Lease) is built
//! on it. A system that issues no tokens, and so cannot be a [`LockService`](crate::LockService), can build its own
//! guard on it.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use palisade_core::holder::Holding;
use palisade_core::{Span, Timestamp};
use tokio_util::sync::CancellationToken;

use crate::error::Loss;

/// The deadline of one grant, readable without a lock. The rule is [`Holding`]'s. All instants are of the holder's
/// [`Clock`](crate::clock::Clock).
#[derive(Debug)]
pub struct Hold {
    /// The deadline in nanoseconds, or [`LOST`].
    deadline: AtomicU64,
    why: OnceLock<Loss>,
    signal: CancellationToken,
}

/// No deadline is 0, because the clock counts from boot and every grant lasts for some time.
const LOST: u64 = 0;

impl Hold {
    /// Creates the hold of a grant that its holder may use until `deadline`; see
    /// [`Caution::deadline`](crate::Caution::deadline).
    #[must_use]
    pub fn new(deadline: Timestamp) -> Hold {
        Hold {
            deadline: AtomicU64::new(deadline.as_nanos()),
            why: OnceLock::new(),
            signal: CancellationToken::new(),
        }
    }

    /// Returns whether the holder may act at `now`. The first time that the deadline has passed, it announces the loss;
    /// from then on the answer stays `false`.
    pub fn holds(&self, now: Timestamp) -> bool {
        let holding = self.load();
        let holds = holding.is_some_and(|holding| holding.holds(now));
        if !holds && holding.is_some() {
            self.lose(Loss::Deadline);
        }
        holds
    }

    /// Returns how long the holder may still act.
    #[must_use]
    pub fn remaining(&self, now: Timestamp) -> Span {
        self.load()
            .map_or(Span::ZERO, |holding| holding.remaining(now))
    }

    /// Returns the instant until which the holder may act; `None` once it is lost.
    #[must_use]
    pub fn deadline(&self) -> Option<Timestamp> {
        self.load().and_then(|holding| holding.deadline())
    }

    /// Records an acknowledged renewal of the lease. It never moves the deadline back and never revives a lost hold.
    pub fn renewed(&self, now: Timestamp, deadline: Timestamp) {
        let step = |nanos| {
            let mut holding = holding(nanos)?;
            holding.renewed(now, deadline);
            holding.deadline().map(Timestamp::as_nanos)
        };
        let moved = self
            .deadline
            .try_update(Ordering::AcqRel, Ordering::Acquire, step);
        if moved.is_err() {
            self.lose(Loss::Deadline);
        }
    }

    /// Ends the hold and announces the loss. The first reason stays.
    pub fn lose(&self, why: Loss) {
        // Set the reason first, so that every reader of LOST finds it.
        let _ = self.why.set(why);
        self.deadline.store(LOST, Ordering::Release);
        self.signal.cancel();
    }

    /// Returns the reason for the loss; `None` while it holds.
    #[must_use]
    pub fn why(&self) -> Option<Loss> {
        self.why.get().copied()
    }

    /// Returns the token that is cancelled when the hold is lost.
    #[must_use]
    pub fn signal(&self) -> &CancellationToken {
        &self.signal
    }

    fn load(&self) -> Option<Holding> {
        holding(self.deadline.load(Ordering::Acquire))
    }
}

fn holding(nanos: u64) -> Option<Holding> {
    (nanos != LOST).then(|| Holding::new(Timestamp::from_nanos(nanos)))
}

#[cfg(test)]
mod tests {
    use super::*;

    const fn ms(millis: u64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    #[test]
    fn a_renewal_moves_the_deadline_forward_only() {
        let hold = Hold::new(ms(100));
        hold.renewed(ms(10), ms(90));
        assert_eq!(hold.deadline(), Some(ms(100)));
        hold.renewed(ms(10), ms(150));
        assert_eq!(hold.remaining(ms(140)), Span::from_millis(10));
    }

    #[test]
    fn a_late_acknowledgement_does_not_revive() {
        let hold = Hold::new(ms(100));
        hold.renewed(ms(100), ms(200));
        assert!(!hold.holds(ms(101)));
        assert_eq!(hold.why(), Some(Loss::Deadline));
        assert!(hold.signal().is_cancelled());
    }

    #[test]
    fn asking_after_the_deadline_announces_the_loss_without_any_timer() {
        let hold = Hold::new(ms(100));
        assert!(hold.holds(ms(99)) && !hold.signal().is_cancelled());
        assert!(!hold.holds(ms(100)));
        assert!(hold.signal().is_cancelled());
        assert!(!hold.holds(ms(0)), "and it stays");
    }

    #[test]
    fn the_first_reason_stays() {
        let hold = Hold::new(ms(100));
        hold.lose(Loss::Released);
        hold.lose(Loss::NotHeld);
        hold.renewed(ms(1), ms(500));
        assert_eq!((hold.why(), hold.deadline()), (Some(Loss::Released), None));
    }
}
