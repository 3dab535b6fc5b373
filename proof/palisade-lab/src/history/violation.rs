//! The violations that the checker finds.

use std::fmt::Display;

use palisade_core::Token;
use serde::Serialize;

/// The broken promise.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Broken {
    /// Two grants have the same token (A2).
    RepeatedToken,
    /// A later grant has a lower token (A2).
    TokenOrder,
    /// A phase's token is not above that of the phase before it (S1, S2).
    PhaseToken,
    /// A token that nobody can have been granted, or with another holder's name.
    UnknownToken,
    /// A renewal got a token other than its grant's (A8).
    TokenChanged,
    /// Two leases certainly held one lock at the same instant (A1).
    Overlap,
    /// The next grant came while the last lease was not over (A1, A8).
    EarlyGrant,
    /// A lease was reported as over before it can have been.
    EarlyEnd,
    /// Something was acknowledged for a grant after its end (A8, A9).
    AfterEnd,
    /// The lock was reported as free, and was not.
    NotFree,
    /// An upgrade was granted to a lease that did not have the lock in mode update until then (S8).
    Upgrade,
    /// A grant of permits has more or fewer slots than it asked for, or one that the semaphore does not have (P2, P4).
    WrongSlots,
    /// Grants of one lock were certainly live at the same instant, and do not agree on the number of its permits (P1).
    PermitCount,
}

/// One violation, and where to look.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// The broken promise.
    pub broken: Broken,
    /// The lock; of a semaphore's slot `LOCK~SLOT`.
    pub lock: String,
    /// The tokens involved.
    pub tokens: Vec<u64>,
    /// A description.
    pub what: String,
}

impl Violation {
    pub(super) fn new(
        broken: Broken,
        lock: impl Display,
        tokens: &[Token],
        what: String,
    ) -> Violation {
        Violation {
            broken,
            lock: lock.to_string(),
            tokens: tokens.iter().map(|token| token.get()).collect(),
            what,
        }
    }
}
