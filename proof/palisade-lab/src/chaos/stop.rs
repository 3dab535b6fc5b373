//! The stop signal of a run, and how its threads wait for it.

use std::sync::{Condvar, Mutex, PoisonError};
use std::time::Duration;

/// Set once.
#[derive(Debug, Default)]
pub(super) struct Stop {
    set: Mutex<bool>,
    changed: Condvar,
}

impl Stop {
    pub(super) fn set(&self) {
        *self.set.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.changed.notify_all();
    }

    /// Waits this long; `true` if the stop came earlier.
    pub(super) fn comes_within(&self, time: Duration) -> bool {
        let set = self.set.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_timeout_while(set, time, |set| !*set);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}
