//! A ZooKeeper ensemble as the authority.
//!
//! ```text
//!   lock  ─► <root>/<lock>            container: the ensemble removes it when it is empty
//!   request ─►   └ <request id>-lock-<sequence>      ephemeral, of a session with the lease's time
//!                     The lowest sequence holds. Every other one watches its predecessor and itself,
//!                     and when the predecessor goes, it reads the queue and its own node again before
//!                     it believes that it is first. The second in the queue need not read it: the
//!                     node that went was the first, and the connection would have reported earlier
//!                     that the second's own node had gone.
//!                     The session is confirmed at the leader at a third of its time, and at a renewal.
//!   token ─► the node's czxid, the transaction that created it
//! ```
//!
//! # Guarantees
//!
//! * At most one holder, FIFO waiting, and one waiter woken by each release.
//! * The token is the **czxid** of the holder's node: the ensemble's own count of transactions, which only
//!   grows, over all locks and leaders. The sequence in the node's name is never a token: it has 32 bits, and
//!   starts again at zero after the lock's empty container was removed. Grants of one lock come in the order
//!   of their tokens; across locks a token says when the request joined its queue.
//! * The request id is part of the node's name, so a create whose answer was lost is found again.
//! * A **suspended** session counts as not held: while it has no connection, nothing is granted or extended. A holder's
//!   deadline is two thirds of the session's time after its last acknowledged round trip to the leader, which is when
//!   ZooKeeper's own clients disconnect.
//!
//! # Limitations
//!
//! * A lease is a session, and belongs to the process that opened it. Another process can release such a
//!   grant, but not renew it. All grants with the same time to live share a session.
//! * The ensemble bounds session times, 2 ..= 20 ticks (4 s ..= 40 s by default). A time to live that it
//!   would change is an error.
//! * A client id is only a label. The authority does not remember how a grant ended.
//! * **An ensemble restored from a snapshot goes back to old tokens**, under the same authority id.
//!   Delete `<root>/.authority` after a restore: a new id is drawn, and fences refuse its tokens until
//!   an operator re-arms them.
//! * It does not support several locks under one lease, or events.

mod address;
mod ensemble;
mod fault;
mod node;
mod queries;
mod queue;
mod registration;

use std::sync::atomic::{AtomicU64, Ordering};

use palisade_core::{AuthorityId, GrantRef, LockName, LockView, Renewed, RequestId, Token, Ttl};

use crate::exclusive::only_exclusive;
use ensemble::Ensemble;
use palisade_client::Fault;
use palisade_client::service::{
    AcquireRequest, Acquired, Cursor, LockService, Operation, Page, Released, Renewal, Revocation,
};
use registration::Registrations;

/// Sessions with a ZooKeeper ensemble.
pub struct ZooKeeper {
    authority: AuthorityId,
    ensemble: Ensemble,
    registrations: Registrations,
    wake_ups: AtomicU64,
}

impl ZooKeeper {
    /// Connects to the ensemble at `url`: `zookeeper://host[:port][,host[:port]…][/root]`. The default port
    /// is 2181, and the default root node is `palisade`.
    ///
    /// # Errors
    /// [`Fault::Invalid`] for an invalid address, [`Fault::Unreachable`] if nothing answers there.
    pub async fn connect(url: &str) -> Result<ZooKeeper, Fault> {
        let address = address::Address::parse(url)?;
        let ensemble = Ensemble::connect(address).await?;
        let authority = ensemble.authority().await?;
        Ok(ZooKeeper {
            authority,
            ensemble,
            registrations: Registrations::default(),
            wake_ups: AtomicU64::new(0),
        })
    }

    /// Returns how often a waiting request of this connection was woken because its predecessor had left.
    #[must_use]
    pub fn wake_ups(&self) -> u64 {
        self.wake_ups.load(Ordering::Relaxed)
    }

    async fn renewed(&self, grant: GrantRef, ttl: Option<Ttl>) -> Result<Renewal, Fault> {
        let Some(registration) = self.registrations.get(grant.key.as_bytes()) else {
            return match self.ensemble.find(&grant).await? {
                Some(_) => Err(Fault::unsupported(
                    "renew a lease of another process: it is that process's session",
                )),
                None => Ok(Renewal::NotHeld),
            };
        };
        if ttl.is_some_and(|asked| asked != registration.ttl()) {
            return Err(Fault::unsupported(format!(
                "change a lease's time to live; this one has {}",
                registration.ttl()
            )));
        }
        match registration.renew(grant.token).await? {
            Some(token) => Ok(Renewal::Renewed(Renewed {
                token,
                ttl: registration.ttl(),
                valid_for: ensemble::valid_for(registration.ttl()),
                near_deadline: false,
                waiters: 0,
            })),
            None => Ok(Renewal::NotHeld),
        }
    }

    async fn released(&self, grant: GrantRef) -> Result<Released, Fault> {
        if let Some(registration) = self.registrations.get(grant.key.as_bytes())
            && let Some(released) = registration.release(grant.token).await?
        {
            self.registrations.forget(grant.key.as_bytes());
            return Ok(if released {
                Released::Released
            } else {
                Released::NotHeld
            });
        }
        let Some(node) = self.ensemble.find(&grant).await? else {
            self.registrations.forget(grant.key.as_bytes());
            return Ok(Released::NotHeld);
        };
        let released = self.ensemble.delete(&node.path).await?;
        self.registrations.forget(grant.key.as_bytes());
        Ok(if released {
            Released::Released
        } else {
            Released::NotHeld
        })
    }

    /// Deletes the request's nodes through the session that created them. A session's operations are executed
    /// in order, so a create that is still in flight takes effect before the deletion.
    async fn abandoned(&self, request: RequestId) -> Result<(), Fault> {
        match self.registrations.get(request.as_bytes()) {
            Some(registration) => {
                registration.sweep().await?;
                self.registrations.forget(request.as_bytes());
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
        if self.ensemble.delete(&first.path).await? {
            Ok(Revocation::Revoked)
        } else {
            Ok(Revocation::NotHeld)
        }
    }
}

impl LockService for ZooKeeper {
    fn authority(&self) -> &AuthorityId {
        &self.authority
    }

    fn acquire(&self, request: AcquireRequest) -> Operation<'_, Acquired> {
        Box::pin(async move {
            only_exclusive(&request)?;
            queue::acquire(self, request).await
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
        Box::pin(queries::show(self, lock))
    }

    fn list(&self, prefix: &str, after: Option<Cursor>, limit: u32) -> Operation<'_, Page> {
        Box::pin(queries::list(self, prefix.to_owned(), after, limit))
    }

    /// The reason is dropped, because the ensemble cannot store it. The holder learns of the revocation at its next
    /// renewal.
    fn revoke(&self, lock: LockName, token: Token, _reason: &str) -> Operation<'_, Revocation> {
        Box::pin(self.revoked(lock, token))
    }
}
