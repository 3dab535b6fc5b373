//! The memory into which sessions read and from which they write. A session has some of its own only while something is in it:
//! otherwise all sessions on a thread take turns with one buffer. So idle sessions take none, however large their bursts
//! were, and the memory that the next one needs is in the caches.

use std::cell::Cell;
use std::mem;

thread_local! {
    static SPARE: Cell<Vec<u8>> = const { Cell::new(Vec::new()) };
}

/// A larger buffer is not kept.
const KEEP_BYTES: usize = 64 << 10;

/// Gives `buffer` the memory that this thread has to spare, if it has none of its own.
pub(super) fn lend(buffer: &mut Vec<u8>) {
    if buffer.capacity() == 0 {
        *buffer = SPARE.take();
    }
}

/// Takes the memory of `buffer` back, but for its content.
pub(super) fn take_back(buffer: &mut Vec<u8>) {
    // Copying the beginning of a large frame each time that more of it arrives would take longer than it is worth.
    if buffer.capacity() <= 2 * buffer.len() {
        return;
    }
    let content = buffer.as_slice().to_vec();
    let mut spare = mem::replace(buffer, content);
    if spare.capacity() <= KEEP_BYTES {
        spare.clear();
        SPARE.set(spare);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_empty_buffer_has_no_memory_and_the_next_one_gets_what_it_had() {
        let mut first = b"frame".to_vec();
        first.reserve_exact(1_000);
        let memory = first.as_ptr();
        first.clear();
        take_back(&mut first);
        assert_eq!(first.capacity(), 0);
        lend(&mut first);
        assert_eq!((first.as_ptr(), first.len()), (memory, 0));
        let mut second = Vec::new();
        lend(&mut second);
        assert_eq!(second.capacity(), 0, "it was lent to the first");
    }

    #[test]
    fn a_small_rest_does_not_keep_a_large_buffer() {
        let mut buffer = b"rest".to_vec();
        buffer.reserve_exact(10_000);
        take_back(&mut buffer);
        assert_eq!(buffer, b"rest");
        assert!(buffer.capacity() < 100, "{}", buffer.capacity());
        let mut half = vec![1; 600];
        half.reserve_exact(500);
        let memory = half.as_ptr();
        take_back(&mut half);
        assert_eq!((half.as_ptr(), half.len()), (memory, 600));
        lend(&mut half);
        assert_eq!(half.as_ptr(), memory, "it has its own");
    }

    #[test]
    fn a_burst_of_one_is_not_kept_for_the_next() {
        let mut burst = Vec::with_capacity(KEEP_BYTES + 1);
        take_back(&mut burst);
        lend(&mut burst);
        assert_eq!(burst.capacity(), 0);
    }
}
