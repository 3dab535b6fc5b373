//! The bare check, lock-free.

use std::sync::atomic::{AtomicU64, Ordering};

use palisade_core::Token;
use palisade_core::fence::{DEFAULT_MAX_JUMP, Reject};

/// The highest token seen, in one atomic word: a check costs a few nanoseconds and never waits.
///
/// It decides as [`Rule::CLAIM`](palisade_core::fence::Rule::CLAIM) does for bare tokens. It does not log or count
/// rejections: call [`audit::rejected`](crate::audit::rejected) with the resource's name. Check and effect are not one
/// step: between [`present`](Ratchet::present) and the effect, a newer holder can claim and write. Use it only if
/// something else already orders the effects (one task that owns the resource, or your own lock); otherwise use
/// [`Guarded`](super::Guarded).
#[derive(Debug)]
pub struct Ratchet {
    /// Zero means no token yet.
    highest: AtomicU64,
    max_jump: u64,
}

impl Ratchet {
    /// Creates a fence that has seen no token, with the default jump bound (rule F10).
    #[must_use]
    pub const fn new() -> Ratchet {
        Ratchet {
            highest: AtomicU64::new(0),
            max_jump: DEFAULT_MAX_JUMP,
        }
    }

    /// Creates a fence with another jump bound; `None` for tokens from verified sequencers.
    #[must_use]
    pub const fn with_max_jump(max_jump: Option<u64>) -> Ratchet {
        let max_jump = match max_jump {
            Some(bound) => bound,
            None => Token::MAX.get(),
        };
        Ratchet {
            highest: AtomicU64::new(0),
            max_jump,
        }
    }

    /// Checks a token and raises the fence to it, for a claim, a read or a write.
    ///
    /// # Errors
    /// The reason of the rejection, [`Reject::Stale`] or [`Reject::Jump`].
    pub fn present(&self, token: Token) -> Result<(), Reject> {
        let mut seen = self.highest.load(Ordering::Acquire);
        while token.get() > seen {
            if token.get() - seen > self.max_jump {
                return Err(Reject::Jump {
                    highest: some_token(seen),
                    bound: self.max_jump,
                });
            }
            let raised = self.highest.compare_exchange_weak(
                seen,
                token.get(),
                Ordering::AcqRel,
                Ordering::Acquire,
            );
            match raised {
                Ok(_) => return Ok(()),
                Err(now) => seen = now,
            }
        }
        match some_token(seen) {
            Some(highest) if token < highest => Err(Reject::Stale {
                presented: token,
                highest,
            }),
            _ => Ok(()),
        }
    }

    /// Returns the highest token seen.
    #[must_use]
    pub fn highest(&self) -> Option<Token> {
        some_token(self.highest.load(Ordering::Acquire))
    }
}

impl Default for Ratchet {
    fn default() -> Ratchet {
        Ratchet::new()
    }
}

fn some_token(number: u64) -> Option<Token> {
    Token::new(number).ok()
}

#[cfg(test)]
mod tests {
    use palisade_core::fence::{FenceState, Op, Pass, Rule, Verdict};
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn decides_as_the_rule_does(
            tokens in prop::collection::vec(1_u64..40, 1..50),
            bound in prop_oneof![Just(None), (1_u64..20).prop_map(Some)],
        ) {
            let rule = Rule { max_jump: bound, ..Rule::CLAIM };
            let (ratchet, mut state) = (Ratchet::with_max_jump(bound), FenceState::default());
            for token in tokens {
                let token = Token::new(token).unwrap();
                let expect = match rule.decide(&state, Pass::new(token), Op::Claim) {
                    Verdict::Admit(next) => {
                        state = next.unwrap_or(state);
                        Ok(())
                    }
                    Verdict::Repeat => Ok(()),
                    Verdict::Reject(reject) => Err(reject),
                };
                prop_assert_eq!(ratchet.present(token), expect);
                prop_assert_eq!(ratchet.highest(), state.highest());
            }
        }
    }

    #[test]
    fn threads_agree_on_the_highest() {
        let ratchet = Ratchet::new();
        std::thread::scope(|scope| {
            for first in 1..=4_u64 {
                let ratchet = &ratchet;
                scope.spawn(move || {
                    let mine = (0..10_000).map(|n| Token::new(first + 4 * n).unwrap());
                    let mut before = None;
                    for token in mine {
                        let verdict = ratchet.present(token);
                        let highest = ratchet.highest();
                        assert!(before <= highest && Some(token) <= highest);
                        assert!(verdict.is_ok() || highest > Some(token));
                        before = highest;
                    }
                });
            }
        });
        assert_eq!(ratchet.highest(), Token::new(40_000).ok());
    }
}
