//! The locks that were granted with each token. A set's locks are granted with one, at one instant, between two restarts
//! of the authority.

use std::collections::BTreeMap;

use crate::sim::fact::LockChange;
use crate::sim::locks::Locks;

/// See the module.
#[derive(Default)]
pub(super) struct TokenLocks {
    tokens: BTreeMap<u64, (Entry, Locks)>,
    restarts: u64,
}

/// The number of restarts before an entry of the log, and its instant.
type Entry = (u64, u64);

impl TokenLocks {
    /// A lock is granted. Whether others of its set were, just before. A crash may have undone another grant with this
    /// token.
    pub(super) fn granted(&mut self, turn: &LockChange) -> bool {
        let LockChange {
            lock, token, at, ..
        } = *turn;
        let known = self.tokens.get(&token).copied();
        let entry = (self.restarts, at);
        let set = known.filter(|(then, locks)| *then == entry && !locks.has(lock));
        let (_, locks) = set.unwrap_or_default();
        self.tokens.insert(token, (entry, locks.with(lock)));
        set.is_some()
    }

    pub(super) fn restarted(&mut self) {
        self.restarts += 1;
    }

    pub(super) fn of(&self, token: u64) -> Locks {
        let known = self.tokens.get(&token);
        known.map(|(_, locks)| *locks).unwrap_or_default()
    }
}
