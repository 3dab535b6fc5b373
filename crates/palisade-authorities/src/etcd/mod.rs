//! An etcd cluster as the authority.
//!
//! ```text
//!   request id ─► lease (its id is part of the request id) ─► one queue key under that lease:
//!
//!      <root> <lock> NUL <request id, hex>   →   client id, metadata      create revision = token
//!
//!   The key with the lowest create revision holds. Every other one watches only its predecessor, and
//!   reads the queue and its own key again before it believes that it is first.
//! ```
//!
//! # Guarantees
//!
//! * At most one holder: the lowest create revision under the lock. Waiting is FIFO, and one release
//!   wakes one waiter.
//! * The token is the **create revision** of the holder's key: etcd's own count of writes, which only grows,
//!   over all locks and clients. Grants of one lock come in the order of their tokens. Across locks a token
//!   says when the request joined its queue, not when it was granted.
//! * Release and renewal compare key *and* revision in one transaction. Every step can be repeated, because
//!   the request id determines the names of the key and the lease.
//! * A waiter whose lease has ended never gets the lock: it reads its own key again in the transaction that finds no
//!   predecessor. (`Lock` of etcd 3.4 itself does not, etcd-io/etcd#11456.)
//!
//! # Limitations
//!
//! * Leases are in whole seconds, and the cluster has a shortest one (⌈1.5 × election time-out⌉, 2 s by
//!   default). It silently lengthens shorter ones. A time to live that the cluster would not grant exactly is
//!   an error.
//! * A client id is only a label. A client waits for its own former lease like any other client.
//! * The authority does not remember how a grant ended: a repeated release is answered with "not held".
//! * **A restored cluster goes back to old tokens.** `etcdctl snapshot restore` with the same member
//!   names and token also keeps the cluster id, so a fence cannot tell. Restore with a new
//!   `--initial-cluster-token`: the cluster id changes, this authority's id with it, and fences refuse
//!   the new tokens until an operator re-arms them. Or raise the revision first (`--bump-revision`,
//!   etcd 3.6).
//! * **A cluster that is never compacted gets slow.** Its index keeps deleted keys, and each query of a queue
//!   passes over all keys that the lock ever had: 180 grants a second of one lock became 40 after 26,000.
//!   etcd's own lock keeps its keys in the same way. Start the members with
//!   `--auto-compaction-mode=periodic --auto-compaction-retention=5m`; compaction is off by default.
//! * The lease of a waiter's grant counts from the waiter's last keep-alive, which was up to a third of the
//!   lease's time ago. A keep-alive with each grant would make every hand-over slower.
//! * It does not support several locks under one lease, events, or a renewal that changes the time to live.

mod address;
mod fault;
mod keys;
mod queries;
mod queue;
mod wire;

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use palisade_core::{AuthorityId, GrantRef, LockName, LockView, Renewed, RequestId, Token, Ttl};

use crate::exclusive::only_exclusive;
use palisade_client::Fault;
use palisade_client::service::{
    AcquireRequest, Acquired, Cursor, LockService, Operation, Page, Released, Renewal, Revocation,
};
use queue::Ticket;
use wire::{Alive, Wire};

/// A connection to an etcd cluster.
pub struct Etcd {
    authority: AuthorityId,
    wire: Wire,
    /// The prefix of the keys of all locks.
    root: Arc<str>,
    wake_ups: AtomicU64,
}

impl Etcd {
    /// Connects to the cluster at `url`: `etcd://host[:port][,host[:port]…][/root]`. The default port is
    /// 2379, and the default root of all keys is `palisade`. Locks under two roots are independent, and a
    /// fence sees them as two authorities.
    ///
    /// # Errors
    /// [`Fault::Invalid`] for an invalid address, [`Fault::Unreachable`] if nothing answers there.
    pub async fn connect(url: &str) -> Result<Etcd, Fault> {
        let address = address::Address::parse(url)?;
        let (wire, cluster) = Wire::connect(&address.hosts).await?;
        let root = address.root;
        let authority = AuthorityId::new(&format!("etcd:{cluster:016x}:{root}"))?;
        Ok(Etcd {
            authority,
            wire,
            root: root.into(),
            wake_ups: AtomicU64::new(0),
        })
    }

    /// Returns how often a waiting request of this connection was woken because its predecessor had left.
    #[must_use]
    pub fn wake_ups(&self) -> u64 {
        self.wake_ups.load(Ordering::Relaxed)
    }

    async fn renewed(&self, grant: GrantRef, ttl: Option<Ttl>) -> Result<Renewal, Fault> {
        let ticket = Ticket::of_grant(&self.root, &grant);
        // The key proves the grant and the lease keeps it; neither alone is enough.
        let (position, alive) = tokio::join!(
            ticket.look(&self.wire, grant.token),
            self.wire.keep_alive(ticket.lease)
        );
        let (Some(position), Alive::For(granted)) = (position?, alive?) else {
            return Ok(Renewal::NotHeld);
        };
        if ttl.is_some_and(|asked| asked != granted) {
            return Err(Fault::unsupported(format!(
                "change a lease's time to live; this one has {granted}"
            )));
        }
        Ok(Renewal::Renewed(Renewed {
            token: position.token,
            ttl: granted,
            valid_for: granted.span(),
            near_deadline: false,
            waiters: 0,
        }))
    }

    async fn released(&self, grant: GrantRef) -> Result<Released, Fault> {
        let ticket = Ticket::of_grant(&self.root, &grant);
        let deleted = ticket.leave(&self.wire, grant.token).await?;
        if deleted {
            // Nothing depends on the lease any more; if the revocation fails, it expires.
            let _ = self.wire.revoke(ticket.lease).await;
        }
        Ok(if deleted {
            Released::Released
        } else {
            Released::NotHeld
        })
    }

    async fn revoked(&self, lock: LockName, token: Token) -> Result<Revocation, Fault> {
        let Some(holder) = self.wire.first(&self.root, &lock).await? else {
            return Ok(Revocation::NotHeld);
        };
        let highest = queue::token(&holder)?;
        if highest != token {
            return Ok(Revocation::Stale { highest });
        }
        if self.wire.delete_as(&holder.key, Some(token)).await? {
            Ok(Revocation::Revoked)
        } else {
            Ok(Revocation::NotHeld)
        }
    }
}

impl LockService for Etcd {
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

    /// Revokes the request's lease, which deletes its key. A put that is still in flight then fails.
    fn abandon(&self, request: RequestId) -> Operation<'_, ()> {
        Box::pin(self.wire.revoke(keys::lease_id(request.as_bytes())))
    }

    fn show(&self, lock: LockName) -> Operation<'_, LockView> {
        Box::pin(queries::show(self, lock))
    }

    fn list(&self, prefix: &str, after: Option<Cursor>, limit: u32) -> Operation<'_, Page> {
        Box::pin(queries::list(self, prefix.to_owned(), after, limit))
    }

    /// The reason is dropped, because etcd cannot store it. The holder learns of the revocation at its next renewal.
    fn revoke(&self, lock: LockName, token: Token, _reason: &str) -> Operation<'_, Revocation> {
        Box::pin(self.revoked(lock, token))
    }
}
