//! Some of a run's locks.

use std::fmt;

/// Locks by their numbers, one bit each.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct Locks(u8);

impl Locks {
    pub(crate) fn one(lock: u8) -> Locks {
        Locks(1_u8.checked_shl(lock.into()).unwrap_or(0))
    }

    #[must_use]
    pub(crate) fn with(self, lock: u8) -> Locks {
        Locks(self.0 | Locks::one(lock).0)
    }

    #[must_use]
    pub(crate) fn without(self, lock: u8) -> Locks {
        Locks(self.0 & !Locks::one(lock).0)
    }

    pub(crate) fn has(self, lock: u8) -> bool {
        self.meets(Locks::one(lock))
    }

    /// Whether a lock is in both.
    pub(crate) fn meets(self, other: Locks) -> bool {
        self.0 & other.0 != 0
    }

    pub(crate) fn is_empty(self) -> bool {
        self.0 == 0
    }

    /// Whether they are a set's.
    pub(crate) fn are_several(self) -> bool {
        self.0.count_ones() > 1
    }

    pub(crate) fn iter(self) -> impl Iterator<Item = u8> {
        (0..u8::BITS as u8).filter(move |lock| self.has(*lock))
    }
}

impl FromIterator<u8> for Locks {
    fn from_iter<T: IntoIterator<Item = u8>>(locks: T) -> Locks {
        locks.into_iter().fold(Locks::default(), Locks::with)
    }
}

impl fmt::Debug for Locks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}
