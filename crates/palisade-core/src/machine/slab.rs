//! Records in numbered slots: no pointers, no moving, no doubling.

use alloc::vec::Vec;
use core::ops::{Index, IndexMut};

/// The number of a slot.
pub(crate) type Slot = u32;

/// "No slot" inside linked records; outside of them `Option` is used.
pub(crate) const NIL: Slot = Slot::MAX;

const CHUNK: usize = 1_024;

/// A growing table of records. It grows by whole chunks, so that a million locks cost no copy and no
/// idle half of a doubled vector.
#[derive(Clone, Debug)]
pub(crate) struct Slab<T> {
    chunks: Vec<Vec<Option<T>>>,
    free: Vec<Slot>,
    len: usize,
}

impl<T> Slab<T> {
    pub(crate) const fn new() -> Slab<T> {
        Slab {
            chunks: Vec::new(),
            free: Vec::new(),
            len: 0,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The number of slots, used or free: one past the highest that was ever used.
    pub(crate) fn slots(&self) -> Slot {
        self.chunks.last().map_or(0, |last| {
            ((self.chunks.len() - 1) * CHUNK + last.len()) as Slot
        })
    }

    pub(crate) fn insert(&mut self, record: T) -> Slot {
        self.len += 1;
        if let Some(slot) = self.free.pop() {
            self.chunks[slot as usize / CHUNK][slot as usize % CHUNK] = Some(record);
            return slot;
        }
        if self.chunks.last().is_none_or(|last| last.len() == CHUNK) {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        let slot = self.slots();
        if let Some(last) = self.chunks.last_mut() {
            last.push(Some(record));
        }
        slot
    }

    pub(crate) fn remove(&mut self, slot: Slot) -> Option<T> {
        let record = self
            .chunks
            .get_mut(slot as usize / CHUNK)?
            .get_mut(slot as usize % CHUNK)?
            .take()?;
        self.free.push(slot);
        self.len -= 1;
        Some(record)
    }

    pub(crate) fn get(&self, slot: Slot) -> Option<&T> {
        self.chunks
            .get(slot as usize / CHUNK)?
            .get(slot as usize % CHUNK)?
            .as_ref()
    }

    /// All records with their slots, in slot order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (Slot, &T)> {
        let slots = self.chunks.iter().flatten().enumerate();
        slots.filter_map(|(slot, record)| Some((slot as Slot, record.as_ref()?)))
    }

    /// All records, in slot order, to be changed.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (Slot, &mut T)> {
        let slots = self.chunks.iter_mut().flatten().enumerate();
        slots.filter_map(|(slot, record)| Some((slot as Slot, record.as_mut()?)))
    }
}

/// A slot that is known to be used. A free one is a bug of the machine, and stops it.
impl<T> Index<Slot> for Slab<T> {
    type Output = T;
    #[allow(
        clippy::expect_used,
        reason = "a dangling slot is a bug; going on would corrupt who holds what"
    )]
    #[inline]
    fn index(&self, slot: Slot) -> &T {
        self.chunks[slot as usize / CHUNK][slot as usize % CHUNK]
            .as_ref()
            .expect("a used slot")
    }
}

impl<T> IndexMut<Slot> for Slab<T> {
    #[allow(
        clippy::expect_used,
        reason = "a dangling slot is a bug; going on would corrupt who holds what"
    )]
    #[inline]
    fn index_mut(&mut self, slot: Slot) -> &mut T {
        self.chunks[slot as usize / CHUNK][slot as usize % CHUNK]
            .as_mut()
            .expect("a used slot")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_reused_and_counted() {
        let mut slab = Slab::new();
        let slots: Vec<Slot> = (0..3_000).map(|n| slab.insert(n)).collect();
        assert_eq!((slab.len(), slab.slots()), (3_000, 3_000));
        assert_eq!(slab.remove(slots[7]), Some(7));
        assert_eq!(
            slab.remove(slots[7]),
            None,
            "a free slot has nothing to give"
        );
        assert_eq!(slab.insert(99), slots[7]);
        assert_eq!((slab[slots[7]], slab.slots()), (99, 3_000));
        assert_eq!(slab.iter().count(), 3_000);
        assert!(slab.get(3_000).is_none());
    }
}
