//! Records in numbered slots: no pointers, no moving, no doubling.

use alloc::boxed::Box;
use alloc::vec::Vec;
use core::fmt;
use core::marker::PhantomData;
use core::ops::{Index, IndexMut};

/// The number of a slot. Each table has a type for its own, so that none is looked up in another table.
pub(crate) trait Number: Copy + PartialEq + fmt::Debug {
    /// The slot with this number.
    fn of(number: u32) -> Self;

    /// Its number.
    fn number(self) -> u32;
}

macro_rules! slots {
    ($($(#[$doc:meta])* $name:ident,)*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub(crate) struct $name(u32);

        impl Number for $name {
            #[inline]
            fn of(number: u32) -> $name {
                $name(number)
            }

            #[inline]
            fn number(self) -> u32 {
                self.0
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}

slots! {
    /// Of a client.
    ClientSlot,
    /// Of the fields that few locks have.
    ExtraSlot,
    /// Of a lease.
    LeaseSlot,
    /// Of a lock.
    LockSlot,
    /// Of a shared grant.
    ShareSlot,
    /// Of a waiting request.
    WaiterSlot,
}

/// A slot or none, as large as a slot, for linked records. Outside of them `Option` is used.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct SlotLink<S> {
    number: u32,
    of: PhantomData<S>,
}

impl<S: Number> SlotLink<S> {
    /// No slot.
    pub(crate) const NONE: SlotLink<S> = SlotLink {
        number: u32::MAX,
        of: PhantomData,
    };

    #[inline]
    pub(crate) fn to(slot: S) -> SlotLink<S> {
        let number = slot.number();
        debug_assert_ne!(number, u32::MAX, "no slot has this number");
        let of = PhantomData;
        SlotLink { number, of }
    }

    #[inline]
    pub(crate) fn get(self) -> Option<S> {
        (self.number != u32::MAX).then(|| S::of(self.number))
    }

    #[inline]
    pub(crate) fn is_none(self) -> bool {
        self.number == u32::MAX
    }
}

impl<S: Number> fmt::Debug for SlotLink<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.get().fmt(f)
    }
}

impl<S: Number> PartialEq<S> for SlotLink<S> {
    #[inline]
    fn eq(&self, slot: &S) -> bool {
        self.number == slot.number()
    }
}

#[cfg(test)]
impl Number for u32 {
    #[inline]
    fn of(number: u32) -> u32 {
        number
    }

    #[inline]
    fn number(self) -> u32 {
        self
    }
}

const CHUNK: usize = 1_024;

/// No table has more slots, so that a number has room for a mark: a shared grant, a named owner, no slot at all.
const MOST_SLOTS: u32 = 1 << 31;

/// A growing table of records. It grows by whole chunks, so that a million locks cost no copy and no
/// idle half of a doubled vector.
#[derive(Clone, Debug)]
pub(crate) struct Slab<S, T> {
    /// Arrays, so that a place in one needs no check.
    chunks: Vec<Box<[Option<T>; CHUNK]>>,
    free: Vec<u32>,
    len: usize,
    /// One past the highest slot that was ever used.
    slots_used: u32,
    slots: PhantomData<S>,
}

impl<S: Number, T> Slab<S, T> {
    pub(crate) const fn new() -> Slab<S, T> {
        Slab {
            chunks: Vec::new(),
            free: Vec::new(),
            len: 0,
            slots_used: 0,
            slots: PhantomData,
        }
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The number of slots, used or free: one past the highest that was ever used.
    pub(crate) fn slots(&self) -> u32 {
        self.slots_used
    }

    pub(crate) fn insert(&mut self, record: T) -> S {
        self.len += 1;
        let slot = match self.free.pop() {
            Some(slot) => slot,
            None => self.new_slot(),
        };
        let place = &mut self.chunks[slot as usize / CHUNK][slot as usize % CHUNK];
        assert!(place.is_none(), "a slot in the list of free ones is used");
        *place = Some(record);
        S::of(slot)
    }

    fn new_slot(&mut self) -> u32 {
        let slot = self.slots_used;
        assert!(slot < MOST_SLOTS, "a table has no slot left");
        if slot as usize == self.chunks.len() * CHUNK {
            let chunk: Box<[Option<T>]> = (0..CHUNK).map(|_| None).collect();
            let Ok(chunk) = chunk.try_into() else {
                unreachable!("a chunk has another number of places");
            };
            self.chunks.push(chunk);
        }
        self.slots_used += 1;
        slot
    }

    /// Takes a record out. Only a record that is there is taken out: as with [`Index`], a free slot is a bug.
    pub(crate) fn remove(&mut self, slot: S) -> T {
        let slot = slot.number();
        let chunk = self.chunks.get_mut(slot as usize / CHUNK);
        let Some(record) = chunk.and_then(|chunk| chunk[slot as usize % CHUNK].take()) else {
            dangling(slot);
        };
        self.free.push(slot);
        self.len -= 1;
        record
    }

    #[inline]
    pub(crate) fn get(&self, slot: S) -> Option<&T> {
        let slot = slot.number();
        let chunk = self.chunks.get(slot as usize / CHUNK)?;
        chunk[slot as usize % CHUNK].as_ref()
    }

    #[cfg(test)]
    pub(crate) fn spoil_free(&mut self, slot: S) {
        self.free.push(slot.number());
    }

    /// All records with their slots, in slot order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (S, &T)> {
        let slots = self
            .chunks
            .iter()
            .flat_map(|chunk| chunk.iter())
            .enumerate();
        slots.filter_map(|(slot, record)| Some((S::of(slot as u32), record.as_ref()?)))
    }

    /// All records, in slot order, to be changed.
    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (S, &mut T)> {
        let slots = self
            .chunks
            .iter_mut()
            .flat_map(|chunk| chunk.iter_mut())
            .enumerate();
        slots.filter_map(|(slot, record)| Some((S::of(slot as u32), record.as_mut()?)))
    }
}

/// A slot that is known to be used. A free one is a bug of the machine, and stops it.
impl<S: Number, T> Index<S> for Slab<S, T> {
    type Output = T;
    #[inline]
    fn index(&self, slot: S) -> &T {
        match self.get(slot) {
            Some(record) => record,
            None => dangling(slot.number()),
        }
    }
}

impl<S: Number, T> IndexMut<S> for Slab<S, T> {
    #[inline]
    fn index_mut(&mut self, slot: S) -> &mut T {
        let slot = slot.number();
        let chunk = self.chunks.get_mut(slot as usize / CHUNK);
        match chunk.and_then(|chunk| chunk[slot as usize % CHUNK].as_mut()) {
            Some(record) => record,
            None => dangling(slot),
        }
    }
}

/// Going on would corrupt the record of who holds what.
fn dangling(slot: u32) -> ! {
    unreachable!("a record names slot {slot}, which is free");
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_reused_and_counted() {
        let mut slab = Slab::new();
        let slots: Vec<u32> = (0..3_000).map(|n| slab.insert(n)).collect();
        assert_eq!((slab.len(), slab.slots()), (3_000, 3_000));
        assert_eq!(slab.remove(slots[7]), 7);
        assert_eq!(slab.insert(99), slots[7]);
        assert_eq!((slab[slots[7]], slab.slots()), (99, 3_000));
        assert_eq!(slab.iter().count(), 3_000);
        assert!(slab.get(3_000).is_none());
    }

    /// The control is the test above: other tables have slots left.
    #[test]
    #[should_panic(expected = "a table has no slot left")]
    fn a_slot_with_the_number_of_a_mark_is_not_given() {
        let mut slab: Slab<u32, u8> = Slab::new();
        slab.slots_used = MOST_SLOTS;
        slab.insert(7);
    }

    #[test]
    #[should_panic(expected = "a record names slot 1, which is free")]
    fn a_free_slot_has_nothing_to_give() {
        let mut slab: Slab<u32, u8> = Slab::new();
        slab.insert(7);
        slab.remove(1);
    }
}
