//! Counts of a store's operations and rejections.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::audit::{self, Tally};

/// Counts since the store was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Operations that were carried out.
    pub admitted: u64,
    /// Writes that were recognised as repeats.
    pub repeats: u64,
    /// Rejections, and requests recorded by [`Store::refused`](super::Store::refused), by reason.
    pub rejected: audit::RejectionCounts,
    /// Frames written to the log.
    pub commits: u64,
    /// The size of the store, by its own accounting.
    pub bytes: u64,
    /// The number of resources.
    pub resources: u64,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) admitted: AtomicU64,
    pub(super) repeats: AtomicU64,
    pub(super) rejected: Tally,
    pub(super) commits: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) resources: AtomicU64,
}

impl Counters {
    pub(super) fn read(&self) -> Counts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            admitted: read(&self.admitted),
            repeats: read(&self.repeats),
            rejected: self.rejected.read(),
            commits: read(&self.commits),
            bytes: read(&self.bytes),
            resources: read(&self.resources),
        }
    }
}
