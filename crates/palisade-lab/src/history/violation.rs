//! What a checker found.

use palisade_core::{LockName, Token};
use serde::Serialize;

/// Which promise was broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Broken {
    /// Two grants have one token (A2).
    RepeatedToken,
    /// A later grant has a lower token (A2).
    TokenOrder,
    /// A token is named that nobody can have been granted, or under another holder's name.
    UnknownToken,
    /// A renewal answered with another token than the grant has (A8).
    TokenChanged,
    /// Two leases surely held one lock at one instant (A1).
    Overlap,
    /// Granted to the next while the last lease's time was not over (A1, A8).
    EarlyGrant,
    /// A lease was said to be over before it can have been.
    EarlyEnd,
    /// Something was acknowledged under a grant after its end (A8, A9).
    AfterEnd,
    /// The lock was said to be free, and was not.
    NotFree,
}

/// One violation, with where to look.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Violation {
    /// Which promise.
    pub broken: Broken,
    /// At which lock.
    pub lock: String,
    /// The tokens concerned.
    pub tokens: Vec<u64>,
    /// What happened, in words.
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
