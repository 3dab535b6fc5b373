//! A ZooKeeper ensemble as the authority.
//!
//! ```text
//!   lock  ─► <root>/<lock>            container: the ensemble removes it when it is empty
//!   request ─►   └ <request id>-lock-<sequence>      ephemeral, of a session with the lease's time
//!                     lowest sequence holds; every other one watches its predecessor and itself,
//!                     and when that one goes looks again, itself included, before it believes that
//!                     it is first. The second of all need not look: nobody was before the one that
//!                     went, and its connection would have told before that its own node had gone.
//!                     The session is proved to the leader at a third of its time, and when it renews
//!   token ─► the node's czxid, the transaction that created it
//! ```
//!
//! # What it gives
//!
//! * At most one holder, FIFO waiting, one release wakes one waiter.
//! * The token is the **czxid** of the holder's node: the ensemble's own count of transactions, which
//!   only grows, over all locks and leaders. The sequence in the node's name is never a token: it has
//!   32 bits, and begins again at zero when the lock's empty container was removed. Grants of one lock
//!   come in the order of their tokens; across locks a token says when the request joined its queue.
//! * The request id stands in the node's name, so a create whose answer was lost is found again.
//! * A session that is **suspended** counts as not held: nothing is granted and nothing is extended
//!   while it has no connection, and a holder believes for two thirds of the session's time after its
//!   last acknowledged round trip to the leader, which is when ZooKeeper's own clients disconnect.
//!
//! # What it cannot give
//!
//! * A lease is a session, and belongs to the process that opened it. Another process can release such
//!   a grant, but not renew it. All grants of one time to live share a session.
//! * The ensemble bounds session times, 2 ..= 20 ticks (4 s ..= 40 s by default). A time to live it
//!   would change is an error.
//! * A client id is a label. How a grant ended is not remembered.
//! * **An ensemble restored from a snapshot goes back to old tokens**, under the same authority id.
//!   Delete `<root>/.authority` after a restore: a new id is drawn, and fences refuse its tokens until
//!   an operator re-arms them.
//! * Several locks under one lease, and events, are not offered.

mod address;
mod ensemble;
mod fault;
mod looking;
mod node;
mod queue;
mod stake;

use std::sync::atomic::{AtomicU64, Ordering};

use palisade_core::{AuthorityId, GrantRef, LockName, LockView, Renewed, RequestId, Token, Ttl};

use crate::fault::Fault;
use crate::service::{
    AcquireRequest, Acquired, Cursor, LockService, Operation, Page, Released, Renewal, Revocation,
};
use ensemble::Ensemble;
use stake::Stakes;

/// Sessions with a ZooKeeper ensemble.
pub struct ZooKeeper {
    authority: AuthorityId,
    ensemble: Ensemble,
    stakes: Stakes,
    wake_ups: AtomicU64,
}

impl ZooKeeper {
    /// Connects to the ensemble at `url`: `zookeeper://host[:port][,host[:port]…][/root]`, with 2181 as
    /// the port and `palisade` as the node below which everything is unless given.
    ///
    /// # Errors
    /// [`Fault::Invalid`] for an address that cannot be meant, [`Fault::Unavailable`] if nothing
    /// answers there.
    pub async fn connect(url: &str) -> Result<ZooKeeper, Fault> {
        let address = address::Address::parse(url)?;
        let ensemble = Ensemble::connect(address).await?;
        let authority = ensemble.authority().await?;
        Ok(ZooKeeper {
            authority,
            ensemble,
            stakes: Stakes::default(),
            wake_ups: AtomicU64::new(0),
        })
    }

    /// How many times a waiting request of this connection was woken because the one before it had
    /// gone.
    #[must_use]
    pub fn wake_ups(&self) -> u64 {
        self.wake_ups.load(Ordering::Relaxed)
    }

    async fn renewed(&self, grant: GrantRef, ttl: Option<Ttl>) -> Result<Renewal, Fault> {
        let Some(stake) = self.stakes.get(grant.key.as_bytes()) else {
            return match self.ensemble.find(&grant).await? {
                Some(_) => Err(Fault::unsupported(
                    "renew a lease of another process: it is that process's session",
                )),
                None => Ok(Renewal::NotHeld),
            };
        };
        if ttl.is_some_and(|asked| asked != stake.ttl()) {
            return Err(Fault::unsupported(format!(
                "change a lease's time to live; this one has {}",
                stake.ttl()
            )));
        }
        match stake.renew(grant.token).await? {
            Some(token) => Ok(Renewal::Renewed(Renewed {
                token,
                ttl: stake.ttl(),
                valid_for: ensemble::valid_for(stake.ttl()),
            })),
            None => Ok(Renewal::NotHeld),
        }
    }

    async fn released(&self, grant: GrantRef) -> Result<Released, Fault> {
        if let Some(stake) = self.stakes.get(grant.key.as_bytes())
            && let Some(released) = stake.release(grant.token).await?
        {
            self.stakes.forget(grant.key.as_bytes());
            return Ok(match released {
                true => Released::Released,
                false => Released::NotHeld,
            });
        }
        let Some(node) = self.ensemble.find(&grant).await? else {
            self.stakes.forget(grant.key.as_bytes());
            return Ok(Released::NotHeld);
        };
        let released = self.ensemble.delete(&node.path).await?;
        self.stakes.forget(grant.key.as_bytes());
        Ok(match released {
            true => Released::Released,
            false => Released::NotHeld,
        })
    }

    /// Through the session that asked, whose operations are carried out in order: a create that is
    /// still on its way comes before the look.
    async fn abandoned(&self, request: RequestId) -> Result<(), Fault> {
        match self.stakes.get(request.as_bytes()) {
            Some(stake) => {
                stake.sweep().await?;
                self.stakes.forget(request.as_bytes());
                Ok(())
            }
            None => self.ensemble.sweep_everywhere(&request).await,
        }
    }

    async fn revoked(&self, lock: LockName, token: Token) -> Result<Revocation, Fault> {
        let Some(first) = self.ensemble.first(&lock).await? else {
            return Ok(Revocation::NotHeld);
        };
        if first.token != token {
            return Ok(Revocation::Stale {
                highest: first.token,
            });
        }
        match self.ensemble.delete(&first.path).await? {
            true => Ok(Revocation::Revoked),
            false => Ok(Revocation::NotHeld),
        }
    }
}

impl LockService for ZooKeeper {
    fn authority(&self) -> &AuthorityId {
        &self.authority
    }

    fn acquire(&self, request: AcquireRequest) -> Operation<'_, Acquired> {
        Box::pin(queue::acquire(self, request))
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
        Box::pin(looking::show(self, lock))
    }

    fn list(&self, prefix: &str, after: Option<Cursor>, limit: u32) -> Operation<'_, Page> {
        Box::pin(looking::list(self, prefix.to_owned(), after, limit))
    }

    /// The reason is for people and the ensemble has no place for it; the holder learns of it with
    /// its next renewal.
    fn revoke(&self, lock: LockName, token: Token, _reason: &str) -> Operation<'_, Revocation> {
        Box::pin(self.revoked(lock, token))
    }
}
