//! The memory that all sessions share for operations in flight.
//!
//! ```text
//!   each session:  its own part, always available │ borrowed from the shared budget ◄─► the rest of it
//! ```
//!
//! A session with a few operations in flight uses only its own part and contends with nobody. A session with more
//! borrows; if nothing is left, the server stops reading from it until another session gives memory back. So however
//! many sessions borrow all they can, a session with little in flight continues.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Waker};

/// The most bytes of an operation in flight, as a request, in the pipeline and as a reply: two names, a text, and the
/// records around them. A lock in a page takes as much.
pub(super) const OPERATION_BYTES: usize = 1 << 10;

/// The bytes left for all sessions together.
#[derive(Debug)]
pub(super) struct SessionBudget {
    left: AtomicUsize,
    awaited: AtomicBool,
    waiting: Mutex<Vec<Waker>>,
}

impl SessionBudget {
    pub(super) fn new(bytes: usize) -> Arc<SessionBudget> {
        Arc::new(SessionBudget {
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

    /// Takes bytes; otherwise the task is woken when another try may succeed.
    fn take(&self, bytes: usize, cx: &Context<'_>) -> bool {
        if self.try_take(bytes) {
            return true;
        }
        self.lock().push(cx.waker().clone());
        self.awaited.store(true, SeqCst);
        // Another session may have given bytes back before this task was registered.
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

/// The share of one session or call. Dropping it gives the bytes back.
#[derive(Debug)]
pub(super) struct BudgetShare {
    budget: Arc<SessionBudget>,
    borrowed: usize,
}

impl BudgetShare {
    pub(super) fn new(budget: &Arc<SessionBudget>) -> BudgetShare {
        BudgetShare {
            budget: Arc::clone(budget),
            borrowed: 0,
        }
    }

    /// A share of this many bytes, or none.
    pub(super) fn of(budget: &Arc<SessionBudget>, bytes: usize) -> Option<BudgetShare> {
        budget.try_take(bytes).then(|| BudgetShare {
            budget: Arc::clone(budget),
            borrowed: bytes,
        })
    }

    /// Whether the session may hold this many bytes. If not, its task is woken when bytes are given back.
    pub(super) fn hold(&mut self, bytes: usize, cx: &Context<'_>) -> bool {
        let Some(more) = bytes
            .saturating_sub(OWN_BYTES)
            .checked_sub(self.borrowed)
            .filter(|more| *more > 0)
        else {
            return true;
        };
        // Borrows in pieces, so that few frames use the shared budget. If a piece is too large, borrows the exact
        // amount.
        for more in [more.next_multiple_of(BORROW_UNIT), more] {
            if self.budget.try_take(more) {
                self.borrowed += more;
                return true;
            }
        }
        let taken = self.budget.take(more, cx);
        self.borrowed += if taken { more } else { 0 };
        taken
    }

    /// The session now holds this many bytes: gives back the rest.
    pub(super) fn settle(&mut self, bytes: usize) {
        let needed = bytes.saturating_sub(OWN_BYTES);
        let keep = if needed == 0 { 0 } else { needed + BORROW_UNIT };
        let spare = self.borrowed.saturating_sub(keep);
        if spare > 0 {
            self.borrowed -= spare;
            self.budget.give(spare);
        }
    }
}

impl Drop for BudgetShare {
    fn drop(&mut self) {
        if self.borrowed > 0 {
            self.budget.give(self.borrowed);
        }
    }
}

/// The bytes that a session may hold without borrowing.
const OWN_BYTES: usize = 32 << 10;

/// The unit of borrowing.
const BORROW_UNIT: usize = 64 << 10;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_uses_its_own_part_first_and_gives_back_what_it_borrowed() {
        let budget = SessionBudget::new(1 << 20);
        let cx = Context::from_waker(Waker::noop());
        let (mut greedy, mut modest) = (BudgetShare::new(&budget), BudgetShare::new(&budget));
        assert!(greedy.hold(OWN_BYTES, &cx));
        assert_eq!(budget.left(), 1 << 20);
        assert!(greedy.hold(OWN_BYTES + (1 << 20), &cx));
        assert_eq!(budget.left(), 0);
        assert!(!greedy.hold(OWN_BYTES + (1 << 20) + 1, &cx));
        assert!(modest.hold(OWN_BYTES, &cx) && !modest.hold(OWN_BYTES + 1, &cx));
        assert!(BudgetShare::of(&budget, 1).is_none());
        greedy.settle(OWN_BYTES + 1);
        assert_eq!(budget.left(), (1 << 20) - BORROW_UNIT - 1);
        assert!(modest.hold(OWN_BYTES + 1, &cx));
        drop((greedy, modest));
        assert_eq!(budget.left(), 1 << 20);
    }

    #[test]
    fn a_task_that_found_no_memory_is_woken_when_there_is_some() {
        struct Count(AtomicUsize);
        impl std::task::Wake for Count {
            fn wake(self: Arc<Count>) {
                self.0.fetch_add(1, SeqCst);
            }
        }
        let budget = SessionBudget::new(100);
        let count = Arc::new(Count(AtomicUsize::new(0)));
        let waker = Waker::from(Arc::clone(&count));
        let first = BudgetShare::of(&budget, 100);
        let mut second = BudgetShare::new(&budget);
        assert!(!second.hold(OWN_BYTES + 10, &Context::from_waker(&waker)));
        assert_eq!(count.0.load(SeqCst), 0);
        drop(first);
        assert_eq!(count.0.load(SeqCst), 1);
        assert!(second.hold(OWN_BYTES + 10, &Context::from_waker(&waker)));
    }
}
