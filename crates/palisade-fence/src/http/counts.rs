//! What a fence in front of a service has done.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::audit::{self, Tally};

/// Counts since the layer was made. What is judged is counted where the marks are.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests that were let through unjudged: observers' reads, and what is not fenced.
    pub passed: u64,
    /// Requests refused before they were judged, by reason: a bad header or spelling, no route, no token;
    /// `unavailable` are those that waited in vain for older writes to end or found no room.
    pub refused: audit::Counts,
    /// Writes whose end was not seen.
    pub unknown: u64,
    /// Writes that keep their place in a lane now: under way, or settling.
    pub in_flight: u64,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) passed: AtomicU64,
    pub(super) refused: Tally,
    pub(super) unknown: AtomicU64,
    pub(super) in_flight: AtomicU64,
}

impl Counters {
    pub(super) fn read(&self) -> Counts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            passed: read(&self.passed),
            refused: self.refused.read(),
            unknown: read(&self.unknown),
            in_flight: read(&self.in_flight),
        }
    }
}
