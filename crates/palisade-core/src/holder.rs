//! The holder's deadline: the instant until which a client may act on its lock.
//!
//! The rule (H1; Gray and Cheriton 1989, "Leases", §5 for the clock assumption):
//!
//! ```text
//! deadline = t0 + valid_for · (1 − ε) / (1 + ε) − margin
//! ```
//!
//! `t0` is the client's own clock **before** it sent the acknowledged request, so the round trip is already included.
//! `ε` bounds the rate error of either clock. `margin` is the time that the caller needs between its last check and the
//! effect of its work.

use crate::time::{Span, Timestamp};

/// The margins that a holder allows for clock errors and for its own delays.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caution {
    drift_ppm: u32,
    margin: Span,
}

impl Caution {
    /// A rate error of 1 % on either side, and no margin.
    pub const DEFAULT: Caution = Caution {
        drift_ppm: 10_000,
        margin: Span::ZERO,
    };

    /// Creates a caution from a bound on the rate error, in parts per million, and a margin.
    ///
    /// Returns `None` if the bound is a million or more: such a clock proves nothing.
    #[must_use]
    pub const fn new(drift_ppm: u32, margin: Span) -> Option<Caution> {
        if drift_ppm >= MILLION {
            None
        } else {
            Some(Caution { drift_ppm, margin })
        }
    }

    /// Returns the instant, on the clock that read `t0`, by which the holder must have stopped.
    ///
    /// `t0` was read before the acknowledged request was sent. The authority granted `valid_for`, counted by its clock
    /// from when it received the request. The result is rounded down.
    #[must_use]
    pub const fn deadline(&self, t0: Timestamp, valid_for: Span) -> Timestamp {
        let sure = valid_for.as_nanos() as u128 * (MILLION - self.drift_ppm) as u128
            / (MILLION + self.drift_ppm) as u128;
        let sure = (sure as u64).saturating_sub(self.margin.as_nanos());
        t0.after(Span::from_nanos(sure))
    }
}

impl Default for Caution {
    fn default() -> Caution {
        Caution::DEFAULT
    }
}

/// The deadline of one grant, as its holder knows it.
///
/// Only [`Holding::renewed`] moves the deadline, and only forward. After [`Holding::lost`], nothing revives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holding {
    deadline: Timestamp,
    lost: bool,
}

impl Holding {
    /// Creates the deadline of a fresh grant.
    #[must_use]
    pub const fn new(deadline: Timestamp) -> Holding {
        Holding {
            deadline,
            lost: false,
        }
    }

    /// Returns whether the holder may act at `now`. At the deadline itself it may not.
    #[must_use]
    pub const fn holds(&self, now: Timestamp) -> bool {
        !self.lost && now.as_nanos() < self.deadline.as_nanos()
    }

    /// Returns how long the holder may still act.
    #[must_use]
    pub const fn remaining(&self, now: Timestamp) -> Span {
        if self.lost {
            Span::ZERO
        } else {
            self.deadline.since(now)
        }
    }

    /// Returns the deadline; `None` once it is lost.
    #[must_use]
    pub const fn deadline(&self) -> Option<Timestamp> {
        if self.lost { None } else { Some(self.deadline) }
    }

    /// Records an acknowledged renewal of the grant's lease. It never moves the deadline back. If the deadline had
    /// passed when the acknowledgement came, the grant is lost.
    pub const fn renewed(&mut self, now: Timestamp, deadline: Timestamp) {
        if !self.holds(now) {
            self.lost = true;
        } else if deadline.as_nanos() > self.deadline.as_nanos() {
            self.deadline = deadline;
        }
    }

    /// Ends the grant: the holder released it, or the authority ended it.
    pub const fn lost(&mut self) {
        self.lost = true;
    }
}

const MILLION: u32 = 1_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000;

    #[test]
    fn one_percent_of_ten_seconds_costs_198_ms() {
        let t0 = Timestamp::from_millis(5 * S);
        let deadline = Caution::DEFAULT.deadline(t0, Span::from_millis(10 * S));
        assert_eq!(deadline.since(t0).as_millis(), 9_801);
    }

    #[test]
    fn the_margin_comes_off_and_cannot_reach_before_t0() {
        let caution = Caution::new(0, Span::from_millis(300)).unwrap();
        let t0 = Timestamp::from_millis(7);
        assert_eq!(
            caution.deadline(t0, Span::from_millis(1_000)),
            Timestamp::from_millis(707)
        );
        assert_eq!(caution.deadline(t0, Span::from_millis(100)), t0);
    }

    #[test]
    fn the_fastest_server_and_slowest_client_still_agree() {
        // The server's clock runs (1 + e) too fast, the client's (1 - e) too slow: the client's
        // reading at the true instant of expiry must not be before its deadline.
        for ppm in [0_u32, 500, 10_000, 100_000] {
            let valid_ms = 10 * S;
            let deadline = Caution::new(ppm, Span::ZERO)
                .unwrap()
                .deadline(Timestamp::ZERO, Span::from_millis(valid_ms));
            let (fast, slow) = (f64::from(MILLION + ppm), f64::from(MILLION - ppm));
            let true_expiry_ms = valid_ms as f64 * f64::from(MILLION) / fast;
            let client_reads_ms = true_expiry_ms * slow / f64::from(MILLION);
            assert!(
                deadline.as_nanos() as f64 / 1e6 <= client_reads_ms + 1e-6,
                "{ppm} ppm"
            );
        }
    }

    #[test]
    fn a_clock_that_may_stand_still_is_refused() {
        assert_eq!(Caution::new(MILLION, Span::ZERO), None);
    }

    #[test]
    fn the_boundary_is_lost_and_late_news_does_not_revive() {
        let ms = Timestamp::from_millis;
        let mut holding = Holding::new(ms(100));
        assert!(holding.holds(ms(99)) && !holding.holds(ms(100)));
        holding.renewed(ms(50), ms(90));
        assert_eq!(holding.deadline(), Some(ms(100)), "never back");
        holding.renewed(ms(50), ms(150));
        assert_eq!(holding.remaining(ms(140)).as_millis(), 10);
        holding.renewed(ms(150), ms(300));
        assert!(
            !holding.holds(ms(151)),
            "an acknowledgement after the deadline came too late"
        );
    }

    #[test]
    fn lost_stays_lost() {
        let mut holding = Holding::new(Timestamp::from_millis(100));
        holding.lost();
        holding.renewed(Timestamp::ZERO, Timestamp::from_millis(500));
        assert!(!holding.holds(Timestamp::ZERO));
        assert_eq!(
            (holding.remaining(Timestamp::ZERO), holding.deadline()),
            (Span::ZERO, None)
        );
    }
}
