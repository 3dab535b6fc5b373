//! Timers: a wheel for deadlines to come, and a line for those that have passed.

use alloc::collections::VecDeque;

use super::slab::Number;
use super::wheel::Wheel;
use crate::time::Timestamp;

/// Deadlines by the slot numbers of their owners' table: a wheel for those to come, a line for those that
/// have passed.
#[derive(Clone, Debug)]
pub(crate) struct SlotTimers<S> {
    wheel: Wheel,
    line: VecDeque<DueTimer<S>>,
}

/// A timer that is due. Its subject may have ended since; its slot may even be another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct DueTimer<S> {
    deadline: Timestamp,
    /// The lease's id or the request's arrival.
    number: u64,
    slot: S,
}

/// Capacity that an empty line keeps.
const KEPT: usize = 4_096;

impl<S: Number + Ord> SlotTimers<S> {
    pub(super) fn new(now: Timestamp) -> SlotTimers<S> {
        SlotTimers {
            wheel: Wheel::new(now),
            line: VecDeque::new(),
        }
    }

    pub(super) fn reserve(&mut self, timers: usize) {
        self.wheel.reserve(timers);
    }

    pub(super) fn fit(&mut self) {
        self.wheel.fit();
    }

    pub(super) fn insert(&mut self, slot: S, deadline: Timestamp) {
        self.wheel.insert(slot.number(), deadline);
    }

    /// Removes a timer. If it has a place in the line, that is found to be empty later.
    pub(super) fn remove(&mut self, slot: S) {
        self.wheel.remove(slot.number());
    }

    /// When there is something to do, at the latest.
    pub(super) fn next(&self) -> Option<Timestamp> {
        let first = self.line.front().map(|due| due.deadline);
        first.or_else(|| self.wheel.next())
    }

    /// Whether nothing has come due by `now`, as nearly always.
    #[inline]
    pub(super) fn pass(&mut self, now: Timestamp) -> bool {
        self.wheel.pass(now) && self.line.is_empty()
    }

    /// Lines up the timers that have come due by `now`. `of` gives a timer's deadline and number.
    pub(super) fn line_up(&mut self, now: Timestamp, of: impl Fn(S) -> (Timestamp, u64)) {
        let sorted = self.line.len();
        let line = &mut self.line;
        let fire = |slot| {
            let slot = S::of(slot);
            let (deadline, number) = of(slot);
            line.push_back(DueTimer {
                deadline,
                number,
                slot,
            });
        };
        self.wheel.advance(now, |slot| of(S::of(slot)).0, fire);
        if self.line.len() > sorted {
            self.line.make_contiguous()[sorted..].sort_unstable();
        }
    }

    /// Lines up the timers that were in line when the records were written; the wheel has taken them for
    /// future ones.
    pub(super) fn line_up_again(&mut self, due: impl Iterator<Item = (Timestamp, u64, S)>) {
        self.line
            .extend(due.map(|(deadline, number, slot)| DueTimer {
                deadline,
                number,
                slot,
            }));
        for due in &self.line {
            self.wheel.remove(due.slot.number());
        }
        self.line.make_contiguous().sort_unstable();
    }

    /// The first in line that has not ended. `of` gives the deadline and number of a slot's present
    /// content.
    pub(super) fn first(&mut self, of: impl Fn(S) -> Option<(Timestamp, u64)>) -> Option<S> {
        while let Some(first) = self.line.front() {
            if of(first.slot) == Some((first.deadline, first.number)) {
                return Some(first.slot);
            }
            self.line.pop_front();
        }
        self.line.shrink_to(KEPT);
        None
    }

    /// The deadlines, numbers and slots of the timers in line; some may have ended.
    pub(crate) fn in_line(&self) -> impl Iterator<Item = (Timestamp, u64, S)> {
        let line = self.line.iter();
        line.map(|due| (due.deadline, due.number, due.slot))
    }
}
