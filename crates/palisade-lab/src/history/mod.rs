//! History checking: is there any order in which what was answered can have happened?
//!
//! ```text
//!   lines ──► events ──► operations ──► per lock: lives of grants ──┬─► order     tokens rise
//!   (fields)            (read)          (timeline)                  ├─► overlap   sure holds are apart
//!                                                                   └─► lives     every answer explained
//! ```
//!
//! A history is what clients saw: when each call was sent, when its answer came, what it said. A call
//! without an answer is *unknown*: it took effect at any time after it was sent, or never. The format
//! is described in `docs/history-format.md`.
//!
//! Linearizability as in Herlihy and Wing 1990 ("Linearizability: a correctness condition for
//! concurrent objects"); a lost reply is unknown as in Jepsen's Knossos. What makes the search
//! unnecessary is the fencing token, which tells the order of the grants.

pub mod command;
pub mod event;
mod fields;
pub mod generate;
mod lease;
mod lives;
pub mod mutate;
mod order;
mod overlap;
mod read;
pub mod self_test;
mod timeline;
mod violation;

pub use event::{Answer, Call, Event, Header};
pub use read::{Away, History, Operation, Unreadable};
pub use violation::{Broken, Violation};

/// What a check of one history says.
#[derive(Clone, Debug, Default, PartialEq, Eq, serde::Serialize)]
pub struct Report {
    /// Calls looked at.
    pub operations: usize,
    /// Calls whose answer never came.
    pub unknown: usize,
    /// Locks they were about.
    pub locks: usize,
    /// Grants that were seen.
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
    lives::check(&gathered, clock, &mut violations);
    let operations = &history.operations;
    Report {
        operations: operations.len(),
        unknown: operations
            .iter()
            .filter(|operation| operation.answer.is_none())
            .count(),
        locks: gathered.locks.len(),
        grants: gathered.locks.values().map(|lock| lock.lives.len()).sum(),
        violations,
    }
}
