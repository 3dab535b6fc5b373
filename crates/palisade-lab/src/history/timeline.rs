//! What a history says about each lock, gathered per grant.
//!
//! ```text
//!            sent            by            seen           reported end
//!   ──────────┼───────────────┼─────────────┼──────────────────┼────────► time
//!             └─ began within ┘   held at some instant         over by then
//! ```
//!
//! Tokens give the order of a lock's grants, so no search is needed: the observations bound each grant's lifetime.

mod observations;
mod wishes;

use std::collections::BTreeMap;
use std::ops::Bound;

use palisade_core::{ClientId, Ending, LockName, Timestamp, Token, Ttl};

use super::event::Tokens;
use super::read::History;
use super::violation::Violation;

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

    /// Whether both are readers of one phase.
    pub(super) fn shares_with(&self, other: &Lifetime<'_>) -> bool {
        self.phase.is_some() && self.phase == other.phase
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
    pub(super) shared: bool,
    /// When it was abandoned, if it was.
    pub(super) abandoned: Option<Timestamp>,
    /// When that was acknowledged: from then on it has no effect.
    pub(super) dead: Option<Timestamp>,
}

/// All observations of one lock.
#[derive(Debug, Default)]
pub(super) struct Timeline<'h> {
    /// By token, which is their order.
    pub(super) lifetimes: BTreeMap<Token, Lifetime<'h>>,
    pub(super) wishes: Vec<Wish<'h>>,
    /// The lock was free at some instant of each of these.
    pub(super) free: Vec<Window>,
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
    pub(super) locks: BTreeMap<&'h LockName, Timeline<'h>>,
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
    for operation in &history.operations {
        gathered.observe(operation, wishes::first_sent(operation, &wishes), found);
    }
    let lifetimes = gathered
        .locks
        .values()
        .flat_map(|lock| lock.lifetimes.keys());
    gathered.tokens = lifetimes.copied().collect();
    gathered.tokens.sort_unstable();
    gathered
}

impl<'h> Gathered<'h> {
    /// The lease of a grant, as far as it was seen.
    pub(super) fn lease(&self, lock: &'h LockName, lease: Token) -> Option<&Lease> {
        self.leases.get(&(self.per_lock.then_some(lock), lease))
    }

    /// Whether one lock may have a token between these two that nobody is known to have.
    pub(super) fn may_hide(&self, lock: &'h LockName, low: Token, high: Token) -> bool {
        let between = high.get().saturating_sub(low.get()).saturating_sub(1);
        let known = match self.per_lock {
            true => self.locks.get(lock).map_or(0, |timeline| {
                let after = (Bound::Excluded(low), Bound::Excluded(high));
                timeline.lifetimes.range(after).count()
            }),
            false => {
                let place = |token| self.tokens.partition_point(|known| *known < token);
                place(high).saturating_sub(place(low) + 1)
            }
        };
        between > known as u64
    }

    fn lease_mut(&mut self, lock: &'h LockName, lease: Token) -> &mut Lease {
        let name = (self.per_lock.then_some(lock), lease);
        self.leases.entry(name).or_default()
    }

    fn lifetime(&mut self, lock: &'h LockName, token: Token) -> Option<&mut Lifetime<'h>> {
        self.locks.get_mut(lock)?.lifetimes.get_mut(&token)
    }
}
