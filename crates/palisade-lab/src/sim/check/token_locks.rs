//! The locks that were granted with each token. A set's locks are granted with one, at one instant.

use std::collections::BTreeMap;

use crate::sim::fact::LockChange;
use crate::sim::locks::Locks;

/// See the module.
#[derive(Default)]
pub(super) struct TokenLocks(BTreeMap<u64, (u64, Locks)>);

impl TokenLocks {
    /// A lock is granted. Whether others of its set were, just before. A crash may have undone another grant with this
    /// token.
    pub(super) fn granted(&mut self, turn: &LockChange) -> bool {
        let LockChange {
            lock, token, at, ..
        } = *turn;
        let known = self.0.get(&token).copied();
        let set = known.filter(|(then, locks)| *then == at && !locks.has(lock));
        let (_, locks) = set.unwrap_or_default();
        self.0.insert(token, (at, locks.with(lock)));
        set.is_some()
    }

    pub(super) fn of(&self, token: u64) -> Locks {
        let known = self.0.get(&token);
        known.map(|(_, locks)| *locks).unwrap_or_default()
    }
}
