//! The log and the counts of all rejections (rule F13).
//!
//! ```text
//!   a fence rejects ───────────► rejected ─┬─► one tracing event: resource, token, highest, authority,
//!   refused before it is judged ► refused ─┤                     lock, reason, or the refused request and why
//!                                          ├─► RejectionCounts, by reason, for the whole process
//!                                          └─► the pass's reporter, if it has one and its token is stale
//! ```
//!
//! A rejection is not a fault of the resource: the fence did its work. It is logged as a warning, because a holder was
//! paused past the end of its lease without noticing. [`Reject::Missing`] is logged as information only.

use std::sync::atomic::{AtomicU64, Ordering};

use palisade_core::fence::{Op, Pass, Reject};
use palisade_core::{AuthorityId, Code, LockName, Token};

use crate::error::{Error, Result};

/// Every reason: first [`Reject::CODES`], then the reasons for which a request is refused before a fence judges it.
pub const REASONS: [Code; Reject::CODES.len() + REFUSED.len()] = {
    let mut reasons = [Code::Invalid; Reject::CODES.len() + REFUSED.len()];
    let (rejected, refused) = reasons.split_at_mut(Reject::CODES.len());
    rejected.copy_from_slice(&Reject::CODES);
    refused.copy_from_slice(&REFUSED);
    reasons
};

const REFUSED: [Code; 9] = [
    Code::Invalid,
    Code::NoRoute,
    Code::MethodNotAllowed,
    Code::TooLarge,
    Code::RequestTimeout,
    Code::UnsupportedMediaType,
    Code::Unavailable,
    Code::UnknownOutcome,
    Code::StorageFull,
];

/// Rejections by reason, with one entry for each of [`REASONS`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RejectionCounts(pub [(Code, u64); REASONS.len()]);

impl RejectionCounts {
    /// Returns the number for this reason; `None` if there is no such reason.
    #[must_use]
    pub fn of(&self, code: Code) -> Option<u64> {
        let found = self.0.iter().find(|(reason, _)| *reason == code);
        found.map(|(_, count)| *count)
    }

    /// Returns the total over all reasons.
    #[must_use]
    pub fn all(&self) -> u64 {
        self.0.iter().map(|(_, count)| count).sum()
    }
}

impl Default for RejectionCounts {
    fn default() -> RejectionCounts {
        RejectionCounts(REASONS.map(|reason| (reason, 0)))
    }
}

/// The counters by reason.
#[derive(Debug)]
pub(crate) struct Tally([AtomicU64; REASONS.len()]);

impl Default for Tally {
    fn default() -> Tally {
        Tally::NEW
    }
}

impl Tally {
    #[allow(
        clippy::declare_interior_mutable_const,
        reason = "each use is a new one"
    )]
    const NEW: Tally = Tally([const { AtomicU64::new(0) }; REASONS.len()]);

    pub(crate) fn count(&self, reason: Code) {
        let at = REASONS.iter().position(|known| *known == reason);
        if let Some(counter) = at.and_then(|at| self.0.get(at)) {
            counter.fetch_add(1, Ordering::Relaxed);
        }
    }

    pub(crate) fn read(&self) -> RejectionCounts {
        let mut counts = RejectionCounts::default();
        for ((_, count), counter) in counts.0.iter_mut().zip(&self.0) {
            *count = counter.load(Ordering::Relaxed);
        }
        counts
    }
}

/// Returns the counts of this process: rejections by all its fences, and requests refused before a fence judged them.
#[must_use]
pub fn counts() -> RejectionCounts {
    REJECTED.read()
}

/// Records a rejection, and reports it if it is a late write and the pass has a reporter. Every backend calls this once for
/// each rejection. A `pass` of `None` is a write without a token.
pub fn rejected(resource: &str, pass: Option<Pass<'_>>, reject: &Reject) {
    REJECTED.count(reject.code());
    let (token, highest) = (
        pass.map(|pass| pass.token.get()),
        reject.highest().map(Token::get),
    );
    let authority = pass
        .and_then(|pass| pass.authority)
        .map(AuthorityId::as_str);
    let lock = pass.and_then(|pass| pass.lock).map(LockName::as_str);
    let reason = reject.code().name();
    match reject {
        Reject::Missing => {
            tracing::info!(
                resource, token, highest, authority, lock, reason, "rejected"
            );
        }
        _ => tracing::warn!(
            resource, token, highest, authority, lock, reason, "rejected"
        ),
    }
    if let Some(pass) = pass {
        pass.rejected(resource, reject);
    }
}

/// Reports the rejection of a fence that decides where a pass's reporter cannot go, such as on another thread. It was
/// recorded there.
#[cfg_attr(
    not(any(feature = "files", feature = "memory", feature = "store")),
    allow(dead_code, reason = "the other fences decide where they are called")
)]
pub(crate) fn told<T>(
    resource: &str,
    pass: Option<Pass<'_>>,
    op: Op,
    answer: Result<T>,
) -> Result<T> {
    if let (Some(pass), Err(Error::Rejected(reject))) = (pass, &answer) {
        pass.doing(op.word()).rejected(resource, reject);
    }
    answer
}

/// Records a rejection and returns it as the error.
#[cfg_attr(
    not(feature = "memory"),
    allow(dead_code, reason = "not every fence uses it")
)]
pub(crate) fn reject(resource: &str, pass: Option<Pass<'_>>, reject: Reject) -> Error {
    rejected(resource, pass, &reject);
    Error::Rejected(reject)
}

/// Records a request that was refused before a fence judged it: its address, its resource and token if they are
/// known, one of [`REASONS`], and the message to the caller.
pub fn refused(at: &str, resource: Option<&str>, token: Option<Token>, reason: Code, why: &str) {
    REJECTED.count(reason);
    let (token, reason) = (token.map(Token::get), reason.name());
    tracing::warn!(at, resource, token, reason, why, "refused");
}

static REJECTED: Tally = Tally::NEW;
