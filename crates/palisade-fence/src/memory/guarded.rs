//! A value under a fence.

use std::sync::{Mutex, MutexGuard, PoisonError};

use palisade_core::fence::{FenceRecord, Op, Pass, Rule, Sequence, Verdict};

use crate::admitted::Admitted;
use crate::audit;
use crate::error::Result;

/// A value that only the newest holder can access.
///
/// Check and effect are one step under the value's own lock (rule F1), which is held while the closure runs.
///
/// ```
/// use palisade_core::Token;
/// use palisade_fence::memory::Guarded;
/// use palisade_fence::Pass;
///
/// let total = Guarded::new(0_u64);
/// let (old, new) = (Pass::new(Token::new(1)?), Pass::new(Token::new(2)?));
/// total.claim(old)?;
/// total.claim(new)?; // the old holder was paused, its lease ran out
/// let late = total.write(old, None, |total| *total += 1);
/// assert!(late.unwrap_err().rejected().is_some());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Guarded<T> {
    rule: Rule,
    inner: Mutex<Inner<T>>,
}

#[derive(Debug)]
struct Inner<T> {
    fence: FenceRecord,
    value: T,
}

impl<T> Guarded<T> {
    /// Puts a value under the claim fence.
    pub const fn new(value: T) -> Guarded<T> {
        Guarded::with_rule(value, Rule::CLAIM)
    }

    /// Puts a value under a fence with this rule.
    pub const fn with_rule(value: T, rule: Rule) -> Guarded<T> {
        let fence = FenceRecord::EMPTY;
        Guarded {
            rule,
            inner: Mutex::new(Inner { fence, value }),
        }
    }

    /// Raises the fence to this token, before the first read (rule F2).
    ///
    /// # Errors
    /// [`Error::Rejected`](crate::Error::Rejected), and no other.
    pub fn claim(&self, pass: Pass<'_>) -> Result<Admitted<()>> {
        self.judge(&mut self.lock().fence, pass, Op::Claim)
    }

    /// Reads in order to write (rule F3).
    ///
    /// # Errors
    /// As [`Guarded::claim`].
    pub fn read<R>(&self, pass: Pass<'_>, f: impl FnOnce(&T) -> R) -> Result<Admitted<R>> {
        let mut inner = self.lock();
        let admitted = self.judge(&mut inner.fence, pass, Op::Read)?;
        Ok(admitted.map(|()| f(&inner.value)))
    }

    /// Changes the value. A repeat of the last sequence number is admitted without running `f`. A closure has no
    /// digest, so a different write under the same number also counts as a repeat.
    ///
    /// # Errors
    /// As [`Guarded::claim`].
    pub fn write(
        &self,
        pass: Pass<'_>,
        sequence: Option<Sequence>,
        f: impl FnOnce(&mut T),
    ) -> Result<Admitted<()>> {
        let mut inner = self.lock();
        let admitted = self.judge(&mut inner.fence, pass, Op::Write(sequence))?;
        if !admitted.repeat {
            f(&mut inner.value);
        }
        Ok(admitted)
    }

    /// Reads without a token, for observers. It proves nothing: a write must not depend on it.
    pub fn observe<R>(&self, f: impl FnOnce(&T) -> R) -> R {
        f(&self.lock().value)
    }

    /// Decides and raises the fence, under the caller's lock.
    fn judge(&self, fence: &mut FenceRecord, pass: Pass<'_>, op: Op) -> Result<Admitted<()>> {
        let repeat = match fence.decide(self.rule, Some(pass), op, None) {
            Verdict::Admit(None) => false,
            Verdict::Admit(Some(next)) => {
                *fence = next;
                false
            }
            Verdict::Repeat => true,
            Verdict::Reject(reject) => {
                return Err(audit::reject(
                    std::any::type_name::<T>(),
                    Some(pass.doing(op.word())),
                    reject,
                ));
            }
        };
        Ok(Admitted {
            value: (),
            highest: fence.state.highest(),
            repeat,
        })
    }

    /// Takes the lock. A closure that panics may leave its change half done; the fence was raised before it ran.
    fn lock(&self) -> MutexGuard<'_, Inner<T>> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use palisade_core::Token;
    use palisade_core::fence::Reject;

    use super::*;

    fn pass(token: u64) -> Pass<'static> {
        Pass::new(Token::new(token).unwrap())
    }

    #[test]
    fn a_late_write_changes_nothing() {
        let value = Guarded::new("old".to_owned());
        value.claim(pass(1)).unwrap();
        assert_eq!(value.read(pass(2), Clone::clone).unwrap().value, "old");
        let late = value.write(pass(1), None, |value| value.push('!'));
        assert_eq!(
            late.unwrap_err().rejected(),
            Some(&Reject::Stale {
                presented: Token::new(1).unwrap(),
                highest: Token::new(2).unwrap()
            })
        );
        assert_eq!(value.observe(String::len), 3);
    }

    #[test]
    fn a_repeat_is_answered_and_not_done_again() {
        let value = Guarded::new(0);
        for repeat in [false, true] {
            let answer = value.write(pass(1), Sequence::new(1), |value| *value += 1);
            assert_eq!(answer.unwrap().repeat, repeat);
        }
        assert_eq!(value.observe(|value| *value), 1);
    }

    #[test]
    fn racing_threads_lose_no_acknowledged_update() {
        let counter = Guarded::new(0_u64);
        let tokens = std::sync::atomic::AtomicU64::new(1);
        let acknowledged: u64 = std::thread::scope(|scope| {
            let racer = || (0..1_000).filter(|_| increments(&counter, &tokens)).count() as u64;
            let racers: Vec<_> = (0..4).map(|_| scope.spawn(racer)).collect();
            racers.into_iter().map(|racer| racer.join().unwrap()).sum()
        });
        assert!(acknowledged > 0);
        assert_eq!(counter.observe(|value| *value), acknowledged);
    }

    /// One holder's turn: claim, read, and a write that depends on the read.
    fn increments(counter: &Guarded<u64>, tokens: &std::sync::atomic::AtomicU64) -> bool {
        let pass = pass(tokens.fetch_add(1, std::sync::atomic::Ordering::Relaxed));
        let Ok(read) = counter.read(pass, |value| *value) else {
            return false;
        };
        std::thread::yield_now();
        counter
            .write(pass, None, |value| *value = read.value + 1)
            .is_ok()
    }
}
