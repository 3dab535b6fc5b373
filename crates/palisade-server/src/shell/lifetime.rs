//! How long a peer's certificate counts, by a wall clock that may step.

use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use palisade_core::WallTime;
use palisade_tls::Certificate;

/// The time of the certificate that opened a connection. The wall clock decides, as it did in the handshake.
///
/// It ends before its time if the files of the port change so that the certificate would be refused now.
///
/// A clock that is set forward ends it at once. Once it was found to be over it stays over, so a clock that is set back
/// does not bring the connection to life again: its peer was asked to open a new one, and that handshake reads the
/// clock.
#[derive(Debug)]
pub struct Lifetime {
    /// The last second in which it is valid, since 1970.
    expires: u64,
    over: AtomicBool,
    refused: AtomicBool,
    /// The certificate that the peer showed.
    certificate: Option<Certificate>,
}

impl Lifetime {
    /// Creates the lifetime of a certificate whose last second this is.
    #[must_use]
    pub const fn until(expires: u64) -> Lifetime {
        Lifetime {
            expires,
            over: AtomicBool::new(false),
            refused: AtomicBool::new(false),
            certificate: None,
        }
    }

    /// The lifetime of a certificate that was shown.
    pub(super) fn of(certificate: Certificate) -> Lifetime {
        let lifetime = Lifetime::until(certificate.expires());
        Lifetime {
            certificate: Some(certificate),
            ..lifetime
        }
    }

    pub(super) fn certificate(&self) -> Option<&Certificate> {
        self.certificate.as_ref()
    }

    /// The certificate would be refused now.
    pub(super) fn refuse(&self) {
        self.refused.store(true, Relaxed);
    }

    pub(super) fn is_refused(&self) -> bool {
        self.refused.load(Relaxed)
    }

    /// How long it counts on; zero once it was over at any look.
    pub(super) fn remaining(&self, now: WallTime) -> Duration {
        // Its last second counts.
        let ends = self.expires.saturating_add(1).saturating_mul(1_000);
        if ends <= now.0 {
            self.over.store(true, Relaxed);
        }
        if self.over.load(Relaxed) || self.is_refused() {
            Duration::ZERO
        } else {
            Duration::from_millis(ends.saturating_sub(now.0))
        }
    }
}

impl PartialEq for Lifetime {
    fn eq(&self, other: &Lifetime) -> bool {
        self.expires == other.expires
    }
}

impl Eq for Lifetime {}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR_MS: u64 = 3_600_000;

    fn at(ms: u64) -> WallTime {
        WallTime(ms)
    }

    #[test]
    fn the_last_second_counts() {
        let lifetime = Lifetime::until(100);
        assert_eq!(lifetime.remaining(at(100_999)), Duration::from_millis(1));
        assert_eq!(lifetime.remaining(at(101_000)), Duration::ZERO);
    }

    #[test]
    fn a_clock_that_is_set_forward_ends_it_and_one_that_is_set_back_does_not_revive_it() {
        let end = 10 * HOUR_MS;
        let (asked, unasked) = (Lifetime::until(end / 1_000), Lifetime::until(end / 1_000));
        for lifetime in [&asked, &unasked] {
            assert!(lifetime.remaining(at(HOUR_MS)) > Duration::ZERO);
        }
        // Set forward, past the end: nothing waits for a timer.
        assert_eq!(asked.remaining(at(end + HOUR_MS)), Duration::ZERO);
        // Set back, before the end.
        assert_eq!(asked.remaining(at(HOUR_MS)), Duration::ZERO);
        // Control: a connection that was not told so while the clock was wrong goes on.
        assert!(unasked.remaining(at(HOUR_MS)) > Duration::ZERO);
    }

    #[test]
    fn a_clock_that_is_set_back_before_the_end_gives_it_the_time_on_that_clock() {
        let lifetime = Lifetime::until(3_599);
        assert_eq!(
            lifetime.remaining(at(HOUR_MS / 2)),
            Duration::from_millis(HOUR_MS / 2)
        );
        assert_eq!(lifetime.remaining(at(0)), Duration::from_millis(HOUR_MS));
    }
}
