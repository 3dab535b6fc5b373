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
            let place = &mut self.chunks[slot as usize / CHUNK][slot as usize % CHUNK];
            assert!(place.is_none(), "a slot in the list of free ones is used");
            *place = Some(record);
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

    /// Takes a record out. Only a record that is there is taken out: as with [`Index`], a free slot is a bug.
    pub(crate) fn remove(&mut self, slot: Slot) -> T {
        let chunk = self.chunks.get_mut(slot as usize / CHUNK);
        let place = chunk.and_then(|chunk| chunk.get_mut(slot as usize % CHUNK));
        let Some(record) = place.and_then(Option::take) else {
            dangling(slot);
        };
        self.free.push(slot);
        self.len -= 1;
        record
    }

    pub(crate) fn get(&self, slot: Slot) -> Option<&T> {
        self.chunks
            .get(slot as usize / CHUNK)?
            .get(slot as usize % CHUNK)?
            .as_ref()
    }

    #[cfg(test)]
    pub(crate) fn spoil_free(&mut self, slot: Slot) {
        self.free.push(slot);
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
    #[inline]
    fn index(&self, slot: Slot) -> &T {
        match self.get(slot) {
            Some(record) => record,
            None => dangling(slot),
        }
    }
}

impl<T> IndexMut<Slot> for Slab<T> {
    #[inline]
    fn index_mut(&mut self, slot: Slot) -> &mut T {
        let chunk = self.chunks.get_mut(slot as usize / CHUNK);
        let place = chunk.and_then(|chunk| chunk.get_mut(slot as usize % CHUNK));
        match place.and_then(Option::as_mut) {
            Some(record) => record,
            None => dangling(slot),
        }
    }
}

/// Going on would corrupt the record of who holds what.
#[cold]
#[inline(never)]
fn dangling(slot: Slot) -> ! {
    panic!("a record names slot {slot}, which is free");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_reused_and_counted() {
        let mut slab = Slab::new();
        let slots: Vec<Slot> = (0..3_000).map(|n| slab.insert(n)).collect();
        assert_eq!((slab.len(), slab.slots()), (3_000, 3_000));
        assert_eq!(slab.remove(slots[7]), 7);
        assert_eq!(slab.insert(99), slots[7]);
        assert_eq!((slab[slots[7]], slab.slots()), (99, 3_000));
        assert_eq!(slab.iter().count(), 3_000);
        assert!(slab.get(3_000).is_none());
    }

    #[test]
    #[should_panic(expected = "a record names slot 1, which is free")]
    fn a_free_slot_has_nothing_to_give() {
        let mut slab = Slab::new();
        slab.insert(7);
        slab.remove(1);
    }
}
