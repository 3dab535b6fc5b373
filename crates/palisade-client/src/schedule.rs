//! The schedule of renewals and deadlines: one entry for each lease that is renewed.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use palisade_core::{Ending, GrantRef, Timestamp};
use tokio::sync::Notify;

use crate::error::Loss;
use crate::hold::Hold;

pub(crate) const NEVER: Timestamp = Timestamp::from_nanos(u64::MAX);

/// The grant of one guard.
#[derive(Debug)]
pub(crate) struct KeptGrant {
    /// The grant that requests to the authority name.
    pub(crate) grant: GrantRef,
    /// The deadline until which the holder may act.
    pub(crate) hold: Hold,
    /// How many upgrades of it are under way.
    upgrades: AtomicU32,
    /// How many requests wait for its lock, as far as is known.
    waiters: AtomicU32,
    /// Whether its renewals fail.
    suspended: AtomicBool,
    /// The operator's reason for its revocation.
    reason: OnceLock<Box<str>>,
    /// The two before have changed.
    changed: Notify,
}

impl KeptGrant {
    pub(crate) fn new(grant: GrantRef, hold: Hold) -> KeptGrant {
        KeptGrant {
            grant,
            hold,
            upgrades: AtomicU32::new(0),
            waiters: AtomicU32::new(0),
            suspended: AtomicBool::new(false),
            reason: OnceLock::new(),
            changed: Notify::const_new(),
        }
    }

    pub(crate) fn waiters(&self) -> u32 {
        self.waiters.load(Ordering::Acquire)
    }

    pub(crate) fn set_waiters(&self, waiters: u32) {
        if self.waiters.swap(waiters, Ordering::AcqRel) != waiters {
            self.changed.notify_waiters();
        }
    }

    pub(crate) fn is_suspended(&self) -> bool {
        self.suspended.load(Ordering::Acquire)
    }

    fn suspend(&self, suspended: bool) {
        if self.suspended.load(Ordering::Relaxed) != suspended {
            self.suspended.store(suspended, Ordering::Release);
            self.changed.notify_waiters();
        }
    }

    /// Ends the hold by the authority's word. Returns whether it is over: an upgrade supersedes the grant of its reader, and
    /// the answer to the upgrade, which ends the hold without a loss, may be the later one. Nothing extends the hold meanwhile.
    pub(crate) fn ended(&self, why: Loss, reason: Option<Box<str>>) -> bool {
        if why == Loss::Ended(Ending::Superseded) && self.is_being_upgraded() {
            return false;
        }
        if let Some(reason) = reason {
            // The first reason stays, as that of the hold does.
            let _ = self.reason.set(reason);
        }
        self.hold.lose(why);
        true
    }

    pub(crate) fn reason(&self) -> Option<&str> {
        self.reason.get().map(|reason| &**reason)
    }

    /// Notified when the waiters or the suspension change.
    pub(crate) fn changed(&self) -> &Notify {
        &self.changed
    }

    /// Whether an upgrade of it is under way, or is being given up.
    pub(crate) fn is_being_upgraded(&self) -> bool {
        self.upgrades.load(Ordering::Acquire) > 0
    }
}

/// A reader while an upgrade of it is under way: until the outcome is known, or the request is given up for certain.
#[derive(Debug)]
pub(crate) struct Upgrading(Arc<KeptGrant>);

impl Upgrading {
    pub(crate) fn new(reader: &Arc<KeptGrant>) -> Upgrading {
        reader.upgrades.fetch_add(1, Ordering::AcqRel);
        Upgrading(Arc::clone(reader))
    }
}

impl std::ops::Deref for Upgrading {
    type Target = KeptGrant;

    fn deref(&self) -> &KeptGrant {
        &self.0
    }
}

impl Drop for Upgrading {
    fn drop(&mut self) {
        self.0.upgrades.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A lease that is renewed. A renewal of one of its grants serves all its guards.
#[derive(Debug, Default)]
pub(crate) struct KeptLease {
    /// The next renewal names the first one.
    grants: Mutex<VecDeque<Arc<KeptGrant>>>,
    /// Its position in the schedule; written under the schedule's lock only.
    place: ScheduledAt,
    /// Whether a renewal was sent that has no answer.
    unanswered: AtomicBool,
}

#[derive(Debug, Default)]
struct ScheduledAt {
    due: AtomicU64,
    serial: AtomicU64,
}

/// Orders leases by the instant at which each is due.
#[derive(Debug)]
pub(crate) struct Schedule {
    due: BTreeMap<(Timestamp, u64), Arc<KeptLease>>,
    next_serial: u64,
    /// The instant for which the alarm is set.
    armed: Timestamp,
}

impl Default for Schedule {
    fn default() -> Schedule {
        Schedule {
            due: BTreeMap::new(),
            next_serial: 1,
            armed: NEVER,
        }
    }
}

impl KeptLease {
    fn grants(&self) -> MutexGuard<'_, VecDeque<Arc<KeptGrant>>> {
        self.grants.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn join(&self, kept: &Arc<KeptGrant>) {
        self.grants().push_back(Arc::clone(kept));
    }

    /// Whether a grant is left. It removes lost grants at the ends of the list; [`KeptLease::next`] removes the others.
    fn is_kept(&self) -> bool {
        let (mut grants, lost) = (self.grants(), |kept: &Arc<KeptGrant>| {
            kept.hold.why().is_some()
        });
        while grants.pop_front_if(|kept| lost(kept)).is_some() {}
        while grants.pop_back_if(|kept| lost(kept)).is_some() {}
        !grants.is_empty()
    }

    /// Whether a grant is held that is none of these.
    pub(crate) fn has_others_than(&self, these: impl Fn(&Arc<KeptGrant>) -> bool) -> bool {
        let grants = self.grants();
        grants
            .iter()
            .any(|kept| kept.hold.why().is_none() && !these(kept))
    }

    /// Returns the grant that the next renewal names, each in turn, so that a grant revoked alone is noticed. Announces
    /// grants whose deadline has passed. `None` if no grant is left.
    pub(crate) fn next(&self, now: Timestamp) -> Option<Arc<KeptGrant>> {
        let mut grants = self.grants();
        grants.retain(|kept| kept.hold.holds(now));
        let next = grants.pop_front()?;
        grants.push_back(Arc::clone(&next));
        Some(next)
    }

    /// Records that a renewal is sent. If the one before has no answer yet, renewing fails.
    pub(crate) fn renews(&self) {
        if self.unanswered.swap(true, Ordering::AcqRel) {
            self.suspend();
        }
    }

    /// Records that a renewal failed, while the lease is still believed.
    pub(crate) fn suspend(&self) {
        for kept in &*self.grants() {
            kept.suspend(true);
        }
    }

    /// Records an acknowledged renewal for every grant of the lease.
    pub(crate) fn renewed(&self, now: Timestamp, deadline: Timestamp) {
        self.unanswered.store(false, Ordering::Release);
        for kept in &*self.grants() {
            kept.hold.renewed(now, deadline);
            kept.suspend(false);
        }
    }

    /// Records how many requests wait for all locks of the lease, if it has one only.
    pub(crate) fn wanted(&self, waiters: u32) {
        let grants = self.grants();
        if let (Some(kept), 1) = (grants.front(), grants.len()) {
            kept.set_waiters(waiters);
        }
    }

    /// The grants that hold.
    pub(crate) fn holding(&self) -> Vec<Arc<KeptGrant>> {
        let grants = self.grants();
        let holding = grants.iter().filter(|kept| kept.hold.why().is_none());
        holding.cloned().collect()
    }

    /// Records the authority's report that a grant is over: for all guards of that grant, and no other. Returns whether all
    /// of them are.
    pub(crate) fn lose(&self, grant: &GrantRef, why: Loss) -> bool {
        let mut all = true;
        self.grants().retain(|kept| {
            if kept.grant != *grant {
                return true;
            }
            let over = kept.ended(why, None);
            all &= over;
            !over
        });
        all
    }

    /// Returns the earliest deadline of its grants; `None` if all are lost.
    pub(crate) fn deadline(&self) -> Option<Timestamp> {
        let grants = self.grants();
        grants.iter().filter_map(|kept| kept.hold.deadline()).min()
    }

    fn key(&self) -> (Timestamp, u64) {
        let due = Timestamp::from_nanos(self.place.due.load(Ordering::Relaxed));
        (due, self.place.serial.load(Ordering::Relaxed))
    }
}

impl Schedule {
    /// All leases that are renewed.
    pub(crate) fn leases(&self) -> impl Iterator<Item = &Arc<KeptLease>> {
        self.due.values()
    }

    /// Puts a lease at `due` unless it is scheduled earlier. Otherwise as [`Schedule::put`].
    pub(crate) fn put_by(&mut self, kept: &Arc<KeptLease>, due: Timestamp) -> bool {
        let place = kept.key();
        let stands = self.due.contains_key(&place);
        self.put(kept, if stands { due.min(place.0) } else { due })
    }

    /// Moves a lease to `due`. A lease without grants is removed instead, so that a late answer cannot bring it back.
    /// Returns whether the alarm is set too late for it.
    pub(crate) fn put(&mut self, kept: &Arc<KeptLease>, due: Timestamp) -> bool {
        self.remove(kept);
        if !kept.is_kept() {
            return false;
        }
        if kept.place.serial.load(Ordering::Relaxed) == 0 {
            kept.place.serial.store(self.next_serial, Ordering::Relaxed);
            self.next_serial += 1;
        }
        kept.place.due.store(due.as_nanos(), Ordering::Relaxed);
        self.due.insert(kept.key(), Arc::clone(kept));
        let early = due < self.armed;
        self.armed = self.armed.min(due);
        early
    }

    /// Removes a lease if it has no grant left.
    pub(crate) fn forget(&mut self, kept: &KeptLease) {
        if !kept.is_kept() {
            self.remove(kept);
        }
    }

    /// Removes a lease if it is scheduled.
    fn remove(&mut self, kept: &KeptLease) {
        self.due.remove(&kept.key());
    }

    /// Removes and returns the lease that has been due longest, if any is due.
    pub(crate) fn take_due(&mut self, now: Timestamp) -> Option<Arc<KeptLease>> {
        let first = self.due.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }

    /// Returns the instant for the alarm, given its present one, and records it for [`Schedule::put`]. Ringing too
    /// early costs less than setting the alarm again.
    pub(crate) fn arm(&mut self, already: Timestamp) -> Timestamp {
        let first = self.due.first_key_value().map_or(NEVER, |(key, _)| key.0);
        self.armed = first.min(already);
        self.armed
    }
}

#[cfg(test)]
mod tests {
    use palisade_core::{LeaseKey, LockName};

    use super::*;

    fn grant(lock: &str, deadline: u64) -> Arc<KeptGrant> {
        let grant = GrantRef {
            lock: LockName::new(lock).unwrap(),
            key: LeaseKey::from_bytes([1; 16]),
            token: None,
        };
        let hold = Hold::new(ms(deadline));
        Arc::new(KeptGrant::new(grant, hold))
    }

    fn kept() -> Arc<KeptLease> {
        let kept = Arc::new(KeptLease::default());
        kept.join(&grant("orders", 1_000));
        kept
    }

    const fn ms(millis: u64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    #[test]
    fn the_earliest_is_due_first_and_a_lease_stands_in_one_place() {
        let mut schedule = Schedule::default();
        let (one, other) = (kept(), kept());
        assert!(schedule.put(&one, ms(50)), "nothing was armed");
        assert!(!schedule.put(&other, ms(60)));
        assert!(!schedule.put(&one, ms(70)), "it moves");
        assert_eq!(
            (schedule.arm(NEVER), schedule.arm(ms(55))),
            (ms(60), ms(55))
        );
        assert!(schedule.take_due(ms(59)).is_none());
        assert!(Arc::ptr_eq(&schedule.take_due(ms(60)).unwrap(), &other));
        assert_eq!(schedule.arm(NEVER), ms(70));
    }

    #[test]
    fn what_is_lost_is_not_scheduled_again() {
        let mut schedule = Schedule::default();
        let kept = kept();
        schedule.put(&kept, ms(50));
        for grant in &*kept.grants() {
            grant.hold.lose(Loss::Released);
        }
        schedule.put(&kept, ms(80));
        assert_eq!(schedule.arm(NEVER), NEVER);
    }

    #[test]
    fn a_grant_that_joins_does_not_put_a_renewal_off() {
        let mut schedule = Schedule::default();
        let kept = kept();
        schedule.put_by(&kept, ms(50));
        schedule.put_by(&kept, ms(80));
        assert_eq!(schedule.arm(NEVER), ms(50));
        schedule.put_by(&kept, ms(30));
        assert_eq!(schedule.arm(NEVER), ms(30));
    }

    #[test]
    fn an_upgrade_that_is_told_before_it_is_answered_is_no_loss() {
        let lease = kept();
        let reader = lease.holding().remove(0);
        let superseded = Loss::Ended(Ending::Superseded);
        let upgrading = Upgrading::new(&reader);
        assert!(!lease.lose(&reader.grant, superseded));
        assert!(!reader.ended(superseded, None));
        assert_eq!((reader.hold.why(), lease.holding().len()), (None, 1));
        // An operator's revocation is a loss at any time.
        let revoked = grant("seats", 500);
        let also = Upgrading::new(&revoked);
        assert!(revoked.ended(Loss::Ended(Ending::Revoked), None));
        drop((upgrading, also));
        assert!(
            lease.lose(&reader.grant, superseded),
            "the control: no upgrade is under way"
        );
        assert_eq!(reader.hold.why(), Some(superseded));
    }

    #[test]
    fn grants_are_named_in_turn_and_lost_alone() {
        let (lease, other) = (kept(), grant("seats", 500));
        lease.join(&other);
        let named = |now| lease.next(ms(now)).map(|kept| kept.grant.lock.to_string());
        assert_eq!(
            [named(1), named(2), named(3)].map(Option::unwrap),
            ["orders", "seats", "orders"]
        );
        lease.renewed(ms(3), ms(2_000));
        assert_eq!(
            (other.hold.deadline(), lease.deadline()),
            (Some(ms(2_000)), Some(ms(2_000)))
        );
        assert!(lease.lose(&other.grant, Loss::NotHeld));
        assert_eq!(
            (other.hold.why(), lease.deadline()),
            (Some(Loss::NotHeld), Some(ms(2_000)))
        );
        assert_eq!(
            [named(4), named(5)].map(Option::unwrap),
            ["orders", "orders"]
        );
        assert_eq!((named(2_000), lease.deadline()), (None, None));
    }
}
