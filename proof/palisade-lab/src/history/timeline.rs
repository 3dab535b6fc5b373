//! A history's statements about each lock, collected per grant.
//!
//! ```text
//!            sent            by            seen           reported end
//!   ──────────┼───────────────┼─────────────┼──────────────────┼────────► time
//!             └─ began within ┘   held at some instant         over by then
//! ```
//!
//! Tokens give the order of a lock's grants, so no search is needed: the observations bound each grant's lifetime.
//!
//! A slot of a semaphore is held like a lock of its own, so a grant of several permits is noted at each of its slots, and
//! a grant of several locks at each of them.

mod observations;
mod wishes;

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound;

use palisade_core::{ClientId, Ending, LockMode, LockName, Permits, Slots, Timestamp, Token, Ttl};

use super::event::{Call, Tokens};
use super::read::History;
use super::violation::Violation;

/// A lock, or one slot of a semaphore: the unit that one grant at a time holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Place<'h> {
    pub(super) lock: &'h LockName,
    pub(super) slot: Option<u32>,
}

impl<'h> Place<'h> {
    pub(super) fn of(lock: &'h LockName) -> Place<'h> {
        Place { lock, slot: None }
    }
}

impl fmt::Display for Place<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.slot {
            None => self.lock.fmt(f),
            Some(slot) => write!(f, "{}~{slot}", self.lock),
        }
    }
}

/// The time of an operation; it took effect at one instant in it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    pub(super) sent: Timestamp,
    pub(super) back: Timestamp,
}

/// An operation that ends a grant if it arrives in time.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    pub(super) sent: Timestamp,
    /// When it was acknowledged as the one that ended the grant; `None`: it may have ended it.
    pub(super) back: Option<Timestamp>,
    pub(super) how: Ending,
}

/// A report that the grant is over.
#[derive(Clone, Copy, Debug)]
pub(super) struct ReportedEnd {
    pub(super) back: Timestamp,
    pub(super) how: Option<Ending>,
}

/// One grant and all observations of it.
#[derive(Clone, Debug)]
pub(super) struct Lifetime<'h> {
    pub(super) token: Token,
    /// If it is shared: its fencing token.
    pub(super) phase: Option<Token>,
    /// Whether it is a reader in mode update.
    pub(super) update: bool,
    /// Whether it was asked for as the upgrade of a grant in mode update.
    pub(super) upgrade: bool,
    /// If it holds a slot: the permits that it asked for.
    pub(super) permits: Option<Permits>,
    /// All locks of the request, if it was for several.
    pub(super) set: Vec<&'h LockName>,
    pub(super) client: &'h ClientId,
    pub(super) lease: Token,
    /// Whether it was requested under an existing lease.
    pub(super) under: bool,
    /// It began after this.
    pub(super) sent: Timestamp,
    /// It had begun by then.
    pub(super) by: Timestamp,
    /// When the holder got the answer; `None` if only others reported the grant.
    pub(super) answered: Option<Timestamp>,
    /// It was held at some instant of each of these.
    pub(super) seen: Vec<Window>,
    pub(super) ends: Vec<End>,
    pub(super) reported_ends: Vec<ReportedEnd>,
}

impl Lifetime<'_> {
    /// The token at a fence.
    pub(super) fn fencing(&self) -> Token {
        self.phase.unwrap_or(self.token)
    }

    /// Whether its client's next exclusive grant ends it.
    pub(super) fn is_superseded(&self) -> bool {
        self.phase.is_none() && self.permits.is_none()
    }

    /// Whether both are readers of one phase.
    pub(super) fn shares_with(&self, other: &Lifetime<'_>) -> bool {
        self.phase.is_some() && self.phase == other.phase
    }

    /// Whether both may be live: readers of one phase, at most one of them in mode update (S8).
    pub(super) fn may_be_beside(&self, other: &Lifetime<'_>) -> bool {
        self.shares_with(other) && !(self.update && other.update)
    }

    /// Whether this grant in mode update may have become that writer. A grant that only others saw may be of any lease.
    pub(super) fn may_become(&self, writer: &Lifetime<'_>) -> bool {
        let same_lease = writer.lease == self.lease || writer.answered.is_none();
        self.update && writer.is_superseded() && same_lease && writer.client == self.client
    }
}

/// A wish with an unknown outcome.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish<'h> {
    pub(super) client: &'h ClientId,
    pub(super) sent: Timestamp,
    /// The time to live of the lease that it would open; `None` under an existing lease.
    pub(super) ttl: Option<Ttl>,
    pub(super) under: Option<Token>,
    pub(super) call: &'h Call,
    /// When it was abandoned, if it was.
    pub(super) abandoned: Option<Timestamp>,
    /// When that was acknowledged: from then on it has no effect.
    pub(super) dead: Option<Timestamp>,
}

impl Wish<'_> {
    pub(super) fn is_shared(&self) -> bool {
        self.mode().is_shared()
    }

    /// Whether it asks for the upgrade of a grant of this lease.
    pub(super) fn upgrades(&self, lease: Token) -> bool {
        self.mode() == LockMode::Upgrade && self.under == Some(lease)
    }

    /// Whether it may have put this lease into mode update.
    pub(super) fn may_update(&self, lease: Token) -> bool {
        self.mode() == LockMode::Update && self.under.is_none_or(|under| under == lease)
    }

    pub(super) fn is_for_permits(&self) -> bool {
        matches!(self.mode(), LockMode::Permits(_))
    }

    fn mode(&self) -> LockMode {
        match self.call {
            Call::Acquire { mode, .. } => *mode,
            _ => LockMode::Exclusive,
        }
    }
}

/// All observations of one lock or slot.
#[derive(Debug, Default)]
pub(super) struct Timeline<'h> {
    /// By token, which is their order.
    pub(super) lifetimes: BTreeMap<Token, Lifetime<'h>>,
    pub(super) wishes: Vec<Wish<'h>>,
    /// The lock was free at some instant of each of these.
    pub(super) free: Vec<Window>,
}

impl<'h> Timeline<'h> {
    /// The grant in mode update that became this writer, if it was asked for as an upgrade: the last one of its lease.
    pub(super) fn upgraded_to(&self, writer: &Lifetime<'h>) -> Option<&Lifetime<'h>> {
        let before = self.lifetimes.range(..writer.token).rev();
        let mut readers = before.map(|(_, lifetime)| lifetime);
        let reader = readers.find(|reader| reader.update && reader.lease == writer.lease);
        reader.filter(|_| writer.upgrade)
    }

    /// The grant that a grant in mode update may have become: the first one after its phase.
    pub(super) fn after_phase(&self, reader: &Lifetime<'h>) -> Option<&Lifetime<'h>> {
        let after = (Bound::Excluded(reader.token), Bound::Unbounded);
        let mut after = self.lifetimes.range(after).map(|(_, lifetime)| lifetime);
        after.find(|lifetime| !lifetime.shares_with(reader))
    }
}

/// A moment from which a lease has its full time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refresh {
    pub(super) sent: Timestamp,
    /// `None`: it may not have happened.
    pub(super) back: Option<Timestamp>,
    pub(super) ttl: Option<Ttl>,
}

/// Everything that prolongs one lease.
#[derive(Clone, Debug, Default)]
pub(super) struct Lease {
    pub(super) refreshes: Vec<Refresh>,
    /// Whether its beginning was seen.
    pub(super) begun: bool,
    /// The shortest and the longest time to live that it ever had.
    pub(super) ttls: Option<(Ttl, Ttl)>,
}

impl Lease {
    fn refresh(&mut self, refresh: Refresh) {
        self.refreshes.push(refresh);
        if let Some(ttl) = refresh.ttl {
            let (low, high) = self.ttls.unwrap_or((ttl, ttl));
            self.ttls = Some((low.min(ttl), high.max(ttl)));
        }
    }
}

/// A history, sorted by lock and lease.
#[derive(Debug, Default)]
pub(super) struct Gathered<'h> {
    pub(super) places: BTreeMap<Place<'h>, Timeline<'h>>,
    /// The slots of each grant of permits.
    slots: BTreeMap<(&'h LockName, Token), Slots>,
    leases: BTreeMap<LeaseName<'h>, Lease>,
    per_lock: bool,
    /// All known tokens, sorted, if one counter serves all locks.
    tokens: Vec<Token>,
}

/// If tokens are counted per lock, so are leases.
type LeaseName<'h> = (Option<&'h LockName>, Token);

/// Gathers all observations; contradictions among them are violations.
pub(super) fn gather<'h>(history: &'h History, found: &mut Vec<Violation>) -> Gathered<'h> {
    let mut gathered = Gathered {
        per_lock: history.header.tokens == Tokens::PerLock,
        ..Gathered::default()
    };
    let wishes = wishes::wishes(history);
    for attempts in wishes.values() {
        gathered.unanswered(attempts);
    }
    for attempts in wishes.values() {
        gathered.wish(attempts, found);
    }
    gathered.spread_abandons();
    gathered.see_upgraded();
    for operation in &history.operations {
        gathered.observe(operation, wishes::first_sent(operation, &wishes), found);
    }
    let timelines = gathered.places.values();
    let lifetimes = timelines.flat_map(|timeline| timeline.lifetimes.values());
    // A set that only others saw, at some of its locks, may hold the rest of them unseen.
    let known = lifetimes.filter(|lifetime| lifetime.answered.is_some() || lifetime.set.is_empty());
    gathered.tokens = known.map(|lifetime| lifetime.token).collect();
    gathered.tokens.sort_unstable();
    gathered.tokens.dedup();
    gathered
}

/// The places of a grant: the lock, or its slots.
fn places(lock: &LockName, slots: Slots) -> Vec<Place<'_>> {
    if slots.is_empty() {
        Vec::from([Place::of(lock)])
    } else {
        slots
            .iter()
            .map(|slot| Place {
                lock,
                slot: Some(slot),
            })
            .collect()
    }
}

impl<'h> Gathered<'h> {
    /// The lease of a grant, as far as it was seen.
    pub(super) fn lease(&self, lock: &'h LockName, lease: Token) -> Option<&Lease> {
        self.leases.get(&(self.per_lock.then_some(lock), lease))
    }

    /// Whether a lock may have a token between these two that nobody is known to have.
    pub(super) fn may_hide(&self, place: Place<'h>, low: Token, high: Token) -> bool {
        let between = high.get().saturating_sub(low.get()).saturating_sub(1);
        let known = if self.per_lock {
            self.places.get(&place).map_or(0, |timeline| {
                let after = (Bound::Excluded(low), Bound::Excluded(high));
                timeline.lifetimes.range(after).count()
            })
        } else {
            let place = |token| self.tokens.partition_point(|known| *known < token);
            place(high).saturating_sub(place(low) + 1)
        };
        between > known as u64
    }

    fn lease_mut(&mut self, lock: &'h LockName, lease: Token) -> &mut Lease {
        let name = (self.per_lock.then_some(lock), lease);
        self.leases.entry(name).or_default()
    }

    fn lifetime(&mut self, place: Place<'h>, token: Token) -> Option<&mut Lifetime<'h>> {
        self.places.get_mut(&place)?.lifetimes.get_mut(&token)
    }

    /// The lock itself and its slots.
    fn of_lock_mut(&mut self, lock: &'h LockName) -> impl Iterator<Item = &mut Timeline<'h>> {
        let last = Place {
            lock,
            slot: Some(u32::MAX),
        };
        let all = self.places.range_mut(Place::of(lock)..=last);
        all.map(|(_, timeline)| timeline)
    }

    /// The units that a grant of a lock holds: the lock, or slots.
    fn held_by(&self, lock: &'h LockName, token: Token) -> Vec<Place<'h>> {
        match self.slots.get(&(lock, token)) {
            None => Vec::from([Place::of(lock)]),
            Some(slots) => places(lock, *slots),
        }
    }
}
