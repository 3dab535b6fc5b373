//! Random bytes, read from the kernel a page at a time.

use std::cell::RefCell;

use palisade_core::LeaseKey;

const PAGE: usize = 1_024;

thread_local! {
    static POOL: RefCell<Pool> = const { RefCell::new(Pool { page: [0; PAGE], used: PAGE }) };
}

struct Pool {
    page: [u8; PAGE],
    used: usize,
}

/// Sixteen fresh bytes from the operating system's generator.
///
/// The kernel is asked once per 64 draws. If it has no randomness to give, this process must not hand
/// out guessable secrets and stops.
pub(super) fn bytes() -> [u8; 16] {
    POOL.with_borrow_mut(Pool::draw)
}

/// The first bytes of the keys of leases, by which the network side knows that clients have them encrypted. The other twelve
/// are random.
pub const MARK: [u8; 4] = [0x50, 0xa1, 0x15, 0xad];

/// The key of a new lease.
pub(super) fn lease_key() -> LeaseKey {
    let mut key = bytes();
    key[..MARK.len()].copy_from_slice(&MARK);
    LeaseKey::from_bytes(key)
}

impl Pool {
    fn draw(&mut self) -> [u8; 16] {
        if self.used == PAGE {
            if getrandom::fill(&mut self.page).is_err() {
                std::process::abort();
            }
            self.used = 0;
        }
        let mut drawn = [0; 16];
        drawn.copy_from_slice(&self.page[self.used..self.used + 16]);
        self.page[self.used..self.used + 16].fill(0);
        self.used += 16;
        drawn
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Over several pages.
    #[test]
    fn each_draw_is_fresh_and_leaves_nothing_behind() {
        let mut pool = Pool {
            page: [0; PAGE],
            used: PAGE,
        };
        let mut drawn = BTreeSet::new();
        for n in 1..=200 {
            drawn.insert(pool.draw());
            assert_eq!(drawn.len(), n);
            let (given, left) = pool.page.split_at(pool.used);
            assert!(given.iter().all(|byte| *byte == 0), "it was wiped");
            let there = left.iter().filter(|byte| **byte != 0).count();
            assert!(there >= left.len() / 2, "and only that");
        }
        assert_ne!(bytes(), bytes());
    }
}
