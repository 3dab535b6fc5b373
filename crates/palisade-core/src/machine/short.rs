//! Counts the leases that are too short to survive every pause below a stall.

use crate::limits;
use crate::time::{Span, Ttl};

/// Live leases shorter than [`BORDER`], counted by their length: from 100, 200, 400, 800 and 1,600 ms on.
///
/// A longer lease survives every pause that is shorter than a stall, and is not counted. So the shortest
/// live lease is known, to a factor of two, at the cost of one comparison for each lease that opens or
/// closes.
#[derive(Clone, Debug, Default)]
pub(super) struct Short {
    counts: [u32; CLASSES],
}

/// In milliseconds: a lease of this length survives every pause that is shorter than a stall.
const BORDER: u32 = (limits::STALL.as_millis() * limits::PAUSE_PARTS) as u32;

const CLASSES: usize = ((BORDER - 1) / Ttl::MIN.as_millis()).ilog2() as usize + 1;

impl Short {
    pub(super) fn add(&mut self, ttl: Ttl) {
        if let Some(count) = self.class(ttl) {
            *count += 1;
        }
    }

    pub(super) fn take(&mut self, ttl: Ttl) {
        if let Some(count) = self.class(ttl) {
            assert!(*count > 0, "a short lease that was never counted ends");
            *count -= 1;
        }
    }

    fn class(&mut self, ttl: Ttl) -> Option<&mut u32> {
        let millis = ttl.as_millis();
        if millis >= BORDER {
            return None;
        }
        self.counts
            .get_mut((millis / Ttl::MIN.as_millis()).ilog2() as usize)
    }

    /// The longest pause that all of them survive.
    pub(super) fn bear(&self) -> Span {
        let shortest = self.counts.iter().position(|count| *count > 0);
        shortest.map_or(limits::STALL, |class| {
            Span::from_nanos(Ttl::MIN.bears().as_nanos() << class)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_shortest_lease_is_known_within_a_factor_of_two_and_forgotten_with_its_end() {
        let ttls = [
            100, 101, 199, 200, 399, 800, 1_600, 1_999, 2_000, 86_400_000,
        ];
        for millis in ttls {
            let ttl = Ttl::from_millis(millis).unwrap();
            let mut short = Short::default();
            short.add(Ttl::MAX);
            assert_eq!(short.bear(), limits::STALL);
            short.add(ttl);
            let (bears, exact) = (short.bear().as_nanos(), ttl.bears().as_nanos());
            assert!(
                bears <= exact && bears * 2 >= exact,
                "{ttl}: {bears} {exact}"
            );
            short.take(ttl);
            assert_eq!(short.bear(), limits::STALL, "{ttl}");
        }
    }
}
