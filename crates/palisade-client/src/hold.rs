//! A holder's knowledge of its grant, shared between its guard and whatever renews it: until when it may act.
//!
//! The token is not here. Nothing that renews, checks or releases needs it, so a lock without tokens, which is no
//! [`LockService`](crate::LockService), builds its own guard on this; every [`Lease`](crate::Lease) is built on it, too.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use palisade_core::holder::Holding;
use palisade_core::{Span, Timestamp};
use tokio_util::sync::CancellationToken;

use crate::error::Loss;

/// The deadline of one grant. The rule is [`Holding`]'s; this makes it readable without a lock.
#[derive(Debug)]
pub struct Hold {
    /// The deadline in nanoseconds, or [`LOST`].
    deadline: AtomicU64,
    why: OnceLock<Loss>,
    signal: CancellationToken,
}

/// No deadline is 0: the clock counts from boot, and a grant is good for some time.
const LOST: u64 = 0;

impl Hold {
    /// Of a grant that is good until this deadline, by the caution of its holder.
    #[must_use]
    pub fn new(deadline: Timestamp) -> Hold {
        Hold {
            deadline: AtomicU64::new(deadline.as_nanos()),
            why: OnceLock::new(),
            signal: CancellationToken::new(),
        }
    }

    /// Whether the holder may act. What it learns from the clock it does not forget: once this said
    /// no, the loss is announced and stays.
    pub fn holds(&self, now: Timestamp) -> bool {
        let holding = self.load();
        let holds = holding.is_some_and(|holding| holding.holds(now));
        if !holds && holding.is_some() {
            self.lose(Loss::Deadline);
        }
        holds
    }

    /// How long the holder may still act.
    #[must_use]
    pub fn remaining(&self, now: Timestamp) -> Span {
        self.load()
            .map_or(Span::ZERO, |holding| holding.remaining(now))
    }

    /// Until when the holder may act, unless it is lost.
    #[must_use]
    pub fn deadline(&self) -> Option<Timestamp> {
        self.load().and_then(|holding| holding.deadline())
    }

    /// An acknowledged renewal of the grant's lease: forward only, and no revival.
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

    /// The holder does not hold from now on. The first reason given stays.
    pub fn lose(&self, why: Loss) {
        // The reason first, so that it is there when LOST is read.
        let _ = self.why.set(why);
        self.deadline.store(LOST, Ordering::Release);
        self.signal.cancel();
    }

    /// Why it is lost; `None` while it is not.
    #[must_use]
    pub fn why(&self) -> Option<Loss> {
        self.why.get().copied()
    }

    /// Cancelled when the hold is lost.
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
