//! What is due when: one entry for each grant that is kept.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use palisade_core::{GrantRef, Timestamp};

use crate::hold::Hold;
use crate::keeper::NEVER;

/// A grant that is kept alive.
#[derive(Debug)]
pub(crate) struct Kept {
    /// What the authority is told about.
    pub(crate) grant: GrantRef,
    /// Until when the holder may act.
    pub(crate) hold: Hold,
    /// Where it stands in the schedule; written under the schedule's lock only.
    place: Place,
}

#[derive(Debug, Default)]
struct Place {
    due: AtomicU64,
    serial: AtomicU64,
}

/// Orders grants by what is due next.
#[derive(Debug)]
pub(crate) struct Schedule {
    due: BTreeMap<(Timestamp, u64), Arc<Kept>>,
    next_serial: u64,
    /// What the alarm is set for.
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

impl Kept {
    pub(crate) fn new(grant: GrantRef, hold: Hold) -> Kept {
        Kept {
            grant,
            hold,
            place: Place::default(),
        }
    }

    fn key(&self) -> (Timestamp, u64) {
        let due = Timestamp::from_nanos(self.place.due.load(Ordering::Relaxed));
        (due, self.place.serial.load(Ordering::Relaxed))
    }
}

impl Schedule {
    /// Puts a grant at `due`, from wherever it stood. A grant that is lost leaves instead, so a late
    /// answer cannot bring it back. Says whether the alarm is set too late for it.
    pub(crate) fn put(&mut self, kept: &Arc<Kept>, due: Timestamp) -> bool {
        self.remove(kept);
        if kept.hold.why().is_some() {
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

    /// Takes a grant out, if it is in.
    pub(crate) fn remove(&mut self, kept: &Kept) {
        self.due.remove(&kept.key());
    }

    /// The grant that has been due longest, if any is due.
    pub(crate) fn take_due(&mut self, now: Timestamp) -> Option<Arc<Kept>> {
        let first = self.due.first_entry()?;
        (first.key().0 <= now).then(|| first.remove())
    }

    /// What the alarm must be set for, given what it is set for already; remembered so that
    /// [`Schedule::put`] can tell. An alarm that rings too early costs less than setting it anew.
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
    use crate::error::Loss;

    fn kept() -> Arc<Kept> {
        let lock = LockName::new("orders").unwrap();
        let grant = GrantRef {
            lock,
            key: LeaseKey::from_bytes([1; 16]),
            token: None,
        };
        Arc::new(Kept::new(grant, Hold::new(ms(1_000))))
    }

    const fn ms(millis: u64) -> Timestamp {
        Timestamp::from_millis(millis)
    }

    #[test]
    fn the_earliest_is_due_first_and_a_grant_stands_in_one_place() {
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
        kept.hold.lose(Loss::Released);
        schedule.put(&kept, ms(80));
        assert_eq!(schedule.arm(NEVER), NEVER);
    }
}
