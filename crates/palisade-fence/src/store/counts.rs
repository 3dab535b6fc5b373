//! What a store has done: what an operator wants to see first is a rejected zombie.

use std::sync::atomic::{AtomicU64, Ordering};

use palisade_core::fence::Reject;

/// Counts since the store was opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Operations that were carried out.
    pub admitted: u64,
    /// Writes that were recognised as repeats.
    pub repeats: u64,
    /// Rejections by [`Reject::code`], every reason once.
    pub rejected: Vec<(&'static str, u64)>,
    /// Frames written to the log.
    pub commits: u64,
    /// What the store holds, by its own reckoning.
    pub bytes: u64,
    /// How many resources it has.
    pub resources: u64,
}

#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) admitted: AtomicU64,
    pub(super) repeats: AtomicU64,
    rejected: [AtomicU64; Reject::CODES.len()],
    pub(super) commits: AtomicU64,
    pub(super) bytes: AtomicU64,
    pub(super) resources: AtomicU64,
}

impl Counters {
    pub(super) fn rejected(&self, reject: &Reject) {
        let at = Reject::CODES
            .iter()
            .position(|reason| *reason == reject.code());
        if let Some(counter) = at.and_then(|at| self.rejected.get(at)) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(super) fn read(&self) -> Counts {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        Counts {
            admitted: read(&self.admitted),
            repeats: read(&self.repeats),
            rejected: Reject::CODES
                .into_iter()
                .zip(self.rejected.iter().map(read))
                .collect(),
            commits: read(&self.commits),
            bytes: read(&self.bytes),
            resources: read(&self.resources),
        }
    }
}
