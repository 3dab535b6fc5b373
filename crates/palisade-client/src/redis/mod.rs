//! One Redis primary as the authority.
//!
//! ```text
//!   operation ─► one script, locks.lua: end what is over ─► draw a token and grant, or queue
//!   release  ──►   the next waiter is granted in the same script ─► PUBLISH to its connection
//!                                                                            │
//!   a waiting request: listener ◄─── its token ──────────────────────────────┘
//!                      (nobody told it: it asks again, and is answered with its grant)
//! ```
//!
//! # What it gives
//!
//! * One serial order for everything: a script is one step at the server. FIFO waiters, one woken by a
//!   release; a waiter that gives no sign of life for its time to live is passed over; repeats are
//!   recognised by their request id; of each lock the last ending is remembered for ten minutes; the
//!   same client takes its lock back.
//! * Tokens from **one counter, drawn in the step that grants**: they rise in the order of grants,
//!   over all locks. (`INCR` first and `SET NX` after can grant 2 and then 1.)
//!
//! # What it cannot give
//!
//! * **Redis answers before it is on disk.** With `appendfsync everysec` a crash loses up to a second
//!   or two of grants, *and of tokens*: the same token may be issued twice, and a fence cannot tell.
//!   With `appendfsync always` the server's own crash loses nothing that was answered.
//! * **A failover loses what the replica had not received**, tokens as well. `?replicas=N` in the URL
//!   acknowledges a grant only when N replicas have it (`WAIT`); that narrows the gap and does not
//!   close it, because the replica that is promoted need not be one of them.
//! * Leases expire by the server's wall clock. **A clock set forward expires leases early.** Holders
//!   keep their own clock, and the fence keeps the data.
//! * A restored snapshot goes back to old tokens under the same authority id. After a restore raise the
//!   counter: `INCRBY {palisade}:tokens:ID 17592186044416`, with the ID that `GET {palisade}:authority`
//!   prints. An emptied server is another authority, which fences refuse.
//! * What expired is forgotten: a request that is repeated after its lease ran out is a new one, with a
//!   new token.
//! * Eviction can take a lock away: set `maxmemory-policy noeviction`.
//! * When a lock was acquired is told by the wall clock of the client that asked.
//! * Several locks under one lease, and events, are not offered.
//!
//! For a lock over several independent primaries see the module `redlock`, which has no tokens.

mod answer;
mod fault;
mod listener;
mod looking;
mod place;
mod scripts;
mod underway;
mod waiting;

use std::time::Duration;

use palisade_core::{AuthorityId, GrantRef, LockName, LockView, Renewed, RequestId, Token, Ttl};
use redis::aio::{ConnectionManager, ConnectionManagerConfig};
use redis::{Client, Script};

use crate::fault::Fault;
use crate::random;
use crate::service::{
    AcquireRequest, Acquired, Cursor, LockService, Operation, Page, Released, Renewal, Revocation,
};
use answer::Answer;
use listener::Listener;
use place::Place;
use scripts::Scripts;
use underway::Underway;

/// What the names of all keys begin with. The braces keep them in one slot of a cluster.
const ROOT: &str = "{palisade}:";

/// A connection to a Redis primary.
pub struct Redis {
    authority: AuthorityId,
    connection: ConnectionManager,
    scripts: Scripts,
    listener: Listener,
    underway: Underway,
    replicas: u32,
}

impl Redis {
    /// Connects to the server at `url`: `redis://[user[:password]@]host[:6379][/database]`, and
    /// `?replicas=N` for grants that N replicas must have. TLS is not built in.
    ///
    /// # Errors
    /// [`Fault::Invalid`] for an address that cannot be meant, [`Fault::Unavailable`] if nothing
    /// answers there.
    pub async fn connect(url: &str) -> Result<Redis, Fault> {
        let Place { url, replicas } = Place::parse(url)?;
        let client = Client::open(url).map_err(|error| fault::address(&error))?;
        let settings = ConnectionManagerConfig::new()
            .set_connection_timeout(Some(PATIENCE))
            .set_response_timeout(Some(PATIENCE))
            .set_number_of_retries(1);
        let connection = client.get_connection_manager_with_config(settings).await;
        let mut connection = connection.map_err(|error| fault::connecting(&error))?;
        let authority = identify(&mut connection).await?;
        Ok(Redis {
            scripts: Scripts::of(&authority),
            authority,
            connection,
            listener: Listener::new(client)?,
            underway: Underway::default(),
            replicas,
        })
    }

    /// How many times a waiting request of this connection was woken because it had been granted.
    #[must_use]
    pub fn wake_ups(&self) -> u64 {
        self.listener.ears.wake_ups()
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
        Answer::read(said.map_err(|error| fault::of(&error))?)
    }

    /// Makes sure that enough replicas have what was granted.
    async fn replicated(&self) -> Result<(), Fault> {
        if self.replicas == 0 {
            return Ok(());
        }
        let mut connection = self.connection.clone();
        let wait = redis::cmd("WAIT")
            .arg(self.replicas)
            .arg(WAIT_FOR_REPLICAS.as_millis() as u64)
            .to_owned();
        let reached: u32 = wait
            .query_async(&mut connection)
            .await
            .map_err(|error| fault::of(&error))?;
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

/// The id of this data set, made by whoever comes first.
async fn identify(connection: &mut ConnectionManager) -> Result<AuthorityId, Fault> {
    let key = format!("{ROOT}authority");
    let fresh = RequestId::from_bytes(random::bytes()?).to_hex();
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
    let (id,): (String,) = identify
        .query_async(connection)
        .await
        .map_err(|error| fault::of(&error))?;
    Ok(AuthorityId::new(&id)?)
}

/// The request that is the grant's key, and its token (0: any), as the script takes them.
fn key(grant: &GrantRef) -> String {
    let token = grant.token.map_or(0, Token::get);
    format!("{} {token}", grant.key.to_hex())
}

impl LockService for Redis {
    fn authority(&self) -> &AuthorityId {
        &self.authority
    }

    fn acquire(&self, request: AcquireRequest) -> Operation<'_, Acquired> {
        Box::pin(waiting::acquire(self, request))
    }

    fn renew(&self, grant: GrantRef, ttl: Option<Ttl>) -> Operation<'_, Renewal> {
        Box::pin(self.renewed(grant, ttl))
    }

    fn release(&self, grant: GrantRef) -> Operation<'_, Released> {
        Box::pin(self.released(grant))
    }

    fn abandon(&self, request: RequestId) -> Operation<'_, ()> {
        Box::pin(looking::abandon(self, request))
    }

    fn show(&self, lock: LockName) -> Operation<'_, LockView> {
        Box::pin(self.shown(lock))
    }

    fn list(&self, prefix: &str, after: Option<Cursor>, limit: u32) -> Operation<'_, Page> {
        Box::pin(looking::list(self, prefix.to_owned(), after, limit))
    }

    /// The reason is for people and Redis has no place for it; the holder learns of it with its next
    /// renewal.
    fn revoke(&self, lock: LockName, token: Token, _reason: &str) -> Operation<'_, Revocation> {
        Box::pin(self.revoked(lock, token))
    }
}

/// To connect, and to be answered: beyond it the outcome is unknown.
const PATIENCE: Duration = Duration::from_secs(5);

/// How long replicas may take.
const WAIT_FOR_REPLICAS: Duration = Duration::from_secs(1);
