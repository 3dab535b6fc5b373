//! Quotas count the use by prefixes, principals and addresses, and decide whether there is room for more.
//!
//! ```text
//!   gate ── admit(demand) ─► over quota: which bound, whose, its value; nothing is taken
//!                        └─► Held ── dropped with the answer, the session, the watch ─► given back
//! ```
//!
//! Everything is counted where requests enter, on the network threads. The ordering thread does nothing for it. Without
//! quotas in the access file nothing is counted at all.

mod locks;
mod rate;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use palisade_access::{Access, Bound, Principal, QuotaSubject};
use palisade_core::{LockMode, LockName, Outcome, Span, Wish};
use palisade_proto::Code;

use self::locks::{Acquiring, Bounded, CountedLocks};
pub(super) use self::rate::Rate;
use super::convert::Refusal;
use palisade_pipeline::clock::boottime;
use palisade_pipeline::{Answer, Handle, Request};

/// The current use.
pub(super) struct QuotaUsage {
    handle: Handle,
    uses: Mutex<Uses>,
    /// By bound.
    refused: [AtomicU64; Bound::ALL.len()],
}

#[derive(Default)]
struct Uses {
    of: HashMap<QuotaSubject, Use>,
    locks: CountedLocks,
    /// The last event that was counted; `None` before the locks were first counted.
    seen: Option<u64>,
    /// How many subjects there may be before those without use are forgotten.
    sweep_at: usize,
}

/// The use by one subject.
#[derive(Debug, Default)]
struct Use {
    counts: [u64; COUNTED.len()],
    rate: Rate,
}

/// The use that a request asks for.
#[derive(Debug, Default)]
pub(super) struct Demand {
    /// The lock that it acquires.
    lock: Option<Acquiring>,
    counts: [u64; COUNTED.len()],
    is_request: bool,
}

/// The bounds that are plain counts, in the order of [`Demand::counts`].
const COUNTED: [Bound; 4] = [
    Bound::Waiters,
    Bound::Watchers,
    Bound::Sessions,
    Bound::Bytes,
];

impl Demand {
    /// The use by this request until its answer.
    pub(super) fn of(request: &Request, operation_bytes: usize) -> Demand {
        let operations = match request {
            Request::List { limit, .. } => *limit,
            _ => 1,
        };
        let bytes = (operations.max(1) * operation_bytes) as u64;
        let (lock, waits) = match request {
            Request::Acquire(wish) => (Some(acquiring(wish, &wish.lock)), wish.wait.is_some()),
            _ => (None, false),
        };
        Demand {
            lock,
            counts: [u64::from(waits), 0, 0, bytes],
            is_request: true,
        }
    }

    /// The use by another lock of a set until the answer. The request itself is counted once.
    pub(super) fn of_part(wish: &Wish, lock: &LockName, operation_bytes: usize) -> Demand {
        Demand {
            lock: Some(acquiring(wish, lock)),
            counts: [u64::from(wish.wait.is_some()), 0, 0, operation_bytes as u64],
            is_request: false,
        }
    }

    pub(super) fn session() -> Demand {
        Demand {
            counts: [0, 0, 1, 0],
            ..Demand::default()
        }
    }

    pub(super) fn watch() -> Demand {
        Demand {
            counts: [0, 1, 0, 0],
            is_request: true,
            ..Demand::default()
        }
    }

    /// One request, and nothing that lasts.
    pub(super) fn request() -> Demand {
        Demand {
            is_request: true,
            ..Demand::default()
        }
    }
}

fn acquiring(wish: &Wish, lock: &LockName) -> Acquiring {
    Acquiring {
        lock: lock.clone(),
        shared: match wish.mode {
            LockMode::Shared | LockMode::Update | LockMode::Permits(_) => true,
            // One of the readers becomes the writer.
            LockMode::Exclusive | LockMode::Upgrade => false,
        },
        request: wish.request,
    }
}

/// A request's use. Dropping it returns all of it.
pub(super) struct QuotaUse {
    quotas: Arc<QuotaUsage>,
    subjects: Vec<QuotaSubject>,
    principal: Principal,
    counts: [u64; COUNTED.len()],
    lock: Option<Acquiring>,
    granted: Option<u64>,
    /// Whether nothing of it can come any more.
    is_over: bool,
}

impl QuotaUse {
    /// The answer came.
    pub(super) fn settle(mut self, answer: &Answer) {
        self.is_over = true;
        if let Answer::Outcome(Outcome::Granted(granted)) = answer {
            self.granted = Some(granted.number().get());
        }
    }

    /// The request was refused before it was ordered.
    pub(super) fn release(mut self) {
        self.is_over = true;
    }

    /// The caller is gone, and the pipeline may still grant its request, which counts until the pipeline has passed it.
    fn outlast_caller(&mut self) -> bool {
        let Ok(runtime) = tokio::runtime::Handle::try_current() else {
            return false;
        };
        let held = QuotaUse {
            quotas: Arc::clone(&self.quotas),
            subjects: std::mem::take(&mut self.subjects),
            principal: self.principal.clone(),
            counts: self.counts,
            lock: self.lock.take(),
            granted: None,
            is_over: true,
        };
        let handle = self.quotas.handle.clone();
        runtime.spawn(async move {
            // Its events are there before this answer.
            let _ = handle.call(Request::Status).await;
            drop(held);
        });
        true
    }
}

impl Drop for QuotaUse {
    fn drop(&mut self) {
        if !self.is_over && self.lock.is_some() && self.outlast_caller() {
            return;
        }
        let mut uses = self.quotas.uses();
        for subject in &self.subjects {
            if let Some(one) = uses.of.get_mut(subject) {
                for (count, given_back) in one.counts.iter_mut().zip(self.counts) {
                    *count -= given_back;
                }
            }
        }
        if let Some(lock) = &self.lock {
            self.quotas.catch_up(&mut uses);
            let (of, by) = (&self.subjects, &self.principal);
            uses.locks.came(of, by, lock, self.granted);
        }
    }
}

/// A closed lock that an operator is about to open, and that counts for somebody. No event says that it is open.
pub(super) struct LockOpening {
    quotas: Arc<QuotaUsage>,
    lock: LockName,
    closing: u64,
}

impl LockOpening {
    /// The answer came.
    pub(super) fn settle(self, answer: &Answer) {
        if let Answer::Outcome(Outcome::Done) = answer {
            let mut uses = self.quotas.uses();
            self.quotas.catch_up(&mut uses);
            uses.locks.opened(&self.lock, self.closing);
        }
    }
}

impl QuotaUsage {
    pub(super) fn new(handle: Handle) -> Arc<QuotaUsage> {
        Arc::new(QuotaUsage {
            handle,
            uses: Mutex::default(),
            refused: Default::default(),
        })
    }

    /// `None` unless the lock is closed and counts for somebody.
    pub(super) fn opening(self: &Arc<QuotaUsage>, lock: &LockName) -> Option<LockOpening> {
        let mut uses = self.uses();
        self.catch_up(&mut uses);
        Some(LockOpening {
            quotas: Arc::clone(self),
            lock: lock.clone(),
            closing: uses.locks.closing(lock)?,
        })
    }

    /// How many requests were refused, by bound.
    pub(super) fn refused(&self) -> impl Iterator<Item = (&'static str, u64)> {
        let counts = Bound::ALL.iter().zip(&self.refused);
        counts.map(|(bound, count)| (bound.name(), count.load(Relaxed)))
    }

    /// Reserves a request's use if there is room in every quota that applies; `None` if none applies.
    pub(super) fn admit(
        self: &Arc<QuotaUsage>,
        access: &Access,
        (principal, by, address): (&Principal, palisade_core::Principal, Option<IpAddr>),
        within: Option<&str>,
        demand: Demand,
    ) -> Result<Option<QuotaUse>, Refusal> {
        if !access.has_quotas() {
            return Ok(None);
        }
        let applying = access.quotas(principal, address, within);
        let applying: Vec<_> = applying.collect();
        if applying.is_empty() {
            return Ok(None);
        }
        let now = boottime();
        let bounds_locks =
            |bounds: &palisade_access::QuotaBounds| bounds.get(Bound::Locks).is_some();
        let mut uses = self.uses();
        let lock = demand
            .lock
            .filter(|_| applying.iter().any(|(_, bounds)| bounds_locks(bounds)));
        if lock.is_some() {
            // Known before its grants are seen.
            for (subject, _) in &applying {
                uses.locks.know(by, subject);
            }
            self.catch_up(&mut uses);
            uses.locks.open_due(now);
        }
        for (subject, bounds) in &applying {
            let one = uses.of.get(subject);
            for (at, bound) in COUNTED.into_iter().enumerate() {
                let more = demand.counts[at];
                let used = one.map_or(0, |one| one.counts[at]);
                if let Some(most) = bounds.get(bound)
                    && more > 0
                    && used + more > most
                {
                    return Err(self.over(bound, subject, used, most, None));
                }
            }
            if let (Some(lock), Some(most)) = (&lock, bounds.get(Bound::Locks))
                && uses.locks.with(subject, principal, lock) > most
            {
                return Err(self.over(Bound::Locks, subject, most, most, None));
            }
            if let Some(most) = bounds.get(Bound::Requests)
                && demand.is_request
                && let Err(wait) = one.map_or(Ok(()), |one| one.rate.check(most, now))
            {
                return Err(self.over(Bound::Requests, subject, most, most, Some(wait)));
            }
        }
        uses.sweep(now);
        for (subject, bounds) in &applying {
            let one = uses.of.entry(subject.clone()).or_default();
            for (count, more) in one.counts.iter_mut().zip(demand.counts) {
                *count += more;
            }
            if let Some(most) = bounds.get(Bound::Requests)
                && demand.is_request
            {
                one.rate.take(most, now);
            }
        }
        if let Some(lock) = &lock {
            let counting = applying.iter().map(|(subject, _)| subject);
            uses.locks.come(counting, lock);
        }
        Ok(Some(QuotaUse {
            quotas: Arc::clone(self),
            subjects: applying.into_iter().map(|(subject, _)| subject).collect(),
            principal: principal.clone(),
            counts: demand.counts,
            lock,
            granted: None,
            is_over: false,
        }))
    }

    fn over(
        &self,
        bound: Bound,
        subject: &QuotaSubject,
        used: u64,
        most: u64,
        wait: Option<u64>,
    ) -> Refusal {
        self.refused[bound as usize].fetch_add(1, Relaxed);
        let name = bound.name();
        let message = match wait {
            Some(_) => format!(
                "{subject} had the requests of its quota for this second ({name} = {most}); nothing happened"
            ),
            None => format!(
                "{subject} uses {used} of its quota {name} = {most}, and this does not fit; nothing happened"
            ),
        };
        // Rounded up, so that the retry does not come too early.
        let wait = wait.map(|nanos| Span::from_millis(nanos.div_ceil(1_000_000)));
        Refusal {
            retry_after: wait,
            ..Refusal::new(Code::OverQuota, message)
        }
    }

    /// Counts the events that are not counted yet.
    fn catch_up(&self, uses: &mut Uses) {
        while let Some(seen) = uses.seen {
            let since = self.handle.since(seen);
            if since.latest <= seen {
                return;
            }
            let first = since.batches.first().and_then(|batch| batch.first());
            if first.is_none_or(|first| first.revision > seen + 1) {
                // Events are gone: everything is counted anew.
                uses.seen = None;
                uses.locks.forget_owners();
                return;
            }
            let events = since.batches.iter().flat_map(|batch| batch.iter());
            let new = events.filter(|event| event.revision > seen);
            let (mut last, now) = (seen, boottime());
            for event in new {
                uses.locks.see(event, now);
                last = event.revision;
            }
            uses.seen = Some(last);
        }
    }

    /// Follows the authority's events and counts anew when there are other quotas or when events are gone. Does not end.
    pub(super) async fn follow(&self, access: impl Fn() -> Arc<Access>) {
        let mut news = self.handle.news();
        let mut again = tokio::time::interval(LOOK_AGAIN);
        again.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
        loop {
            let access = access();
            self.count(&access).await;
            tokio::select! {
                // An error means that the pipeline is gone; then there is nothing to count.
                changed = news.changed(), if access.has_quotas() => if changed.is_err() {
                    return std::future::pending().await;
                },
                _ = again.tick() => {}
            }
        }
    }

    /// Counts the new events, or everything if they do not suffice.
    pub(super) async fn count(&self, access: &Access) {
        if !access.has_quotas() {
            return;
        }
        let bounded = Bounded::of(access);
        let counted = {
            let mut uses = self.uses();
            self.catch_up(&mut uses);
            uses.seen.is_some() && uses.locks.is_of(&bounded)
        };
        if !counted {
            self.count_anew(bounded).await;
        }
    }

    /// Lists all grants, and the closed locks of the prefixes. Changes in the meantime come from the events after the first
    /// revision: these are counted last, and counting one twice has no effect.
    async fn count_anew(&self, bounded: Bounded) {
        let from = self.handle.revision();
        let (mut found, mut closed) = (Vec::new(), Vec::new());
        let mut cursor = (!bounded.is_empty()).then_some(0);
        while let Some(at) = cursor {
            let page = Request::Grants { cursor: at };
            let Answer::Grants { grants, next } = self.handle.call(page).await else {
                // This node does not lead; it is tried again.
                return;
            };
            found.extend(grants.into_iter().filter(|held| bounded.concerns(held)));
            cursor = next;
        }
        for prefix in &bounded.prefixes {
            let mut cursor = Some(0);
            while let Some(at) = cursor {
                let page = Request::List {
                    prefix: prefix.clone(),
                    cursor: at,
                    limit: PAGE,
                };
                let Answer::Locks { locks, next } = self.handle.call(page).await else {
                    return;
                };
                closed.extend(
                    locks
                        .into_iter()
                        .filter_map(|view| Some((view.lock, view.delayed?))),
                );
                cursor = next;
            }
        }
        let mut uses = self.uses();
        uses.locks.begin_anew(bounded);
        for held in &found {
            uses.locks.found(held);
        }
        let now = boottime();
        for (lock, delayed) in closed {
            uses.locks.found_closed(&lock, delayed, now);
        }
        uses.seen = Some(from);
        self.catch_up(&mut uses);
    }

    fn uses(&self) -> MutexGuard<'_, Uses> {
        self.uses.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Uses {
    /// Forgets subjects without any use, whenever their number has doubled.
    fn sweep(&mut self, now: u64) {
        if self.of.len() >= self.sweep_at {
            self.of
                .retain(|_, one| one.counts != [0; COUNTED.len()] || !one.rate.is_idle(now));
            self.sweep_at = (2 * self.of.len()).max(SWEEP_AT_LEAST);
        }
    }
}

/// How often new rules are looked at, and a count that failed is tried again.
const LOOK_AGAIN: Duration = Duration::from_secs(1);

/// Locks on a page.
const PAGE: usize = 1_000;

const SWEEP_AT_LEAST: usize = 1_024;
