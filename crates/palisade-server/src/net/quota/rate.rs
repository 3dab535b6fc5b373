//! A rate: so many requests a second, and at most so many at once.

use std::time::{Duration, Instant};

/// The instant from which on the allowance of a whole second is there again; each request moves it on.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::net) struct Rate(Option<Instant>);

impl Rate {
    /// Whether one more request fits; otherwise in how long it does.
    pub(in crate::net) fn check(self, per_second: u64, now: Instant) -> Result<(), Duration> {
        let full = self
            .0
            .map_or(Duration::ZERO, |full| full.saturating_duration_since(now));
        // With this request the debt is at most the allowance of one second.
        match (full + cost(per_second)).checked_sub(Duration::from_secs(1)) {
            None | Some(Duration::ZERO) => Ok(()),
            Some(wait) => Err(wait),
        }
    }

    pub(in crate::net) fn take(&mut self, per_second: u64, now: Instant) {
        let full = self.0.filter(|full| *full > now).unwrap_or(now);
        self.0 = Some(full + cost(per_second));
    }

    /// Whether it remembers nothing.
    pub(in crate::net) fn is_idle(self, now: Instant) -> bool {
        self.0.is_none_or(|full| full <= now)
    }
}

fn cost(per_second: u64) -> Duration {
    Duration::from_nanos(1_000_000_000 / per_second.max(1))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_has_its_number_and_says_when_the_next_one_fits() {
        let now = Instant::now();
        let mut rate = Rate::default();
        for _ in 0..4 {
            assert_eq!(rate.check(4, now), Ok(()));
            rate.take(4, now);
        }
        let quarter = Duration::from_millis(250);
        assert_eq!(rate.check(4, now), Err(quarter));
        assert_eq!(rate.check(4, now + quarter), Ok(()));
        assert!(!rate.is_idle(now + quarter * 3) && rate.is_idle(now + quarter * 4));
        rate.take(4, now + quarter);
        assert_eq!(rate.check(4, now + quarter), Err(quarter));
    }
}
