//! The first locks of each order, as they were read last.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use palisade_core::{LockView, Token};
use tokio::sync::Mutex;

use palisade_pipeline::clock::boottime;

/// How many locks are listed in each order.
const LISTED: usize = 50;

/// The shortest time for which a result is stored.
const KEPT: Duration = Duration::from_secs(1);

/// And at least this many times as long as it took to make, so that reading all locks takes a fifth of the time.
const REST: u32 = 4;

/// The last result, which is made by one caller at a time.
pub(super) type Last = Mutex<Option<Arc<Ranked>>>;

/// The first locks of each order, as they were a moment ago.
pub(super) struct Ranked {
    /// The machine's time when the first lock was read, and when the last one had been.
    pub(super) began: Duration,
    pub(super) ended: Duration,
    /// How many locks are held.
    pub(super) held: u64,
    /// Those with the most waiting requests. Locks without any are left out.
    pub(super) contended: Vec<LockView>,
    /// Those that were granted first.
    pub(super) oldest: Vec<LockView>,
    /// The one whose first request has waited longest.
    pub(super) longest_wait: Option<LockView>,
}

impl Ranked {
    /// How long ago the first of the locks was read.
    pub(super) fn age(&self) -> Duration {
        now().saturating_sub(self.began)
    }

    pub(super) fn is_fresh(&self) -> bool {
        let took = self.ended.saturating_sub(self.began);
        now().saturating_sub(self.ended) < KEPT.max(took * REST)
    }

    pub(super) fn add(&mut self, page: Vec<LockView>) {
        let longest = page.iter().max_by_key(|lock| lock.waited);
        let before = self.longest_wait.as_ref().and_then(|lock| lock.waited);
        if let Some(longest) = longest.filter(|lock| lock.waited > before) {
            self.longest_wait = Some(longest.clone());
        }
        self.contended
            .extend(page.iter().filter(|lock| lock.waiters > 0).cloned());
        self.contended
            .sort_by_key(|lock| (Reverse(lock.waiters), since(lock)));
        self.contended.truncate(LISTED);
        // Those that nobody holds are listed because they are closed after their last grant.
        let held = page.into_iter().filter(|lock| lock.holder.is_some());
        let before = self.oldest.len();
        self.oldest.extend(held);
        self.held += (self.oldest.len() - before) as u64;
        self.oldest.sort_by_key(since);
        self.oldest.truncate(LISTED);
    }
}

/// Tokens rise with every grant, and no clock has a say in that.
pub(super) fn since(lock: &LockView) -> Option<Token> {
    lock.holder.as_ref().map(|holder| holder.token)
}

pub(super) fn now() -> Duration {
    Duration::from_nanos(boottime())
}
