//! Counts locks for prefixes, principals and addresses.
//!
//! ```text
//!   acquire ─► coming ──────────────────────────── answer ─► no longer coming
//!                         event: granted ─► held ─────────── event: ended ─► not held
//! ```
//!
//! A lock counts while it is held, coming, or closed after its last grant. Readers and holders of permits count one each:
//! each takes as much room as a lock. An answer leaves after its events are in the ring, and the ring is read before an
//! answer is settled and before a bound is looked at. So a lock is never missing between the two, and a bound of a prefix
//! or a principal is exact for everything that this server has granted, whether or not its caller has waited for the
//! answer. Only the answer names the address that a grant belongs to.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use palisade_access::{Access, Principal, QuotaSubject};
use palisade_core::machine::Held;
use palisade_core::{Change, Event, LockName, RequestId, Span};

use crate::net::gate;

/// All counted locks.
#[derive(Debug, Default)]
pub(super) struct CountedLocks {
    /// The prefixes and principals whose locks are counted from events.
    bounded: Bounded,
    /// The principals among them, as events name them, and those with a quota that have asked for something.
    principals: HashMap<palisade_core::Principal, QuotaSubject>,
    counted: HashMap<QuotaSubject, Counted>,
    /// At whose address a grant was made, and by which request. The grants of a set have one number.
    owners: HashMap<(u64, LockName), LockOwner>,
    /// Requests of readers that are granted: a repeat is not a second grant.
    requests: BTreeSet<(Principal, RequestId)>,
    coming: HashMap<LockName, Coming>,
    /// Locks that are closed after their last grant: until when, and the subjects that they count for.
    closed: HashMap<LockName, (u64, Vec<QuotaSubject>)>,
    closings: BTreeSet<(u64, LockName)>,
}

/// The prefixes and the principals with a bound on locks.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Bounded {
    pub(super) prefixes: Vec<Box<str>>,
    principals: BTreeMap<palisade_core::Principal, Principal>,
}

impl Bounded {
    pub(super) fn of(access: &Access) -> Bounded {
        Bounded {
            prefixes: access.prefixes_with_locks().map(Box::from).collect(),
            principals: access
                .principals_with_locks()
                .into_iter()
                .map(|principal| (gate::by(&principal), principal))
                .collect(),
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.prefixes.is_empty() && self.principals.is_empty()
    }

    /// Whether a grant counts for one of them.
    pub(super) fn concerns(&self, held: &Held) -> bool {
        let mut prefixes = self.prefixes.iter();
        self.principals.contains_key(&held.by)
            || prefixes.any(|prefix| held.lock.starts_with(&**prefix))
    }
}

/// The counted locks of one subject.
#[derive(Debug, Default)]
struct Counted {
    locks: HashMap<LockName, Uses>,
    /// Of all of them.
    weight: u64,
}

/// The reasons for which a lock counts.
#[derive(Debug, Default)]
struct Uses {
    /// The numbers of its grants.
    held: BTreeSet<u64>,
    /// Those of readers and holders of permits.
    shared: BTreeSet<u64>,
    /// Acquires without an answer.
    coming: u64,
    /// Those that would share the lock.
    coming_shared: u64,
    closed: bool,
}

impl Uses {
    /// How much it counts: one, or one for each reader.
    fn weight(&self) -> u64 {
        let shared = self.shared.len() as u64 + self.coming_shared;
        let used = !self.held.is_empty() || self.coming > 0 || self.closed;
        shared.max(u64::from(used))
    }
}

#[derive(Debug, Default)]
struct LockOwner {
    subjects: BTreeSet<QuotaSubject>,
    request: Option<(Principal, RequestId)>,
}

/// An acquire that is counted.
#[derive(Clone, Debug)]
pub(super) struct Acquiring {
    pub(super) lock: LockName,
    /// Beside others: as a reader, or with permits.
    pub(super) shared: bool,
    pub(super) request: Option<RequestId>,
}

/// Acquires of one lock that have no answer yet, and which of its grants have ended meanwhile.
#[derive(Debug, Default)]
struct Coming {
    acquires: u32,
    ended: BTreeSet<u64>,
}

impl CountedLocks {
    /// How many locks would count if this one were acquired too.
    pub(super) fn with(
        &self,
        subject: &QuotaSubject,
        by: &Principal,
        acquiring: &Acquiring,
    ) -> u64 {
        let Some(counted) = self.counted.get(subject) else {
            return 1;
        };
        let more = match counted.locks.get(&acquiring.lock) {
            None => 1,
            Some(_) if !acquiring.shared || self.is_repeat(by, acquiring) => 0,
            Some(uses) => {
                let shared = uses.shared.len() as u64 + uses.coming_shared;
                shared + 1 - uses.weight()
            }
        };
        // A new bound may be lower than the current use; it only refuses more.
        if more == 0 { 0 } else { counted.weight + more }
    }

    fn is_repeat(&self, by: &Principal, acquiring: &Acquiring) -> bool {
        let request = acquiring.request;
        request.is_some_and(|request| self.requests.contains(&(by.clone(), request)))
    }

    /// Events name a principal by its hash.
    pub(super) fn know(&mut self, by: palisade_core::Principal, subject: &QuotaSubject) {
        if let QuotaSubject::Principal(_) = subject {
            let known = self.principals.entry(by);
            known.or_insert_with(|| subject.clone());
        }
    }

    pub(super) fn come<'a>(
        &mut self,
        of: impl Iterator<Item = &'a QuotaSubject>,
        acquiring: &Acquiring,
    ) {
        let lock = &acquiring.lock;
        self.coming.entry(lock.clone()).or_default().acquires += 1;
        for subject in of {
            self.change(subject, lock, |uses| {
                uses.coming += 1;
                uses.coming_shared += u64::from(acquiring.shared);
            });
        }
    }

    /// Takes note that an acquire was answered, perhaps with a grant, or that its caller went away.
    pub(super) fn came(
        &mut self,
        of: &[QuotaSubject],
        by: &Principal,
        acquiring: &Acquiring,
        granted: Option<u64>,
    ) {
        let lock = &acquiring.lock;
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
                uses.coming = uses.coming.saturating_sub(1);
                let shared = u64::from(acquiring.shared);
                uses.coming_shared = uses.coming_shared.saturating_sub(shared);
            });
        }
        let Some(number) = granted.filter(|_| !over) else {
            return;
        };
        let addresses = of
            .iter()
            .filter(|it| matches!(it, QuotaSubject::Address(_)));
        let subjects: BTreeSet<QuotaSubject> = addresses.cloned().collect();
        for subject in &subjects {
            self.hold(subject, lock, number, acquiring.shared);
        }
        let request = acquiring.request.filter(|_| acquiring.shared);
        let request = request.map(|request| (by.clone(), request));
        if subjects.is_empty() && request.is_none() {
            return;
        }
        self.requests.extend(request.clone());
        let owner = self.owners.entry((number, lock.clone())).or_default();
        owner.subjects.extend(subjects);
        owner.request = owner.request.take().or(request);
    }

    pub(super) fn is_of(&self, bounded: &Bounded) -> bool {
        self.bounded == *bounded
    }

    /// Forgets the locks held under prefixes and by principals, before they are counted again.
    pub(super) fn begin_anew(&mut self, bounded: Bounded) {
        self.forget(|subject| !matches!(subject, QuotaSubject::Address(_)));
        for (by, principal) in &bounded.principals {
            self.know(*by, &QuotaSubject::Principal(principal.clone()));
        }
        self.bounded = bounded;
    }

    /// A grant that was there before its events were counted.
    pub(super) fn found(&mut self, held: &Held) {
        let mut subjects = self.prefixes_of(&held.lock);
        subjects.extend(self.principals.get(&held.by).cloned());
        for subject in subjects {
            self.hold(&subject, &held.lock, held.number.get(), held.shared);
        }
    }

    /// A lock of these prefixes is closed.
    pub(super) fn found_closed(&mut self, lock: &LockName, for_: Span, now: u64) {
        let subjects = self.prefixes_of(lock);
        self.close(lock, for_, now, subjects);
    }

    fn prefixes_of(&self, lock: &LockName) -> Vec<QuotaSubject> {
        let prefixes = self.bounded.prefixes.iter();
        prefixes
            .filter(|prefix| lock.as_str().starts_with(&***prefix))
            .map(|prefix| QuotaSubject::Prefix(prefix.clone()))
            .collect()
    }

    /// Counts an event; `now` is an instant soon after it.
    pub(super) fn see(&mut self, event: &Event, now: u64) {
        let number = event.shared.map_or(event.token.get(), |id| id.0.get());
        let lock = &event.lock;
        match &event.change {
            Change::Granted { .. } => {
                self.open(lock);
                // A reader has a number of its own, and a holder of permits has slots.
                let shared = event.shared.is_some() || !event.slots.is_empty();
                let mut subjects = self.prefixes_of(lock);
                subjects.extend(self.principals.get(&event.by).cloned());
                for subject in subjects {
                    self.hold(&subject, lock, number, shared);
                }
            }
            Change::Proclaimed => {}
            Change::Opened { .. } => self.open(lock),
            Change::Ended { delayed, .. } => self.ended(event, number, *delayed, now),
        }
    }

    fn ended(&mut self, event: &Event, number: u64, delayed: Option<Span>, now: u64) {
        let lock = &event.lock;
        if let Some(coming) = self.coming.get_mut(lock) {
            coming.ended.insert(number);
        }
        let owner = self.owners.remove(&(number, lock.clone()));
        let owner = owner.unwrap_or_default();
        if let Some(request) = owner.request {
            self.requests.remove(&request);
        }
        let mut subjects = self.prefixes_of(lock);
        subjects.extend(owner.subjects);
        subjects.extend(self.principals.get(&event.by).cloned());
        for subject in &subjects {
            self.change(subject, lock, |uses| {
                uses.held.remove(&number);
                uses.shared.remove(&number);
            });
        }
        if let Some(delayed) = delayed {
            self.close(lock, delayed, now, subjects);
        }
    }

    fn close(&mut self, lock: &LockName, for_: Span, now: u64, subjects: Vec<QuotaSubject>) {
        self.open(lock);
        if subjects.is_empty() {
            return;
        }
        for subject in &subjects {
            self.change(subject, lock, |uses| uses.closed = true);
        }
        let until = now.saturating_add(for_.as_millis().saturating_mul(1_000_000));
        self.closings.insert((until, lock.clone()));
        self.closed.insert(lock.clone(), (until, subjects));
    }

    fn open(&mut self, lock: &LockName) {
        if let Some((until, subjects)) = self.closed.remove(lock) {
            self.closings.remove(&(until, lock.clone()));
            for subject in subjects {
                self.change(&subject, lock, |uses| uses.closed = false);
            }
        }
    }

    /// Until when a lock is closed that counts for somebody.
    pub(super) fn closing(&self, lock: &LockName) -> Option<u64> {
        self.closed.get(lock).map(|(until, _)| *until)
    }

    /// An operator opened a lock that was closed until then. It may have been closed again meanwhile.
    pub(super) fn opened(&mut self, lock: &LockName, closing: u64) {
        if self.closing(lock) == Some(closing) {
            self.open(lock);
        }
    }

    /// Locks whose time is over are closed no more.
    pub(super) fn open_due(&mut self, now: u64) {
        while let Some((_, lock)) = self.closings.first().filter(|(until, _)| *until <= now) {
            let lock = lock.clone();
            self.open(&lock);
        }
    }

    /// Forgets the owners of the grants, because some may have ended in the events that were lost. Closed locks stay:
    /// they end by themselves.
    pub(super) fn forget_owners(&mut self) {
        self.owners.clear();
        self.requests.clear();
        self.forget(|subject| !matches!(subject, QuotaSubject::Prefix(_)));
    }

    fn forget(&mut self, which: impl Fn(&QuotaSubject) -> bool) {
        self.counted.retain(|subject, counted| {
            if which(subject) {
                counted.locks.retain(|_, uses| {
                    uses.held.clear();
                    uses.shared.clear();
                    uses.weight() > 0
                });
                counted.weight = counted.locks.values().map(Uses::weight).sum();
            }
            !counted.locks.is_empty()
        });
    }

    fn hold(&mut self, subject: &QuotaSubject, lock: &LockName, number: u64, shared: bool) {
        self.change(subject, lock, |uses| {
            let numbers = if shared {
                &mut uses.shared
            } else {
                &mut uses.held
            };
            numbers.insert(number);
        });
    }

    fn change(&mut self, subject: &QuotaSubject, lock: &LockName, change: impl FnOnce(&mut Uses)) {
        let counted = self.counted.entry(subject.clone()).or_default();
        let uses = counted.locks.entry(lock.clone()).or_default();
        let before = uses.weight();
        change(uses);
        let after = uses.weight();
        counted.weight = counted.weight - before + after;
        if after == 0 {
            counted.locks.remove(lock);
        }
        if counted.locks.is_empty() {
            self.counted.remove(subject);
        }
    }
}

#[cfg(test)]
mod tests {
    use palisade_core::{
        ClientId, Detail, Ending, LeaseId, Slots, Timestamp, Token, Ttl, WallTime,
    };

    use super::*;

    fn event(token: u64, change: Change) -> Event {
        Event {
            revision: token,
            at: Timestamp::ZERO,
            wall: WallTime::default(),
            token: Token::new(token).unwrap(),
            shared: None,
            slots: Slots::NONE,
            lock: LockName::new("x").unwrap(),
            client: Some(ClientId::new("c").unwrap()),
            by: palisade_core::Principal::ANONYMOUS,
            lease: Some(LeaseId(Token::new(token).unwrap())),
            held: Span::ZERO,
            detail: Detail::default(),
            change,
        }
    }

    /// The control is a lock that is not closed.
    #[test]
    fn a_grant_counts_without_an_answer_and_a_closed_lock_until_its_time_is_over() {
        let rules = "[auth]\n[[auth.principals]]\nname = \"a\"\n[[auth.rules]]\nprincipal = \"a\"\nprefix = \"\"\nverbs = [\"hold\"]\n";
        let by = palisade_access::Access::parse(rules).unwrap();
        let by = by.principal("a").unwrap();
        let subject = QuotaSubject::Principal(by.clone());
        for delayed in [None, Some(Span::from_millis(5))] {
            let mut locks = CountedLocks::default();
            locks.know(palisade_core::Principal::ANONYMOUS, &subject);
            let acquiring = |lock: &str| Acquiring {
                lock: LockName::new(lock).unwrap(),
                shared: false,
                request: None,
            };
            let another = acquiring("y");
            assert_eq!(locks.with(&subject, &by, &another), 1);
            locks.come([&subject].into_iter(), &acquiring("x"));
            let ttl = Ttl::from_millis(10_000).unwrap();
            locks.see(&event(1, Change::Granted { ttl }), 0);
            locks.came(std::slice::from_ref(&subject), &by, &acquiring("x"), None);
            assert_eq!(locks.with(&subject, &by, &another), 2);
            let ended = Change::Ended {
                how: Ending::Released,
                reason: None,
                delayed,
            };
            locks.see(&event(1, ended), 0);
            let closed = u64::from(delayed.is_some());
            locks.open_due(4_999_999);
            assert_eq!(locks.with(&subject, &by, &another), 1 + closed);
            locks.open_due(5_000_000);
            assert_eq!(locks.with(&subject, &by, &another), 1);
        }
    }
}
