//! One Redis primary as the authority.
//!
//! ```text
//!   operation ─► one script, locks.lua: end expired grants ─► draw a token and grant, or queue
//!   release  ──►   the next waiter is granted in the same script ─► PUBLISH to its connection
//!                                                                            │
//!   a waiting request: listener ◄─── its token ──────────────────────────────┘
//!                      (without a notification: it asks again and gets its grant)
//! ```
//!
//! # Guarantees
//!
//! * One serial order for everything: a script is one step at the server. FIFO waiters, one of which a
//!   release wakes. A waiter that shows no sign of life for its time to live is skipped. Repeats are
//!   recognised by their request id. The last ending of each lock is remembered for ten minutes. A client
//!   gets its own lock back.
//! * Tokens from **one counter, drawn in the step that grants**: they rise in the order of grants, over all
//!   locks. (`INCR` followed by `SET NX` can grant 2 and then 1.)
//!
//! # Limitations
//!
//! * **Redis answers before data is on disk.** With `appendfsync everysec` a crash loses up to a second or
//!   two of grants, *and of tokens*: the same token may be issued twice, and a fence cannot tell. With
//!   `appendfsync always` a crash of the server loses nothing that was answered.
//! * **A failover loses what the replica had not received**, tokens as well. `?replicas=N` in the URL
//!   acknowledges a grant only when N replicas have it (`WAIT`). That narrows the gap and does not close it,
//!   because the promoted replica need not be one of them.
//! * Leases expire by the server's wall clock. **A clock set forward expires leases early.** Holders keep
//!   their own clock, and the fence protects the data.
//! * A restored snapshot goes back to old tokens under the same authority id. After a restore raise the
//!   counter: `INCRBY {palisade}:tokens:ID 17592186044416`, with the ID that `GET {palisade}:authority`
//!   prints. An emptied server is another authority, which fences refuse.
//! * It forgets an expired grant: a request that is repeated after its lease expired is a new one, with a new token.
//! * Eviction can remove a lock: set `maxmemory-policy noeviction`.
//! * The time at which a lock was acquired comes from the wall clock of the requesting client.
//! * It does not support several locks under one lease, or events.
//!
//! For a lock over several independent primaries see the module `redlock`, which has no tokens.

mod address;
mod answer;
mod fault;
mod listener;
mod pending_locks;
mod queries;
mod scripts;
mod waiting;

use std::time::Duration;

use palisade_core::{AuthorityId, GrantRef, LockName, LockView, Renewed, RequestId, Token, Ttl};
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{Client, Script};

use crate::exclusive::only_exclusive;
use address::Address;
use answer::Answer;
use listener::Listener;
use palisade_client::Fault;
use palisade_client::service::{
    AcquireRequest, Acquired, Cursor, LockService, Operation, Page, Released, Renewal, Revocation,
    fresh_request_id,
};
use pending_locks::PendingLocks;
use scripts::Scripts;

/// The prefix of all keys. The braces keep them in one slot of a cluster.
const ROOT: &str = "{palisade}:";

/// A connection to a Redis primary.
pub struct Redis {
    authority: AuthorityId,
    connection: ConnectionManager,
    scripts: Scripts,
    listener: Listener,
    pending_locks: PendingLocks,
    replicas: u32,
}

impl Redis {
    /// Connects to the server at `url`: `redis://[user[:password]@]host[:6379][/database]`. `?replicas=N` requires that
    /// N replicas acknowledge each grant. It does not support TLS.
    ///
    /// # Errors
    /// [`Fault::Invalid`] for an invalid address, [`Fault::Unreachable`] if nothing answers there.
    pub async fn connect(url: &str) -> Result<Redis, Fault> {
        let Address { url, replicas } = Address::parse(url)?;
        let client = Client::open(url).map_err(fault::address)?;
        let settings = ConnectionManagerConfig::new()
            .set_connection_timeout(Some(PATIENCE))
            .set_response_timeout(Some(PATIENCE))
            .set_number_of_retries(1);
        let connection = client.get_connection_manager_with_config(settings).await;
        let mut connection = connection.map_err(fault::connecting)?;
        let authority = identify(&mut connection).await?;
        Ok(Redis {
            scripts: Scripts::of(&authority),
            authority,
            connection,
            listener: Listener::new(client)?,
            pending_locks: PendingLocks::default(),
            replicas,
        })
    }

    /// Returns how often a waiting request of this connection was woken by its grant.
    #[must_use]
    pub fn wake_ups(&self) -> u64 {
        self.listener.notifications.wake_ups()
    }

    /// Runs one operation on a lock.
    async fn run(
        &self,
        operation: &Script,
        lock: &str,
        arguments: &[&str],
    ) -> Result<Answer, Fault> {
        let mut call = operation.key(format!("{ROOT}lock:{lock}"));
        for argument in arguments {
            call.arg(*argument);
        }
        let mut connection = self.connection.clone();
        let said = call.invoke_async(&mut connection).await;
        Answer::read(said.map_err(fault::of)?)
    }

    /// Waits until enough replicas have the grant.
    async fn replicated(&self) -> Result<(), Fault> {
        if self.replicas == 0 {
            return Ok(());
        }
        let mut connection = self.connection.clone();
        let wait = redis::cmd("WAIT")
            .arg(self.replicas)
            .arg(WAIT_FOR_REPLICAS.as_millis() as u64)
            .to_owned();
        let reached: u32 = wait.query_async(&mut connection).await.map_err(fault::of)?;
        if reached >= self.replicas {
            return Ok(());
        }
        Err(Fault::unknown_outcome(format!(
            "{reached} of {} replicas have the grant",
            self.replicas
        )))
    }

    async fn renewed(&self, grant: GrantRef, ttl: Option<Ttl>) -> Result<Renewal, Fault> {
        let ttl = ttl.map_or(0, Ttl::as_millis).to_string();
        let answer = self
            .run(&self.scripts.renew, &grant.lock, &[&key(&grant), &ttl])
            .await?;
        Ok(match answer.how() {
            "renewed" => {
                self.replicated().await?;
                Renewal::Renewed(Renewed {
                    token: answer.token()?,
                    ttl: answer.ttl()?,
                    valid_for: answer.left(),
                    near_deadline: false,
                    waiters: 0,
                })
            }
            "not_held" => Renewal::NotHeld,
            "stale" => Renewal::Stale {
                highest: answer.token()?,
            },
            _ => Renewal::Ended(answer.ending()?),
        })
    }

    async fn released(&self, grant: GrantRef) -> Result<Released, Fault> {
        let answer = self
            .run(&self.scripts.release, &grant.lock, &[&key(&grant)])
            .await?;
        Ok(match answer.how() {
            "done" => Released::Released,
            "not_held" => Released::NotHeld,
            "stale" => Released::Stale {
                highest: answer.token()?,
            },
            _ => Released::Ended(answer.ending()?),
        })
    }

    async fn revoked(&self, lock: LockName, token: Token) -> Result<Revocation, Fault> {
        let token = token.to_string();
        let answer = self.run(&self.scripts.revoke, &lock, &[&token]).await?;
        Ok(match answer.how() {
            "done" => Revocation::Revoked,
            "not_held" => Revocation::NotHeld,
            "stale" => Revocation::Stale {
                highest: answer.token()?,
            },
            _ => Revocation::Ended(answer.ending()?),
        })
    }

    async fn shown(&self, lock: LockName) -> Result<LockView, Fault> {
        let shown = self.run(&self.scripts.show, &lock, &[]).await?;
        shown.view(lock)
    }
}

/// Returns the id of this data set, which the first client creates.
async fn identify(connection: &mut ConnectionManager) -> Result<AuthorityId, Fault> {
    let key = format!("{ROOT}authority");
    let fresh = fresh_request_id()?.to_hex();
    let identify = redis::pipe()
        .atomic()
        .cmd("SET")
        .arg(&key)
        .arg(format!("redis:{fresh}"))
        .arg("NX")
        .ignore()
        .cmd("GET")
        .arg(&key)
        .to_owned();
    let (id,): (String,) = identify.query_async(connection).await.map_err(fault::of)?;
    Ok(AuthorityId::new(&id)?)
}

/// The request id that is the grant's key, and its token (0: any), in the script's format.
fn key(grant: &GrantRef) -> String {
    let token = grant.token.map_or(0, Token::get);
    format!("{} {token}", grant.key.to_hex())
}

impl LockService for Redis {
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
        Box::pin(queries::abandon(self, request))
    }

    fn show(&self, lock: LockName) -> Operation<'_, LockView> {
        Box::pin(self.shown(lock))
    }

    fn list(&self, prefix: &str, after: Option<Cursor>, limit: u32) -> Operation<'_, Page> {
        Box::pin(queries::list(self, prefix.to_owned(), after, limit))
    }

    /// The reason is dropped, because the script does not store it. The holder learns of the revocation at its next
    /// renewal.
    fn revoke(&self, lock: LockName, token: Token, _reason: &str) -> Operation<'_, Revocation> {
        Box::pin(self.revoked(lock, token))
    }
}

/// The time limit for a connection and for an answer; beyond it the outcome is unknown.
const PATIENCE: Duration = Duration::from_secs(5);

/// The time limit for replicas.
const WAIT_FOR_REPLICAS: Duration = Duration::from_secs(1);
