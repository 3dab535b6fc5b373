//! A table in PostgreSQL as the authority.
//!
//! ```text
//!   operation ─► one statement: SELECT palisade.acquire(…) ─► its own transaction, in setup.sql:
//!                  enter the lock ─► end expired grants ─► draw a token and grant, or queue
//!   release  ──►   the next waiter is granted in the same transaction ─► NOTIFY its connection
//!                                                                              │
//!   a waiting request: listener ◄─── its token ────────────────────────────────┘
//!                      (without a notification: it asks again and gets its grant)
//! ```
//!
//! # Guarantees
//!
//! * All of the rules of a Palisade server: one serial order for each lock, FIFO waiters, repeats recognised
//!   by their request id, endings remembered for an hour, and a client that gets its own lock back.
//! * Tokens from **one counter row**, drawn in the transaction that grants, which locks that row until it is
//!   durable: grants become visible in the order of their tokens, over all locks. (A sequence does not
//!   suffice: `nextval` is drawn before the transaction has its turn.)
//! * One statement for each operation and no state in the session, so a transaction pooler (PgBouncer) may
//!   stand in between. `LISTEN` needs a session: behind a pooler waiters learn of grants by polling, the
//!   first of them once a second.
//!
//! # Limitations
//!
//! * Leases expire by the database's wall clock; PostgreSQL has no other. **A clock set forward expires every
//!   lease at once.** Holders keep their own clock, and the fence protects the data.
//! * Grants of all locks wait for one row, each for one flush to disk: the rate of grants is about the rate
//!   of disk syncs.
//! * **A failover to a standby that lags, and a restore from a backup, go back to old tokens**, under the
//!   same authority id. Make the standby synchronous; after a restore run
//!   `UPDATE palisade.authority SET last_token = last_token + 17592186044416`.
//! * It does not support several locks under one lease, or events.
//!
//! [`advisory`] uses PostgreSQL's advisory locks, which have no tokens.

pub mod advisory;
mod fault;
mod listener;
mod pool;
mod rows;
mod waiting;

use palisade_core::{AuthorityId, GrantRef, LockName, LockView, RequestId, Token, Ttl};
use tokio_postgres::types::Type;

use crate::exclusive::only_exclusive;
use listener::Listener;
use palisade_client::Fault;
use palisade_client::service::{
    AcquireRequest, Acquired, Cursor, LockService, Operation, Page, Released, Renewal, Revocation,
};
use pool::ConnectionPool;

/// The script that creates the tables and functions. [`Postgres::connect`] runs it if they are missing. If
/// the role may not create a schema, an administrator runs it first.
pub const SETUP: &str = include_str!("setup.sql");

/// The version of the tables and functions in [`SETUP`].
const VERSION: i32 = 1;

/// Connections to a database with Palisade's lock table.
pub struct Postgres {
    authority: AuthorityId,
    pool: ConnectionPool,
    listener: Listener,
}

impl Postgres {
    /// Connects to the database at `url`, `postgres://[user[:password]@]host[:port]/database` in libpq's notation, with
    /// this many connections for operations, and one more that listens while requests wait. It does not support TLS.
    ///
    /// # Errors
    /// [`Fault::Invalid`] for an invalid address or a role without the right to set up, [`Fault::Unreachable`] if
    /// nothing answers there.
    pub async fn connect(url: &str, connections: usize) -> Result<Postgres, Fault> {
        let pool = ConnectionPool::new(pool::config(url)?, connections)?;
        let authority = prepare(&pool).await?;
        let listener = Listener::new(pool.config().clone())?;
        Ok(Postgres {
            authority,
            pool,
            listener,
        })
    }

    /// Returns how often a waiting request of this connection was woken by its grant.
    #[must_use]
    pub fn wake_ups(&self) -> u64 {
        self.listener.notifications.wake_ups()
    }

    async fn renewed(&self, grant: GrantRef, ttl: Option<Ttl>) -> Result<Renewal, Fault> {
        let (request, token) = named(&grant);
        let ttl = ttl.map(|ttl| i64::from(ttl.as_millis()));
        let row = self
            .pool
            .one(
                "SELECT * FROM palisade.renew($1, $2::uuid, $3, $4)",
                &[
                    (&grant.lock.as_str(), Type::TEXT),
                    (&request, Type::TEXT),
                    (&token, Type::INT8),
                    (&ttl, Type::INT8),
                ],
            )
            .await?;
        rows::renewal(&row)
    }

    async fn released(&self, grant: GrantRef) -> Result<Released, Fault> {
        let (request, token) = named(&grant);
        let row = self
            .pool
            .one(
                "SELECT * FROM palisade.release($1, $2::uuid, $3)",
                &[
                    (&grant.lock.as_str(), Type::TEXT),
                    (&request, Type::TEXT),
                    (&token, Type::INT8),
                ],
            )
            .await?;
        rows::released(&row)
    }

    async fn abandoned(&self, request: RequestId) -> Result<(), Fault> {
        let request = request.to_hex();
        let abandon = "SELECT palisade.abandon($1::uuid)::text";
        self.pool
            .one(abandon, &[(&request, Type::TEXT)])
            .await
            .map(drop)
    }

    async fn shown(&self, lock: LockName) -> Result<LockView, Fault> {
        let show = "SELECT * FROM palisade.shown($1)";
        let row = self.pool.one(show, &[(&lock.as_str(), Type::TEXT)]).await?;
        rows::view(&row)
    }

    async fn listed(
        &self,
        prefix: String,
        after: Option<Cursor>,
        limit: u32,
    ) -> Result<Page, Fault> {
        let after = after.map_or(String::new(), |cursor| cursor.0.into());
        let limit = i64::from(limit.max(1));
        let list =
            "SELECT shown.* FROM palisade.listed($1, $2, $3), palisade.shown(o_lock) AS shown";
        let found = self
            .pool
            .all(
                list,
                &[
                    (&prefix, Type::TEXT),
                    (&after, Type::TEXT),
                    (&limit, Type::INT8),
                ],
            )
            .await?;
        rows::page(&found, limit)
    }

    async fn revoked(&self, lock: LockName, token: Token) -> Result<Revocation, Fault> {
        let token = rows::number(token);
        let row = self
            .pool
            .one(
                "SELECT * FROM palisade.revoke($1, $2)",
                &[(&lock.as_str(), Type::TEXT), (&token, Type::INT8)],
            )
            .await?;
        rows::revocation(&row)
    }
}

/// The request id in a grant's key, and the token.
fn named(grant: &GrantRef) -> (String, Option<i64>) {
    (grant.key.to_hex(), grant.token.map(rows::number))
}

/// Creates missing tables and functions, and returns the authority id.
async fn prepare(pool: &ConnectionPool) -> Result<AuthorityId, Fault> {
    let there = "SELECT to_regprocedure('palisade.listed(text, text, bigint)') IS NOT NULL";
    if !pool
        .one(there, &[])
        .await?
        .try_get::<_, bool>(0)
        .map_err(rows::unexpected)?
    {
        // Clients that set up at the same time take turns.
        let setup = format!("BEGIN; SELECT pg_advisory_xact_lock(1347309643); {SETUP} COMMIT;");
        pool.batch(&setup).await?;
    }
    let row = pool
        .one("SELECT id, version FROM palisade.authority", &[])
        .await?;
    let version: i32 = row.try_get(1).map_err(rows::unexpected)?;
    if version != VERSION {
        return Err(Fault::invalid(format!(
            "the lock table there has version {version}; this client needs {VERSION}"
        )));
    }
    let id: &str = row.try_get(0).map_err(rows::unexpected)?;
    Ok(AuthorityId::new(&format!("postgres:{id}"))?)
}

impl LockService for Postgres {
    fn authority(&self) -> &AuthorityId {
        &self.authority
    }

    fn acquire(&self, request: AcquireRequest) -> Operation<'_, Acquired> {
        Box::pin(async move {
            only_exclusive(&request)?;
            waiting::acquire(self, request).await
        })
    }

    fn renew(&self, grant: GrantRef, ttl: Option<Ttl>) -> Operation<'_, Renewal> {
        Box::pin(self.renewed(grant, ttl))
    }

    fn release(&self, grant: GrantRef) -> Operation<'_, Released> {
        Box::pin(self.released(grant))
    }

    fn abandon(&self, request: RequestId) -> Operation<'_, ()> {
        Box::pin(self.abandoned(request))
    }

    fn show(&self, lock: LockName) -> Operation<'_, LockView> {
        Box::pin(self.shown(lock))
    }

    fn list(&self, prefix: &str, after: Option<Cursor>, limit: u32) -> Operation<'_, Page> {
        Box::pin(self.listed(prefix.to_owned(), after, limit))
    }

    /// The reason is dropped, because the table cannot store it.
    fn revoke(&self, lock: LockName, token: Token, _reason: &str) -> Operation<'_, Revocation> {
        Box::pin(self.revoked(lock, token))
    }
}
