//! The guard: a deadline and no token.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use palisade_core::{LockName, Span, Timestamp, Ttl};
use tokio::task::JoinHandle;

use super::{CAUTION, Redlock};
use palisade_client::Loss;
use palisade_client::clock::{BootClock, Clock as _};
use palisade_client::hold::Hold;

/// A lock that is held, as far as this process knows. It has no token: see the [module](super). It renews itself after
/// a third of its time to live; dropping it releases the lock in the background.
#[must_use = "dropping the guard releases the lock"]
pub struct RedlockGuard {
    redlock: Redlock,
    lock: LockName,
    value: Box<str>,
    hold: Arc<Hold>,
    keeper: JoinHandle<()>,
}

impl RedlockGuard {
    pub(super) fn new(
        redlock: Redlock,
        lock: LockName,
        value: Box<str>,
        ttl: Ttl,
        deadline: Timestamp,
    ) -> RedlockGuard {
        let hold = Arc::new(Hold::new(deadline));
        let keeping = keep(
            redlock.clone(),
            lock.clone(),
            value.clone(),
            ttl,
            Arc::clone(&hold),
        );
        RedlockGuard {
            keeper: tokio::spawn(keeping),
            redlock,
            lock,
            value,
            hold,
        }
    }

    /// The lock.
    #[must_use]
    pub fn lock(&self) -> &LockName {
        &self.lock
    }

    /// Returns whether the deadline is still ahead, by this machine's clock. This proves less than a token does: see
    /// the [module](super).
    #[must_use]
    pub fn is_held(&self) -> bool {
        self.hold.holds(BootClock.now())
    }

    /// Returns the time until the deadline if no renewal follows.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.hold.remaining(BootClock.now()).to_duration()
    }

    /// Completes when the lock is lost.
    pub fn lost(&self) -> impl Future<Output = ()> + Send + use<> {
        self.hold.signal().clone().cancelled_owned()
    }

    /// Releases the lock, which counts as lost from the call on. Returns whether a majority of the primaries still had
    /// it.
    pub async fn release(self) -> bool {
        self.hold.lose(Loss::Released);
        self.keeper.abort();
        self.redlock.delete(&self.lock, &self.value).await
    }
}

impl Drop for RedlockGuard {
    fn drop(&mut self) {
        self.keeper.abort();
        if self.hold.why() == Some(Loss::Released) {
            return;
        }
        self.hold.lose(Loss::Released);
        if let Ok(runtime) = tokio::runtime::Handle::try_current() {
            let (redlock, lock, value) = (
                self.redlock.clone(),
                self.lock.clone(),
                std::mem::take(&mut self.value),
            );
            runtime.spawn(async move { redlock.delete(&lock, &value).await });
        }
    }
}

impl fmt::Debug for RedlockGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Guard")
            .field("lock", &self.lock)
            .finish_non_exhaustive()
    }
}

/// Extends the lock at a third of its time, until it is lost.
async fn keep(redlock: Redlock, lock: LockName, value: Box<str>, ttl: Ttl, hold: Arc<Hold>) {
    let third = Span::from_nanos(ttl.span().as_nanos() / 3);
    while let Some(deadline) = hold.deadline() {
        let next = BootClock.now().after(third).min(deadline);
        BootClock.alarm(next).await;
        let sent = BootClock.now();
        if !hold.holds(sent) {
            return;
        }
        // A failed extension is tried again a third later: the deadline stands until most primaries agree.
        if redlock.extend(&lock, &value, ttl).await {
            hold.renewed(BootClock.now(), CAUTION.deadline(sent, ttl.span()));
        }
    }
}
