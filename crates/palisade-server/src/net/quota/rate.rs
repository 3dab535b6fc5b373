//! A rate: so many requests a second, and at most so many at once.

/// The instant, in nanoseconds of the system's clock, from which on the allowance of a whole second is there again. Each
/// request moves it on.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::net) struct Rate(u64);

impl Rate {
    /// Whether one more request fits; otherwise in how many nanoseconds it does.
    pub(in crate::net) fn check(self, per_second: u64, now: u64) -> Result<(), u64> {
        // With this request the debt is at most the allowance of one second.
        let debt = self.0.saturating_sub(now) + cost(per_second);
        match debt.saturating_sub(SECOND) {
            0 => Ok(()),
            wait => Err(wait),
        }
    }

    pub(in crate::net) fn take(&mut self, per_second: u64, now: u64) {
        self.0 = self.0.max(now) + cost(per_second);
    }

    /// Whether it remembers nothing.
    pub(in crate::net) fn is_idle(self, now: u64) -> bool {
        self.0 <= now
    }
}

fn cost(per_second: u64) -> u64 {
    SECOND / per_second.max(1)
}

const SECOND: u64 = 1_000_000_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_second_has_its_number_and_says_when_the_next_one_fits() {
        let now = 7 * SECOND;
        let mut rate = Rate::default();
        for _ in 0..4 {
            assert_eq!(rate.check(4, now), Ok(()));
            rate.take(4, now);
        }
        let quarter = SECOND / 4;
        assert_eq!(rate.check(4, now), Err(quarter));
        assert_eq!(rate.check(4, now + quarter), Ok(()));
        assert!(!rate.is_idle(now + quarter * 3) && rate.is_idle(now + quarter * 4));
        rate.take(4, now + quarter);
        assert_eq!(rate.check(4, now + quarter), Err(quarter));
    }
}
