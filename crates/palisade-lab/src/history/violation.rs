//! The violations that the checker finds.

use palisade_core::{LockName, Token};
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
}

/// One violation, and where to look.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// The broken promise.
    pub broken: Broken,
    /// The lock.
    pub lock: String,
    /// The tokens involved.
    pub tokens: Vec<u64>,
    /// A description.
    pub what: String,
}

impl Violation {
    pub(super) fn new(
        broken: Broken,
        lock: &LockName,
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
