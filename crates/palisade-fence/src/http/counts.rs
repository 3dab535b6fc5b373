//! Counts of the requests at a fence in front of a service.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::audit::{self, Tally};

/// Counts since the layer was created. The store of the marks counts the requests that the fence judged.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Requests that passed without being judged: observers' reads, and requests to unfenced addresses.
    pub passed: u64,
    /// Requests refused before they were judged, by reason: a bad header or spelling, no route, no token.
    /// `unavailable` counts requests for which older writes did not end in time or there was no memory.
    pub refused: audit::RejectionCounts,
    /// Writes whose end was not seen.
    pub unknown: u64,
    /// Writes that have the permit of a lane now: in progress, or settling.
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
