//! A budget of bytes that may be held at the same time: for one connection, and for all.

use std::sync::Arc;
use std::sync::atomic::AtomicUsize;
use std::sync::atomic::Ordering::Relaxed;

/// A number of bytes, and how many of them are in use.
#[derive(Debug)]
pub(super) struct ByteBudget {
    most: usize,
    used: AtomicUsize,
    /// The larger budget that these bytes also count against.
    all: Option<Arc<ByteBudget>>,
}

impl ByteBudget {
    pub(super) fn new(most: usize, all: Option<Arc<ByteBudget>>) -> Arc<ByteBudget> {
        Arc::new(ByteBudget {
            most,
            used: AtomicUsize::new(0),
            all,
        })
    }

    /// An empty charge.
    pub(super) fn charge(self: &Arc<ByteBudget>) -> Charge {
        Charge {
            budget: Arc::clone(self),
            bytes: 0,
        }
    }

    /// Takes bytes unless they exceed the budget. If a connection's budget is unused, it may take more: a one-piece
    /// answer cannot be split.
    fn take(&self, bytes: usize) -> bool {
        let before = self.used.fetch_add(bytes, Relaxed);
        let fits = before.saturating_add(bytes) <= self.most || (before == 0 && self.all.is_some());
        let fits = fits && self.all.as_ref().is_none_or(|all| all.take(bytes));
        if !fits {
            self.used.fetch_sub(bytes, Relaxed);
        }
        fits
    }

    fn give_back(&self, bytes: usize) {
        self.used.fetch_sub(bytes, Relaxed);
        if let Some(all) = &self.all {
            all.give_back(bytes);
        }
    }
}

/// Bytes in use; dropping it gives them back.
#[derive(Debug)]
pub(super) struct Charge {
    budget: Arc<ByteBudget>,
    bytes: usize,
}

impl Charge {
    /// Takes this many more bytes; `false` if they do not fit.
    pub(super) fn add(&mut self, bytes: usize) -> bool {
        let taken = self.budget.take(bytes);
        if taken {
            self.bytes += bytes;
        }
        taken
    }

    /// Gives everything back.
    pub(super) fn release(&mut self) {
        if self.bytes > 0 {
            self.budget.give_back(std::mem::take(&mut self.bytes));
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.release();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_connection_and_all_together_are_bounded() {
        let all = ByteBudget::new(25, None);
        let one = ByteBudget::new(10, Some(Arc::clone(&all)));
        let two = ByteBudget::new(10, Some(Arc::clone(&all)));
        let (mut first, mut second) = (one.charge(), two.charge());
        assert!(first.add(8) && !first.add(3) && first.add(2));
        // A single answer may exceed its connection's budget, but not the rest of the shared one.
        assert!(!second.add(16) && second.add(15));
        assert_eq!(all.used.load(Relaxed), 25);
        first.release();
        drop(second);
        assert_eq!(
            [&all, &one, &two].map(|budget| budget.used.load(Relaxed)),
            [0, 0, 0]
        );
    }
}
