//! The memory that all sessions share for what is in flight.
//!
//! ```text
//!   each session:  its own part, always there │ borrowed from the common budget ◄─► what is left of it
//! ```
//!
//! A session with a few operations in flight lives on its own part and meets nobody. One that has more
//! borrows, and when nothing is left it is not read from until somebody gives back. So however many there
//! are that borrow all they can, a session with little in flight goes on.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Waker};

/// What is left for all sessions together, in bytes.
#[derive(Debug)]
pub(super) struct Budget {
    left: AtomicUsize,
    awaited: AtomicBool,
    waiting: Mutex<Vec<Waker>>,
}

impl Budget {
    pub(super) fn new(bytes: usize) -> Arc<Budget> {
        Arc::new(Budget {
            left: AtomicUsize::new(bytes),
            awaited: AtomicBool::new(false),
            waiting: Mutex::default(),
        })
    }

    #[cfg(test)]
    fn left(&self) -> usize {
        self.left.load(SeqCst)
    }

    fn try_take(&self, bytes: usize) -> bool {
        let taken = self
            .left
            .fetch_update(SeqCst, SeqCst, |left| left.checked_sub(bytes));
        taken.is_ok()
    }

    /// Takes, or wakes the task when it is worth trying again.
    fn take(&self, bytes: usize, cx: &Context<'_>) -> bool {
        if self.try_take(bytes) {
            return true;
        }
        self.lock().push(cx.waker().clone());
        self.awaited.store(true, SeqCst);
        // Something may have been given back before anybody could know that it was waited for.
        self.try_take(bytes)
    }

    fn give(&self, bytes: usize) {
        self.left.fetch_add(bytes, SeqCst);
        if self.awaited.swap(false, SeqCst) {
            std::mem::take(&mut *self.lock())
                .into_iter()
                .for_each(Waker::wake);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Waker>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What one session, or one call, has of the budget. It is given back when this is dropped.
#[derive(Debug)]
pub(super) struct Share {
    budget: Arc<Budget>,
    borrowed: usize,
}

impl Share {
    pub(super) fn new(budget: &Arc<Budget>) -> Share {
        Share {
            budget: Arc::clone(budget),
            borrowed: 0,
        }
    }

    /// So much at once, or nothing.
    pub(super) fn of(budget: &Arc<Budget>, bytes: usize) -> Option<Share> {
        budget.try_take(bytes).then(|| Share {
            budget: Arc::clone(budget),
            borrowed: bytes,
        })
    }

    /// Whether the session may hold so many bytes. If not, its task is woken when something was given back.
    pub(super) fn hold(&mut self, bytes: usize, cx: &Context<'_>) -> bool {
        let Some(more) = bytes
            .saturating_sub(OWN)
            .checked_sub(self.borrowed)
            .filter(|more| *more > 0)
        else {
            return true;
        };
        // In pieces, so that the budget is not met with every frame; as it is needed when that is too much.
        for more in [more.next_multiple_of(PIECE), more] {
            if self.budget.try_take(more) {
                self.borrowed += more;
                return true;
            }
        }
        let taken = self.budget.take(more, cx);
        self.borrowed += if taken { more } else { 0 };
        taken
    }

    /// The session holds so many bytes now: what it does not need goes back.
    pub(super) fn settle(&mut self, bytes: usize) {
        let needed = bytes.saturating_sub(OWN);
        let keep = if needed == 0 { 0 } else { needed + PIECE };
        let spare = self.borrowed.saturating_sub(keep);
        if spare > 0 {
            self.borrowed -= spare;
            self.budget.give(spare);
        }
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if self.borrowed > 0 {
            self.budget.give(self.borrowed);
        }
    }
}

/// What a session may hold without borrowing.
const OWN: usize = 32 << 10;

/// What is borrowed at once.
const PIECE: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_lives_on_its_own_part_and_borrows_and_gives_back_the_rest() {
        let budget = Budget::new(1 << 20);
        let cx = Context::from_waker(Waker::noop());
        let (mut greedy, mut modest) = (Share::new(&budget), Share::new(&budget));
        assert!(greedy.hold(OWN, &cx));
        assert_eq!(budget.left(), 1 << 20);
        assert!(greedy.hold(OWN + (1 << 20), &cx));
        assert_eq!(budget.left(), 0);
        assert!(!greedy.hold(OWN + (1 << 20) + 1, &cx));
        assert!(modest.hold(OWN, &cx) && !modest.hold(OWN + 1, &cx));
        assert!(Share::of(&budget, 1).is_none());
        greedy.settle(OWN + 1);
        assert_eq!(budget.left(), (1 << 20) - PIECE - 1);
        assert!(modest.hold(OWN + 1, &cx));
        drop((greedy, modest));
        assert_eq!(budget.left(), 1 << 20);
    }

    #[test]
    fn who_found_nothing_left_is_woken_when_something_is() {
        struct Count(AtomicUsize);
        impl std::task::Wake for Count {
            fn wake(self: Arc<Count>) {
                self.0.fetch_add(1, SeqCst);
            }
        }
        let budget = Budget::new(100);
        let count = Arc::new(Count(AtomicUsize::new(0)));
        let waker = Waker::from(Arc::clone(&count));
        let first = Share::of(&budget, 100);
        let mut second = Share::new(&budget);
        assert!(!second.hold(OWN + 10, &Context::from_waker(&waker)));
        assert_eq!(count.0.load(SeqCst), 0);
        drop(first);
        assert_eq!(count.0.load(SeqCst), 1);
        assert!(second.hold(OWN + 10, &Context::from_waker(&waker)));
    }
}
