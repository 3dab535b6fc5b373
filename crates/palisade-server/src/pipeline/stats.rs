//! Counters of the pipeline, written by its one thread and read by anyone.

use std::sync::atomic::{AtomicU64, Ordering};

/// A number that one thread writes and others read.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Its value now.
    #[must_use]
    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    pub(super) fn add(&self, n: u64) {
        // One writer: a plain store is enough and costs no locked instruction.
        self.0.store(
            self.0.load(Ordering::Relaxed).wrapping_add(n),
            Ordering::Relaxed,
        );
    }

    pub(super) fn set(&self, n: u64) {
        self.0.store(n, Ordering::Relaxed);
    }
}

macro_rules! stats {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of the pipeline since it started, and the sizes of its state now.
        #[derive(Debug, Default)]
        pub struct Stats {
            $($(#[$doc])* pub $name: Counter,)*
        }
    };
}

stats! {
    /// Grants issued.
    granted,
    /// Acquires answered "held", at once or after a wait.
    held,
    /// Renewals.
    renewed,
    /// Grants released by their holders.
    released,
    /// Grants whose time ran out.
    expired,
    /// Grants taken by an operator.
    revoked,
    /// Grants replaced by a later one of the same client.
    superseded,
    /// Requests refused for their form.
    invalid,
    /// Requests that found a queue full.
    queue_full,
    /// Operations taken in.
    operations,
    /// Batches made durable: one write and one sync each.
    batches,
    /// Bytes given to the log.
    log_bytes,
    /// Times leases got their full time again because the authority was away.
    graces,
    /// Locks held now.
    locks,
    /// Leases live now.
    leases,
    /// Requests waiting now.
    waiters,
    /// The token the next grant gets; 0 when the range is exhausted.
    next_token,
    /// 1 while the log has no room (disk full), else 0.
    log_full,
}
