//! What a history tells about each lock, gathered per grant.
//!
//! ```text
//!            sent            by            seen              told over
//!   ──────────┼───────────────┼─────────────┼──────────────────┼────────► time
//!             └─ began within ┘   held at some instant         over at the latest here
//! ```
//!
//! Tokens say in which order the grants of a lock were made, so nothing has to be searched: each
//! grant's life is bounded by what was seen of it.

mod sightings;
mod wishes;

use std::collections::BTreeMap;
use std::ops::Bound;

use palisade_core::{ClientId, Ending, LockName, Timestamp, Token, Ttl};

use super::event::Tokens;
use super::read::History;
use super::violation::Violation;

/// When an operation was under way; it took effect at one instant of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Window {
    pub(super) sent: Timestamp,
    pub(super) back: Timestamp,
}

/// An operation that ends a grant if it arrives in time.
#[derive(Clone, Copy, Debug)]
pub(super) struct End {
    pub(super) sent: Timestamp,
    /// When it was acknowledged to have been the one that did; `None`: it may have been.
    pub(super) back: Option<Timestamp>,
    pub(super) how: Ending,
}

/// Somebody was told that the grant is over.
#[derive(Clone, Copy, Debug)]
pub(super) struct ToldOver {
    pub(super) back: Timestamp,
    pub(super) how: Option<Ending>,
}

/// One grant and all that was seen of it.
#[derive(Clone, Debug)]
pub(super) struct Life<'h> {
    pub(super) token: Token,
    pub(super) client: &'h ClientId,
    pub(super) lease: Token,
    /// Asked for under a lease that was there.
    pub(super) under: bool,
    /// It began after this.
    pub(super) sent: Timestamp,
    /// It had begun by then.
    pub(super) by: Timestamp,
    /// The holder itself had the answer then; `None` if only others told of the grant.
    pub(super) answered: Option<Timestamp>,
    /// Somebody saw it held at one instant of each of these.
    pub(super) seen: Vec<Window>,
    pub(super) ends: Vec<End>,
    pub(super) told_over: Vec<ToldOver>,
}

/// A wish whose outcome nobody was told.
#[derive(Clone, Copy, Debug)]
pub(super) struct Wish<'h> {
    pub(super) client: &'h ClientId,
    pub(super) sent: Timestamp,
    /// Of the lease that would be opened; `None` under one that is there.
    pub(super) ttl: Option<Ttl>,
    pub(super) under: Option<Token>,
    /// When it was given up, if it was.
    pub(super) abandoned: Option<Timestamp>,
    /// That was acknowledged: from then on it has no effect any more.
    pub(super) dead: Option<Timestamp>,
}

/// All that was seen of one lock.
#[derive(Debug, Default)]
pub(super) struct Timeline<'h> {
    /// By token, which is their order.
    pub(super) lives: BTreeMap<Token, Life<'h>>,
    pub(super) wishes: Vec<Wish<'h>>,
    /// Somebody saw it free at one instant of each of these.
    pub(super) free: Vec<Window>,
}

/// A moment from which a lease lasts its full time.
#[derive(Clone, Copy, Debug)]
pub(super) struct Refresh {
    pub(super) sent: Timestamp,
    /// `None`: perhaps.
    pub(super) back: Option<Timestamp>,
    pub(super) ttl: Option<Ttl>,
}

/// What prolongs one lease.
#[derive(Clone, Debug, Default)]
pub(super) struct Lease {
    pub(super) refreshes: Vec<Refresh>,
    /// Its beginning was seen.
    pub(super) begun: bool,
    /// Every time to live it ever had.
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

/// A history, sorted by what it is about.
#[derive(Debug, Default)]
pub(super) struct Gathered<'h> {
    pub(super) locks: BTreeMap<&'h LockName, Timeline<'h>>,
    leases: BTreeMap<LeaseName<'h>, Lease>,
    per_lock: bool,
    /// Every token somebody has, sorted, where they are counted over all locks.
    tokens: Vec<Token>,
}

/// Where tokens are counted per lock, so are leases.
type LeaseName<'h> = (Option<&'h LockName>, Token);

/// Gathers; what cannot even be gathered is a violation already.
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
    let lives = gathered.locks.values().flat_map(|lock| lock.lives.keys());
    gathered.tokens = lives.copied().collect();
    gathered.tokens.sort_unstable();
    gathered
}

impl<'h> Gathered<'h> {
    /// The lease of a grant, as far as it was seen.
    pub(super) fn lease(&self, lock: &'h LockName, lease: Token) -> Option<&Lease> {
        self.leases.get(&(self.per_lock.then_some(lock), lease))
    }

    /// Whether there is a token between these two of one lock that nobody is known to have.
    pub(super) fn may_hide(&self, lock: &'h LockName, low: Token, high: Token) -> bool {
        let between = high.get().saturating_sub(low.get()).saturating_sub(1);
        let known = match self.per_lock {
            true => self.locks.get(lock).map_or(0, |timeline| {
                let after = (Bound::Excluded(low), Bound::Excluded(high));
                timeline.lives.range(after).count()
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

    fn life(&mut self, lock: &'h LockName, token: Token) -> Option<&mut Life<'h>> {
        self.locks.get_mut(lock)?.lives.get_mut(&token)
    }
}
