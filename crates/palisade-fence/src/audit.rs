//! What an operator wants to see: every rejected holder, in the log and in a count.
//!
//! ```text
//!   a backend rejects ──► rejected ──┬─► one tracing event: resource, token, highest, authority, lock
//!                                    └─► Counts, by reason, for the whole process
//! ```
//!
//! A rejected zombie is no error, the fence did its work; it is a warning, because a holder was paused
//! past its lease and believed in it. Where nothing was there to change, it is only information.

use std::sync::atomic::{AtomicU64, Ordering};

use palisade_core::fence::{Pass, Reject};
use palisade_core::{AuthorityId, LockName, Token};

/// Rejections of this process since it began, by [`Reject::code`]; every reason once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Counts(pub [(&'static str, u64); Reject::CODES.len()]);

impl Counts {
    /// How many there were for this reason; `None` if there is no such reason.
    #[must_use]
    pub fn of(&self, code: &str) -> Option<u64> {
        let found = self.0.iter().find(|(reason, _)| *reason == code);
        found.map(|(_, count)| *count)
    }
}

/// What was rejected by all fences of this process.
#[must_use]
pub fn counts() -> Counts {
    let mut counts = Reject::CODES.map(|code| (code, 0));
    for ((_, count), counter) in counts.iter_mut().zip(&REJECTED) {
        *count = counter.load(Ordering::Relaxed);
    }
    Counts(counts)
}

/// Notes a rejection: what every backend calls where it rejects, once. A `pass` of `None` is a write
/// without a token.
pub fn rejected(resource: &str, pass: Option<Pass<'_>>, reject: &Reject) {
    let at = Reject::CODES.iter().position(|code| *code == reject.code());
    if let Some(counter) = at.and_then(|at| REJECTED.get(at)) {
        counter.fetch_add(1, Ordering::Relaxed);
    }
    let (token, highest) = (
        pass.map(|pass| pass.token.get()),
        reject.highest().map(Token::get),
    );
    let authority = pass
        .and_then(|pass| pass.authority)
        .map(AuthorityId::as_str);
    let lock = pass.and_then(|pass| pass.lock).map(LockName::as_str);
    let reason = reject.code();
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
}

static REJECTED: [AtomicU64; Reject::CODES.len()] =
    [const { AtomicU64::new(0) }; Reject::CODES.len()];
