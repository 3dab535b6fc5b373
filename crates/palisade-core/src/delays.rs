//! How long a lock stays closed after a grant (rules D1, D2 and D4).

use crate::invalid::Invalid;
use crate::limits;
use crate::time::Span;

/// The delays that a request for an exclusive grant asks for. Both are whole milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Delays {
    lock_delay_ms: u32,
    at_least_for_ms: u32,
}

impl Delays {
    /// The lock can be granted again at once.
    pub const NONE: Delays = Delays {
        lock_delay_ms: 0,
        at_least_for_ms: 0,
    };

    /// Creates delays. The lock stays closed for `lock_delay_ms` after the grant expires or is revoked, but not after a
    /// release. It also stays closed until `at_least_for_ms` after the grant, however the grant ends.
    ///
    /// # Errors
    /// [`Invalid::LockDelay`] above [`LOCK_DELAY_MS`](limits::LOCK_DELAY_MS), [`Invalid::AtLeastFor`] above
    /// [`AT_LEAST_FOR_MS`](limits::AT_LEAST_FOR_MS).
    pub const fn new(lock_delay_ms: u64, at_least_for_ms: u64) -> Result<Delays, Invalid> {
        if lock_delay_ms > limits::LOCK_DELAY_MS as u64 {
            return Err(Invalid::LockDelay {
                given_ms: lock_delay_ms,
            });
        }
        if at_least_for_ms > limits::AT_LEAST_FOR_MS as u64 {
            return Err(Invalid::AtLeastFor {
                given_ms: at_least_for_ms,
            });
        }
        // Both are in the range of their bounds, which are `u32`.
        Ok(Delays {
            lock_delay_ms: lock_delay_ms as u32,
            at_least_for_ms: at_least_for_ms as u32,
        })
    }

    /// Returns how long the lock stays closed after an expiry or a revocation.
    #[must_use]
    pub const fn lock_delay(self) -> Span {
        Span::from_millis(self.lock_delay_ms as u64)
    }

    /// Returns how long after the grant the lock stays closed.
    #[must_use]
    pub const fn at_least_for(self) -> Span {
        Span::from_millis(self.at_least_for_ms as u64)
    }

    /// Returns whether both delays are zero.
    #[must_use]
    #[inline]
    pub const fn is_none(self) -> bool {
        self.lock_delay_ms | self.at_least_for_ms == 0
    }
}
