//! History checking: is there any order of events that explains all answers?
//!
//! ```text
//!   lines ──► events ──► operations ──► per lock: grant lifetimes ──┬─► order            tokens rise
//!   (fields)            (read)          (timeline)                  ├─► overlap          certain holds are disjoint
//!                                                                   └─► linearizability  every answer is explained
//! ```
//!
//! A history contains the observations of clients: when each call was sent, when its answer arrived, and its content. A
//! call without an answer is *unknown*: it took effect at any time after it was sent, or never.
//! `docs/reference/history-format.md` describes the format.
//!
//! Linearizability as in Herlihy and Wing 1990 ("Linearizability: a correctness condition for concurrent objects"); a
//! lost reply is unknown as in Jepsen's Knossos. Fencing tokens make the search unnecessary: they give the order of the
//! grants.

pub mod command;
pub mod event;
mod fields;
pub mod generate;
mod lease;
mod linearizability;
pub mod mutate;
mod order;
mod overlap;
mod read;
pub mod self_test;
mod timeline;
mod violation;

use std::collections::BTreeSet;

pub use event::{Answer, Call, Event, Header};
pub use read::{Away, History, Operation, Unreadable};
pub use violation::{Broken, Violation};

/// The result of checking one history.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Report {
    /// The number of calls.
    pub operations: usize,
    /// Calls without an answer.
    pub unknown: usize,
    /// The number of locks.
    pub locks: usize,
    /// The number of grants seen, of a set at each of its locks.
    pub grants: usize,
    /// Everything that no order explains.
    pub violations: Vec<Violation>,
}

/// Checks a history.
#[must_use]
pub fn check(history: &History) -> Report {
    let mut violations = Vec::new();
    let gathered = timeline::gather(history, &mut violations);
    let clock = lease::Clock {
        header: history.header,
        away: &history.away,
    };
    order::check(&gathered, history.header.tokens, &mut violations);
    overlap::check(&gathered, clock, &mut violations);
    linearizability::check(&gathered, clock, &mut violations);
    let operations = &history.operations;
    let places = gathered.places.iter();
    let locks: BTreeSet<_> = places.clone().map(|(place, _)| place.lock).collect();
    let grants = places.flat_map(|(place, timeline)| {
        let tokens = timeline.lifetimes.keys();
        tokens.map(|token| (place.lock, *token))
    });
    let grants: BTreeSet<_> = grants.collect();
    Report {
        operations: operations.len(),
        unknown: operations
            .iter()
            .filter(|operation| operation.answer.is_none())
            .count(),
        locks: locks.len(),
        grants: grants.len(),
        violations,
    }
}
