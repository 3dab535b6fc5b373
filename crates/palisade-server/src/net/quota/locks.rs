//! Which locks count for whom.
//!
//! ```text
//!   acquire ─► coming ──────────────────────────── answer ─► no longer coming
//!                         event: granted ─► held ─────────── event: ended ─► not held
//! ```
//!
//! A lock counts while it is held or coming. An answer leaves after its events are in the ring, and the ring is read
//! before an answer is settled and before a bound is looked at. So a lock is never missing between the two, and a bound
//! of a prefix is exact for everything that this server has granted.

use std::collections::{BTreeSet, HashMap};

use palisade_access::Subject;
use palisade_core::{Change, Event, LockName};

/// All counted locks.
#[derive(Debug, Default)]
pub(super) struct Locks {
    /// The prefixes whose locks are counted from events.
    pub(super) prefixes: Vec<Box<str>>,
    counted: HashMap<Subject, HashMap<LockName, Uses>>,
    /// Whose a grant is, besides its prefixes. The grants of a set have one number.
    owners: HashMap<(u64, LockName), BTreeSet<Subject>>,
    coming: HashMap<LockName, Coming>,
}

/// What makes a lock count.
#[derive(Debug, Default)]
struct Uses {
    /// The numbers of its grants.
    held: BTreeSet<u64>,
    /// Acquires without an answer.
    coming: u32,
}

/// Acquires of one lock that have no answer yet, and which of its grants have ended meanwhile.
#[derive(Debug, Default)]
struct Coming {
    acquires: u32,
    ended: BTreeSet<u64>,
}

impl Locks {
    /// How many locks would count if this one were acquired too.
    pub(super) fn with(&self, subject: &Subject, lock: &LockName) -> u64 {
        let locks = self.counted.get(subject);
        locks.map_or(1, |locks| {
            locks.len() as u64 + u64::from(!locks.contains_key(lock))
        })
    }

    pub(super) fn come<'a>(&mut self, of: impl Iterator<Item = &'a Subject>, lock: &LockName) {
        self.coming.entry(lock.clone()).or_default().acquires += 1;
        for subject in of {
            let locks = self.counted.entry(subject.clone()).or_default();
            locks.entry(lock.clone()).or_default().coming += 1;
        }
    }

    /// An acquire has its answer, perhaps a grant, or its caller is gone.
    pub(super) fn came(&mut self, of: &[Subject], lock: &LockName, granted: Option<u64>) {
        let mut over = false;
        if let Some(coming) = self.coming.get_mut(lock) {
            over = granted.is_some_and(|number| coming.ended.contains(&number));
            coming.acquires -= 1;
            if coming.acquires == 0 {
                self.coming.remove(lock);
            }
        }
        for subject in of {
            self.change(subject, lock, |uses| {
                uses.coming = uses.coming.saturating_sub(1)
            });
            if let Some(number) = granted.filter(|_| !over)
                && !matches!(subject, Subject::Prefix(_))
            {
                self.hold(subject.clone(), lock, number);
                let owned = self.owners.entry((number, lock.clone()));
                owned.or_default().insert(subject.clone());
            }
        }
    }

    /// A lock of these prefixes is held by the grant of this number.
    pub(super) fn found(&mut self, lock: &LockName, number: u64) {
        let prefixes = self.prefixes.iter();
        let prefixes: Vec<Subject> = prefixes
            .filter(|prefix| lock.as_str().starts_with(&***prefix))
            .map(|prefix| Subject::Prefix(prefix.clone()))
            .collect();
        for subject in prefixes {
            self.hold(subject, lock, number);
        }
    }

    pub(super) fn see(&mut self, event: &Event) {
        let number = event.shared.map_or(event.token.get(), |id| id.0.get());
        match &event.change {
            Change::Granted { .. } => self.found(&event.lock, number),
            Change::Proclaimed => {}
            Change::Ended { .. } => self.ended(&event.lock, number),
        }
    }

    fn ended(&mut self, lock: &LockName, number: u64) {
        if let Some(coming) = self.coming.get_mut(lock) {
            coming.ended.insert(number);
        }
        let owners = self.owners.remove(&(number, lock.clone()));
        let owners = owners.unwrap_or_default();
        let prefixes = self.prefixes.iter();
        let prefixes = prefixes
            .filter(|prefix| lock.as_str().starts_with(&***prefix))
            .map(|prefix| Subject::Prefix(prefix.clone()));
        let subjects: Vec<Subject> = prefixes.chain(owners).collect();
        for subject in subjects {
            self.change(&subject, lock, |uses| {
                uses.held.remove(&number);
            });
        }
    }

    /// Forgets what is held of prefixes, before it is counted anew from what the authority lists.
    pub(super) fn forget_prefixes(&mut self) {
        self.forget(|subject| matches!(subject, Subject::Prefix(_)));
    }

    /// Forgets whose the grants are, because events are gone in which some of them may have ended.
    pub(super) fn forget_owners(&mut self) {
        self.owners.clear();
        self.forget(|subject| !matches!(subject, Subject::Prefix(_)));
    }

    fn forget(&mut self, which: impl Fn(&Subject) -> bool) {
        self.counted.retain(|subject, locks| {
            if which(subject) {
                locks.retain(|_, uses| {
                    uses.held.clear();
                    uses.coming > 0
                });
            }
            !locks.is_empty()
        });
    }

    fn hold(&mut self, subject: Subject, lock: &LockName, number: u64) {
        let locks = self.counted.entry(subject).or_default();
        locks.entry(lock.clone()).or_default().held.insert(number);
    }

    fn change(&mut self, subject: &Subject, lock: &LockName, change: impl FnOnce(&mut Uses)) {
        if let Some(locks) = self.counted.get_mut(subject) {
            if let Some(uses) = locks.get_mut(lock) {
                change(uses);
                if uses.held.is_empty() && uses.coming == 0 {
                    locks.remove(lock);
                }
            }
            if locks.is_empty() {
                self.counted.remove(subject);
            }
        }
    }
}
