//! Which locks the requests under way ask for: a request that is given up names only itself.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use palisade_core::{LockName, RequestId};

/// A memory that may miss some; they are found at the server then, by looking at every lock.
#[derive(Default)]
pub(super) struct Underway(Mutex<HashMap<RequestId, LockName>>);

/// So that requests nobody ever hears of again do not fill the memory.
const MOST: usize = 65_536;

impl Underway {
    pub(super) fn begin(&self, request: RequestId, lock: &LockName) {
        let mut locks = self.locks();
        if locks.len() < MOST {
            locks.insert(request, lock.clone());
        }
    }

    pub(super) fn lock_of(&self, request: &RequestId) -> Option<LockName> {
        self.locks().get(request).cloned()
    }

    /// Its outcome is known, or it was given up.
    pub(super) fn forget(&self, request: &RequestId) {
        self.locks().remove(request);
    }

    fn locks(&self) -> MutexGuard<'_, HashMap<RequestId, LockName>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
