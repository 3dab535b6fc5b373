//! Grants: which lease holds which lock, under which token.
//!
//! ```text
//!   lock ──grant_on──► grant ──lease──► lease          lease ──first──► grant ──► grant ──► …   by token
//!        ◄──lock_of───
//! ```
//!
//! An exclusive grant lies inside its lock's record; a shared one has a record of its own ([`share`](super::share)). A
//! [`GrantSlot`] is either, and [`GrantSlot::at`] says which.

use core::fmt;

use super::record::{Contender, Lease};
use super::slab::{LeaseSlot, LockSlot, Number, ShareSlot, SlotLink};
use super::tables::Tables;
use crate::name::ClientId;
use crate::time::WallTime;
use crate::token::Token;

/// Of a grant, wherever its record is.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct GrantSlot(u32);

/// Where a grant's record is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum GrantAt {
    /// In its lock's: it is exclusive.
    Lock(LockSlot),
    /// In one of its own: it is shared.
    Share(ShareSlot),
}

/// Set in the number of a shared grant.
const SHARE: u32 = 1 << 31;

impl GrantSlot {
    #[inline]
    pub(crate) fn of_lock(lock: LockSlot) -> GrantSlot {
        debug_assert!(lock.number() < SHARE, "a lock has the number of a share");
        GrantSlot(lock.number())
    }

    #[inline]
    pub(crate) fn of_share(share: ShareSlot) -> GrantSlot {
        debug_assert!(
            share.number() < SHARE,
            "a share has a number that is too high"
        );
        GrantSlot(share.number() | SHARE)
    }

    #[inline]
    pub(crate) fn at(self) -> GrantAt {
        if self.0 & SHARE == 0 {
            GrantAt::Lock(LockSlot::of(self.0))
        } else {
            GrantAt::Share(ShareSlot::of(self.0 & !SHARE))
        }
    }

    /// Its lock, if it is exclusive.
    #[inline]
    pub(super) fn lock(self) -> Option<LockSlot> {
        match self.at() {
            GrantAt::Lock(lock) => Some(lock),
            GrantAt::Share(_) => None,
        }
    }

    #[inline]
    pub(crate) fn is_share(self) -> bool {
        matches!(self.at(), GrantAt::Share(_))
    }
}

impl ShareSlot {
    /// The grant in this record.
    #[inline]
    pub(crate) fn grant(self) -> GrantSlot {
        GrantSlot::of_share(self)
    }
}

impl Number for GrantSlot {
    #[inline]
    fn of(number: u32) -> GrantSlot {
        GrantSlot(number)
    }

    #[inline]
    fn number(self) -> u32 {
        self.0
    }
}

impl fmt::Debug for GrantSlot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.at().fmt(f)
    }
}

/// The holder of the grant in a lock's record, as large as a slot.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct HeldBy(u32);

/// The same, to be looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum HolderKind {
    /// A lease.
    Lease(LeaseSlot),
    /// Readers, or holders of permits: each has a grant of its own.
    Readers,
    /// Nobody: the lock is between two grants, or is kept for an orphan or a set, or closed.
    Nobody,
}

impl HeldBy {
    pub(super) const NOBODY: HeldBy = HeldBy(u32::MAX);
    pub(super) const READERS: HeldBy = HeldBy(u32::MAX - 1);

    #[inline]
    fn lease(lease: LeaseSlot) -> HeldBy {
        debug_assert!(
            lease.number() < HeldBy::READERS.0,
            "no lease has this number"
        );
        HeldBy(lease.number())
    }

    #[inline]
    pub(super) fn holding(self) -> HolderKind {
        match self {
            HeldBy::NOBODY => HolderKind::Nobody,
            HeldBy::READERS => HolderKind::Readers,
            HeldBy(lease) => HolderKind::Lease(LeaseSlot::of(lease)),
        }
    }

    /// Whether a lease holds it.
    #[inline]
    fn is_lease(self) -> bool {
        self.0 < HeldBy::READERS.0
    }
}

impl fmt::Debug for HeldBy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.holding().fmt(f)
    }
}

/// A lease holds a lock.
///
/// Packed, so that a lock's other fields fit into the space that padding would take.
#[derive(Clone, Copy, Debug)]
#[repr(Rust, packed(4))]
pub(crate) struct Grant {
    token: Token,
    wall: WallTime,
    /// Without a lease, the token of a lock that is kept is not below its last, and that of a shared phase is the phase's.
    by: HeldBy,
    /// The lease's other grants, in token order.
    prev: SlotLink<GrantSlot>,
    next: SlotLink<GrantSlot>,
}

impl Grant {
    /// The grant that a lock stores during a shared phase with this token.
    pub(super) const fn shared(token: Token) -> Grant {
        Grant {
            by: HeldBy::READERS,
            ..Grant::new(token, WallTime(0))
        }
    }

    /// The last reader is gone.
    pub(super) const fn end_phase(&mut self) {
        self.by = HeldBy::NOBODY;
    }

    /// One that is under no lease yet.
    pub(super) const fn new(token: Token, wall: WallTime) -> Grant {
        Grant {
            token,
            wall,
            by: HeldBy::NOBODY,
            prev: SlotLink::NONE,
            next: SlotLink::NONE,
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

    /// The holder.
    #[inline]
    pub(super) fn by(&self) -> HeldBy {
        self.by
    }

    /// The lease of a grant that is under one.
    #[inline]
    pub(crate) fn lease(&self) -> LeaseSlot {
        let by = self.by;
        debug_assert!(by.is_lease(), "a grant is under no lease");
        // Another one is no lease's slot, and the table says so.
        LeaseSlot::of(by.0)
    }
}

impl Tables {
    /// The grant that holds a lock exclusively.
    #[inline]
    pub(crate) fn grant_on(&self, lock: LockSlot) -> GrantSlot {
        GrantSlot::of_lock(lock)
    }

    /// The lock that a grant is for.
    #[inline]
    pub(crate) fn lock_of(&self, grant: GrantSlot) -> LockSlot {
        match grant.at() {
            GrantAt::Share(share) => self.lock_of_share(share),
            GrantAt::Lock(lock) => lock,
        }
    }

    /// A grant; its token is its own number.
    #[inline]
    pub(crate) fn grant(&self, grant: GrantSlot) -> &Grant {
        match grant.at() {
            GrantAt::Share(share) => self.grant_of_share(share),
            GrantAt::Lock(lock) => &self.locks[lock].grant,
        }
    }

    /// The grant in a lock's own record: the writer's, or the one stored there for a shared phase or a kept lock.
    #[inline]
    pub(crate) fn writer(&self, lock: LockSlot) -> &Grant {
        &self.locks[lock].grant
    }

    /// The fencing token that a grant's holder has, and its lease: the grant's number, or the token of its phase.
    #[inline]
    pub(super) fn fencing(&self, grant: GrantSlot) -> (Token, LeaseSlot) {
        match grant.at() {
            GrantAt::Share(share) => (self.fencing_of_share(share), self.grant(grant).lease()),
            GrantAt::Lock(lock) => {
                let writer = self.writer(lock);
                (writer.token, writer.lease())
            }
        }
    }

    #[cfg(test)]
    pub(crate) fn spoil_grant(&mut self, grant: GrantSlot, token: Token, lease: Option<LeaseSlot>) {
        let grant = self.grant_mut(grant);
        grant.token = token;
        grant.by = lease.map_or(HeldBy::NOBODY, HeldBy::lease);
    }

    #[cfg(test)]
    pub(crate) fn spoil_phase(&mut self, lock: LockSlot, token: Token) {
        self.locks[lock].grant.token = token;
    }

    #[inline]
    fn grant_mut(&mut self, grant: GrantSlot) -> &mut Grant {
        match grant.at() {
            GrantAt::Share(share) => self.grant_of_share_mut(share),
            GrantAt::Lock(lock) => &mut self.locks[lock].grant,
        }
    }

    /// The grant of a lock's writer, and its lease. As [`Tables::held`], without the question whether it is shared.
    #[inline]
    pub(super) fn held_by_writer(&self, lock: LockSlot) -> (&Grant, &Lease) {
        let grant = self.writer(lock);
        (grant, &self.leases[grant.lease()])
    }

    /// The lease of a lock's writer; `None` if the lock has none.
    #[inline]
    pub(super) fn lease_of_writer(&self, lock: LockSlot) -> Option<&Lease> {
        let writer = self.writer(lock);
        writer.by().is_lease().then(|| &self.leases[writer.lease()])
    }

    /// A grant and the lease that it is under.
    pub(crate) fn held(&self, grant: GrantSlot) -> (&Grant, &Lease) {
        let grant = self.grant(grant);
        (grant, &self.leases[grant.lease()])
    }

    /// The lease that a grant is under.
    #[inline]
    pub(crate) fn lease_of(&self, grant: GrantSlot) -> &Lease {
        self.held(grant).1
    }

    /// Whether a grant is this client's.
    #[inline]
    pub(super) fn is_of(&self, grant: GrantSlot, client: Contender<'_>) -> bool {
        let holder = &self.clients[self.lease_of(grant).client.slot()];
        holder.id == *client.id && holder.by == client.by
    }

    /// The client that holds by a grant.
    #[inline]
    pub(crate) fn client_of(&self, grant: GrantSlot) -> &ClientId {
        &self.clients[self.lease_of(grant).client.slot()].id
    }

    /// Whether a writer holds this lock.
    #[inline]
    pub(crate) fn is_exclusive(&self, lock: LockSlot) -> bool {
        self.locks[lock].grant.by.is_lease()
    }

    /// Whether nobody holds this lock, and its record is there for an orphan.
    #[inline]
    pub(crate) fn is_kept(&self, lock: LockSlot) -> bool {
        self.locks[lock].grant.by == HeldBy::NOBODY
    }

    /// All exclusive grants with their locks, in no particular order.
    pub(crate) fn exclusives(&self) -> impl Iterator<Item = (LockSlot, &Grant)> {
        let locks = self.locks.iter().map(|(slot, lock)| (slot, &lock.grant));
        locks.filter(|(_, grant)| grant.by().is_lease())
    }

    /// All grants, in no particular order.
    pub(crate) fn grants(&self) -> impl Iterator<Item = (GrantSlot, &Grant)> {
        let exclusives = self.exclusives();
        let exclusives = exclusives.map(|(lock, grant)| (GrantSlot::of_lock(lock), grant));
        let shares = self.shares();
        exclusives.chain(shares.map(|(share, grant)| (share.grant(), grant)))
    }

    /// The locks that are kept for an orphan, each with its last token.
    pub(crate) fn kept_locks(&self) -> impl Iterator<Item = (LockSlot, Token)> {
        let locks = self.locks.iter();
        let kept = locks.filter(|(_, lock)| lock.grant.by() == HeldBy::NOBODY);
        kept.map(|(slot, lock)| (slot, lock.grant.token))
    }

    /// A lease's grants, in token order.
    pub(crate) fn grants_of(&self, lease: LeaseSlot) -> impl Iterator<Item = GrantSlot> {
        let first = self.leases[lease].first.get();
        core::iter::successors(first, |grant| {
            let next = self.grant(*grant).next;
            next.get()
        })
    }

    /// The oldest grant of a lease.
    #[inline]
    pub(super) fn first_grant(&self, lease: LeaseSlot) -> GrantSlot {
        one_of_lease(self.leases[lease].first)
    }

    /// The newest one.
    #[inline]
    pub(super) fn last_grant(&self, lease: LeaseSlot) -> GrantSlot {
        one_of_lease(self.leases[lease].last)
    }

    /// Appends a grant to its lease's. Tokens only grow, so the list is in token order.
    pub(super) fn tie(&mut self, grant: GrantSlot, lease: LeaseSlot) {
        let last = core::mem::replace(&mut self.leases[lease].last, SlotLink::to(grant));
        let tied = self.grant_mut(grant);
        let (before, token) = (tied.by, tied.token);
        assert_eq!(before, HeldBy::NOBODY, "a grant goes under two leases");
        (tied.by, tied.prev, tied.next) = (HeldBy::lease(lease), last, SlotLink::NONE);
        let Some(last) = last.get() else {
            self.leases[lease].first = SlotLink::to(grant);
            return;
        };
        let before = self.grant_mut(last);
        let (next, older) = (before.next, before.token);
        assert!(next.is_none(), "a lease's last grant has one behind it");
        assert!(older <= token, "a lease's grants are not in token order");
        before.next = SlotLink::to(grant);
        if let GrantAt::Share(last) = last.at() {
            self.index_share(last);
        }
    }

    /// Takes a grant from its lease, which ends with its last one.
    pub(crate) fn untie(&mut self, grant: GrantSlot) {
        let untied = self.grant_mut(grant);
        let (lease, prev, next) = (untied.lease(), untied.prev, untied.next);
        (untied.by, untied.prev, untied.next) = (HeldBy::NOBODY, SlotLink::NONE, SlotLink::NONE);
        let linked = match prev.get() {
            None => core::mem::replace(&mut self.leases[lease].first, next),
            Some(prev) => {
                let before = self.grant_mut(prev);
                let linked = before.next;
                before.next = next;
                linked
            }
        };
        assert!(
            linked == grant,
            "a lease's links do not agree: before {grant:?}"
        );
        let linked = match next.get() {
            None => core::mem::replace(&mut self.leases[lease].last, prev),
            Some(next) => {
                let behind = self.grant_mut(next);
                let linked = behind.prev;
                behind.prev = prev;
                linked
            }
        };
        assert!(
            linked == grant,
            "a lease's links do not agree: behind {grant:?}"
        );
        if self.leases[lease].first.is_none() {
            self.close_lease(lease);
        }
    }
}

#[inline]
fn one_of_lease(grant: SlotLink<GrantSlot>) -> GrantSlot {
    match grant.get() {
        Some(grant) => grant,
        None => unreachable!("a lease has no grant"),
    }
}
