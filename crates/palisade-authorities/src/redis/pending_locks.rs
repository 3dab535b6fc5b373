//! The locks that pending requests ask for: the call that abandons a request gives only its id.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use palisade_core::{LockName, RequestId};

/// A bounded map that may miss some requests; for those, every lock at the server is searched.
#[derive(Default)]
pub(super) struct PendingLocks(Mutex<HashMap<RequestId, LockName>>);

/// The bound, so that requests whose outcome never arrives do not fill the memory.
const MOST: usize = 65_536;

impl PendingLocks {
    pub(super) fn begin(&self, request: RequestId, lock: &LockName) {
        let mut locks = self.locks();
        if locks.len() < MOST {
            locks.insert(request, lock.clone());
        }
    }

    pub(super) fn lock_of(&self, request: &RequestId) -> Option<LockName> {
        self.locks().get(request).cloned()
    }

    /// Removes a request whose outcome is known, or that was given up.
    pub(super) fn forget(&self, request: &RequestId) {
        self.locks().remove(request);
    }

    fn locks(&self) -> MutexGuard<'_, HashMap<RequestId, LockName>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
