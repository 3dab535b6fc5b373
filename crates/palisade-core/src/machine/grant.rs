//! Grants: which lease holds which lock, under which token.
//!
//! ```text
//!   lock ──grant_on──► grant ──lease──► lease          lease ──first──► grant ──► grant ──► …   by token
//!        ◄──lock_of───
//! ```
//!
//! An exclusive grant lies inside its lock's record and has its slot number; a shared one has a record of its own
//! ([`share`](super::share)). Only [`Tables::grant_on`], [`Tables::lock_of`] and [`Tables::grant`] depend on this.

use super::record::{Contender, Lease};
use super::share::is_share;
use super::slab::{NIL, Slot};
use super::tables::Tables;
use crate::name::ClientId;
use crate::time::WallTime;
use crate::token::Token;

/// A lease holds a lock.
///
/// Packed, so that a lock's other fields fit into the space that padding would take.
#[derive(Clone, Copy, Debug)]
#[repr(Rust, packed(4))]
pub(crate) struct Grant {
    token: Token,
    wall: WallTime,
    /// [`NIL`] between the end of one grant and the next: the lock is kept for an orphan or a set, and the token is not
    /// below its last. [`SHARED`] in a shared phase; the token is the phase's.
    lease: Slot,
    /// The lease's other grants, in token order.
    prev: Slot,
    next: Slot,
}

/// Instead of a lease's slot: the lock has readers.
pub(super) const SHARED: Slot = NIL - 1;

impl Grant {
    /// The grant that a lock stores during a shared phase with this token.
    pub(super) const fn shared(token: Token) -> Grant {
        Grant {
            lease: SHARED,
            ..Grant::new(token, WallTime(0))
        }
    }

    /// The last reader is gone.
    pub(super) const fn end_phase(&mut self) {
        self.lease = NIL;
    }

    /// One that is under no lease yet.
    pub(super) const fn new(token: Token, wall: WallTime) -> Grant {
        Grant {
            token,
            wall,
            lease: NIL,
            prev: NIL,
            next: NIL,
        }
    }

    #[inline]
    pub(crate) const fn token(&self) -> Token {
        self.token
    }

    /// The wall clock at the grant.
    #[inline]
    pub(crate) const fn wall(&self) -> WallTime {
        self.wall
    }

    #[inline]
    pub(crate) const fn lease(&self) -> Slot {
        self.lease
    }
}

impl Tables {
    /// The grant that holds a lock exclusively.
    #[inline]
    pub(crate) fn grant_on(&self, lock: Slot) -> Slot {
        lock
    }

    /// The lock that a grant is for.
    #[inline]
    pub(crate) fn lock_of(&self, grant: Slot) -> Slot {
        if is_share(grant) {
            return self.lock_of_share(grant);
        }
        grant
    }

    /// A grant; its token is its own number.
    #[inline]
    pub(crate) fn grant(&self, grant: Slot) -> &Grant {
        if is_share(grant) {
            return self.grant_of_share(grant);
        }
        &self.locks[grant].grant
    }

    /// The grant in a lock's own record: the writer's, or the one stored there for a shared phase or a kept lock.
    #[inline]
    pub(crate) fn writer(&self, lock: Slot) -> &Grant {
        &self.locks[lock].grant
    }

    /// The fencing token that a grant's holder has, and its lease: the grant's number, or the token of its phase.
    #[inline]
    pub(super) fn fencing(&self, grant: Slot) -> (Token, Slot) {
        if is_share(grant) {
            return (self.fencing_of_share(grant), self.grant(grant).lease);
        }
        let Grant { token, lease, .. } = *self.writer(grant);
        (token, lease)
    }

    #[cfg(test)]
    pub(crate) fn spoil_grant(&mut self, grant: Slot, token: Token, lease: Slot) {
        let grant = self.grant_mut(grant);
        (grant.token, grant.lease) = (token, lease);
    }

    #[cfg(test)]
    pub(crate) fn spoil_phase(&mut self, lock: Slot, token: Token) {
        self.locks[lock].grant.token = token;
    }

    #[inline]
    fn grant_mut(&mut self, grant: Slot) -> &mut Grant {
        if is_share(grant) {
            return self.grant_of_share_mut(grant);
        }
        &mut self.locks[grant].grant
    }

    /// The grant of a lock's writer, and its lease. As [`Tables::held`], without the question whether it is shared.
    #[inline]
    pub(super) fn held_by_writer(&self, lock: Slot) -> (&Grant, &Lease) {
        let grant = self.writer(lock);
        (grant, &self.leases[grant.lease])
    }

    /// The lease of a lock's writer; `None` if the lock has none.
    #[inline]
    pub(super) fn lease_of_writer(&self, lock: Slot) -> Option<&Lease> {
        let lease = self.writer(lock).lease;
        (lease < SHARED).then(|| &self.leases[lease])
    }

    /// A grant and the lease that it is under.
    pub(crate) fn held(&self, grant: Slot) -> (&Grant, &Lease) {
        let grant = self.grant(grant);
        (grant, &self.leases[grant.lease])
    }

    /// The lease that a grant is under.
    #[inline]
    pub(crate) fn lease_of(&self, grant: Slot) -> &Lease {
        self.held(grant).1
    }

    /// Whether a grant is this client's.
    #[inline]
    pub(super) fn is_of(&self, grant: Slot, client: Contender<'_>) -> bool {
        let holder = &self.clients[self.lease_of(grant).client.slot()];
        holder.id == *client.id && holder.by == client.by
    }

    /// The client that holds by a grant.
    #[inline]
    pub(crate) fn client_of(&self, grant: Slot) -> &ClientId {
        &self.clients[self.lease_of(grant).client.slot()].id
    }

    /// Whether a writer holds this lock.
    #[inline]
    pub(crate) fn is_exclusive(&self, lock: Slot) -> bool {
        self.locks[lock].grant.lease < SHARED
    }

    /// Whether nobody holds this lock, and its record is there for an orphan.
    #[inline]
    pub(crate) fn is_kept(&self, lock: Slot) -> bool {
        self.locks[lock].grant.lease == NIL
    }

    /// All exclusive grants, in no particular order.
    pub(crate) fn exclusives(&self) -> impl Iterator<Item = (Slot, &Grant)> {
        let locks = self.locks.iter().map(|(slot, lock)| (slot, &lock.grant));
        locks.filter(|(_, grant)| grant.lease < SHARED)
    }

    /// All grants, in no particular order.
    pub(crate) fn grants(&self) -> impl Iterator<Item = (Slot, &Grant)> {
        self.exclusives().chain(self.shares())
    }

    /// The locks that are kept for an orphan, each with its last token.
    pub(crate) fn kept_locks(&self) -> impl Iterator<Item = (Slot, Token)> {
        let kept = self
            .locks
            .iter()
            .filter(|(_, lock)| lock.grant.lease == NIL);
        kept.map(|(slot, lock)| (slot, lock.grant.token))
    }

    /// A lease's grants, in token order.
    pub(crate) fn grants_of(&self, lease: Slot) -> impl Iterator<Item = Slot> {
        let first = Some(self.leases[lease].first).filter(|grant| *grant != NIL);
        core::iter::successors(first, |grant| {
            Some(self.grant(*grant).next).filter(|next| *next != NIL)
        })
    }

    /// The oldest grant of a lease.
    #[inline]
    pub(super) fn first_grant(&self, lease: Slot) -> Slot {
        self.leases[lease].first
    }

    /// The newest one.
    #[inline]
    pub(super) fn last_grant(&self, lease: Slot) -> Slot {
        self.leases[lease].last
    }

    /// Appends a grant to its lease's. Tokens only grow, so the list is in token order.
    pub(super) fn tie(&mut self, grant: Slot, lease: Slot) {
        let last = core::mem::replace(&mut self.leases[lease].last, grant);
        let tied = self.grant_mut(grant);
        let (before, token) = (tied.lease, tied.token);
        assert_eq!(before, NIL, "a grant goes under two leases");
        (tied.lease, tied.prev, tied.next) = (lease, last, NIL);
        if last == NIL {
            self.leases[lease].first = grant;
            return;
        }
        let before = self.grant_mut(last);
        let (next, older) = (before.next, before.token);
        assert_eq!(next, NIL, "a lease's last grant has one behind it");
        assert!(older <= token, "a lease's grants are not in token order");
        before.next = grant;
        if is_share(last) {
            self.index_share(last);
        }
    }

    /// Takes a grant from its lease, which ends with its last one.
    pub(crate) fn untie(&mut self, grant: Slot) {
        let untied = self.grant_mut(grant);
        let Grant {
            lease, prev, next, ..
        } = *untied;
        (untied.lease, untied.prev, untied.next) = (NIL, NIL, NIL);
        if prev == NIL {
            let first = core::mem::replace(&mut self.leases[lease].first, next);
            assert_eq!(first, grant, "a lease's first grant is another one");
        } else {
            let before = self.grant_mut(prev);
            let linked = before.next;
            assert_eq!(linked, grant, "a lease's links do not agree");
            before.next = next;
        }
        if next == NIL {
            let last = core::mem::replace(&mut self.leases[lease].last, prev);
            assert_eq!(last, grant, "a lease's last grant is another one");
        } else {
            let behind = self.grant_mut(next);
            let linked = behind.prev;
            assert_eq!(linked, grant, "a lease's links do not agree");
            behind.prev = prev;
        }
        if self.leases[lease].first == NIL {
            self.close_lease(lease);
        }
    }
}
