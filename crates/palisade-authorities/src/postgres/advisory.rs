//! PostgreSQL's session advisory locks: exclusion **without a fencing token**.
//!
//! The lock lives as long as a session. That is fast and needs no table. Use it for work where doing it twice
//! only wastes effort:
//!
//! * There is no token, so the resource cannot refuse a holder that was paused. The guard has no `token()`,
//!   and does not compile where a fence requires one.
//! * There is no lease and no deadline. When the connection dies silently, the server may free the lock long
//!   before or long after this side notices.
//! * It does not work through a transaction pooler: the session belongs to the pooler, and the lock stays
//!   with the next client that gets the session. Connect to the server itself.
//!
//! ```compile_fail
//! # use palisade_authorities::postgres::advisory::AdvisoryLockGuard;
//! fn claim(token: palisade_client::Token) {}
//! fn fenced(guard: &AdvisoryLockGuard) {
//!     claim(guard.token()); // there is none
//! }
//! ```
//!
//! For data that must not be lost use [`Postgres`](super::Postgres), whose grants carry tokens.

use std::time::Duration;

use palisade_core::LockName;
use tokio::task::JoinHandle;
use tokio_postgres::error::SqlState;
use tokio_postgres::types::Type;
use tokio_postgres::{Client, Config, NoTls};

use super::{fault, pool};
use palisade_client::Error;
use palisade_client::Fault;

/// A database in which to take advisory locks.
#[derive(Clone, Debug)]
pub struct AdvisoryLocks {
    config: Config,
}

/// A lock that is held for as long as its own connection exists. It has no token: see the [module](self).
#[must_use = "dropping the guard ends the session, and with it the lock"]
pub struct AdvisoryLockGuard {
    lock: LockName,
    client: Client,
    connection: JoinHandle<()>,
}

impl AdvisoryLocks {
    /// Prepares locks in the database at `url`, written as for
    /// [`Postgres::connect`](super::Postgres::connect). It opens no connection yet: each lock has its own
    /// session.
    ///
    /// # Errors
    /// [`Fault::Invalid`] for an address that is not valid.
    pub fn at(url: &str) -> Result<AdvisoryLocks, Fault> {
        let config = pool::config(url)?;
        Ok(AdvisoryLocks { config })
    }

    /// Takes the lock `name`, waiting up to `wait` for it (zero: not at all). Returns `None` if another client still
    /// holds it then. Waiters get it in the order in which they arrived.
    ///
    /// # Errors
    /// Faults only. Dropping the future leaves nothing behind, because its session ends.
    pub async fn acquire(
        &self,
        name: &str,
        wait: Duration,
    ) -> Result<Option<AdvisoryLockGuard>, Error> {
        let lock = LockName::new(name)?;
        let connected = self.config.connect(NoTls).await;
        let (client, connection) = connected.map_err(fault::connecting)?;
        let connection = tokio::spawn(async move { drop(connection.await) });
        let guard = AdvisoryLockGuard {
            lock,
            client,
            connection,
        };
        Ok(guard.take(wait).await?.then_some(guard))
    }
}

impl AdvisoryLockGuard {
    async fn take(&self, wait: Duration) -> Result<bool, Fault> {
        let name = [(&self.lock.as_str() as _, Type::TEXT)];
        if wait.is_zero() {
            let take = "SELECT pg_try_advisory_lock(hashtextextended($1, 0))";
            let taken = self.client.query_typed_one(take, &name).await;
            let taken = taken.and_then(|row| row.try_get(0));
            return taken.map_err(fault::of);
        }
        let bound = format!("SET lock_timeout = {}", wait.as_millis().max(1));
        let bounded = self.client.batch_execute(&bound).await;
        bounded.map_err(fault::of)?;
        let take = "SELECT pg_advisory_lock(hashtextextended($1, 0))::text";
        match self.client.query_typed_one(take, &name).await {
            Ok(_) => Ok(true),
            Err(error) if error.code() == Some(&SqlState::LOCK_NOT_AVAILABLE) => Ok(false),
            Err(error) => Err(fault::of(error)),
        }
    }

    /// The lock.
    #[must_use]
    pub fn lock(&self) -> &LockName {
        &self.lock
    }

    /// Returns whether the session is known to have ended. `false` proves nothing: see the [module](self).
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.client.is_closed()
    }

    /// Completes when this side notices that the session has ended, and the lock with it.
    pub async fn lost(&mut self) {
        let _ = (&mut self.connection).await;
    }

    /// Releases the lock, and reports whether it was still held.
    ///
    /// # Errors
    /// [`Fault::UnknownOutcome`] if there was no answer: the session's end frees the lock.
    pub async fn release(self) -> Result<bool, Error> {
        let release = "SELECT pg_advisory_unlock(hashtextextended($1, 0))";
        let name = [(&self.lock.as_str() as _, Type::TEXT)];
        let released = self.client.query_typed_one(release, &name).await;
        let released = released.and_then(|row| row.try_get(0));
        Ok(released.map_err(fault::of)?)
    }
}

impl Drop for AdvisoryLockGuard {
    fn drop(&mut self) {
        self.connection.abort();
    }
}
