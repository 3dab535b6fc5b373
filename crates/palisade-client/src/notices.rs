//! The news of one guard, for its holder.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use palisade_core::Token;

use crate::error::Lost;
use crate::keeper::Keeper;
use crate::lease::loss;
use crate::schedule::KeptGrant;

/// News of a guard.
///
/// The order is always [`Suspended`](LeaseNotice::Suspended), then [`Restored`](LeaseNotice::Restored) or
/// [`Lost`](LeaseNotice::Lost). A guard can also be lost at once, when an operator takes the lock.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum LeaseNotice {
    /// A renewal failed, and the guard still holds. Unless a later one succeeds, it is lost after the remaining time.
    Suspended {
        /// How long the holder may still act.
        remaining: Duration,
    },
    /// Renewals succeed again.
    Restored,
    /// Requests wait for the lock. It comes again when more do.
    Wanted {
        /// How many.
        waiters: u32,
    },
    /// No request waits any more.
    Unwanted,
    /// The guard is lost. Nothing follows.
    Lost {
        /// The lock, the token and the reason.
        lost: Lost,
        /// The operator's reason for a revocation, if the authority gave it.
        reason: Option<Box<str>>,
    },
}

/// The news of one guard, from [`Lease::notices`](crate::Lease::notices).
///
/// A reader gets what has changed since it read last, so a slow one delays nothing and misses only news that is out of date. It
/// needs a Tokio runtime.
pub struct Notices {
    kept: Arc<KeptGrant>,
    keeper: Arc<Keeper>,
    token: Token,
    /// What the reader knows.
    suspended: bool,
    waiters: u32,
    lost: bool,
}

impl Notices {
    pub(crate) fn new(kept: &Arc<KeptGrant>, keeper: &Arc<Keeper>, token: Token) -> Notices {
        Notices {
            kept: Arc::clone(kept),
            keeper: Arc::clone(keeper),
            token,
            suspended: false,
            waiters: 0,
            lost: false,
        }
    }

    /// Waits for the next news; `None` after the loss. Dropping the future loses nothing.
    pub async fn next(&mut self) -> Option<LeaseNotice> {
        loop {
            let kept = Arc::clone(&self.kept);
            let mut changed = std::pin::pin!(kept.changed().notified());
            // From here on a change wakes this task, also one before it waits.
            changed.as_mut().enable();
            if self.lost {
                return None;
            }
            if let Some(news) = self.changed() {
                return Some(news);
            }
            let clock = &self.keeper.core().clock;
            let deadline = kept.hold.deadline().unwrap_or_default();
            tokio::select! {
                () = changed => {}
                () = kept.hold.signal().cancelled() => {}
                () = clock.sleep_until(deadline) => {}
            }
        }
    }

    /// What the reader does not know.
    fn changed(&mut self) -> Option<LeaseNotice> {
        let now = self.keeper.core().clock.now();
        if !self.kept.hold.holds(now) {
            self.lost = true;
            return Some(LeaseNotice::Lost {
                lost: loss(&self.kept, self.token),
                reason: self.kept.reason().map(Box::from),
            });
        }
        let suspended = self.kept.is_suspended();
        if suspended != self.suspended {
            self.suspended = suspended;
            let remaining = self.kept.hold.remaining(now).to_duration();
            return Some(if suspended {
                LeaseNotice::Suspended { remaining }
            } else {
                LeaseNotice::Restored
            });
        }
        let (waiters, knew) = (self.kept.waiters(), self.waiters);
        self.waiters = waiters;
        match waiters {
            0 if knew > 0 => Some(LeaseNotice::Unwanted),
            waiters if waiters > knew => Some(LeaseNotice::Wanted { waiters }),
            _ => None,
        }
    }
}

impl fmt::Debug for Notices {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Notices")
            .field("lock", &self.kept.grant.lock)
            .field("token", &self.token)
            .finish_non_exhaustive()
    }
}
