//! Random bytes, read from the kernel in pages.

use std::cell::RefCell;

use crate::fault::{Fault, Reason};

const PAGE: usize = 1_024;

thread_local! {
    static POOL: RefCell<Pool> = const { RefCell::new(Pool { page: [0; PAGE], used: PAGE }) };
}

struct Pool {
    page: [u8; PAGE],
    used: usize,
}

/// Returns sixteen fresh bytes from the operating system's generator, which is read once per 64 draws.
///
/// # Errors
/// [`Fault::Unavailable`] if the generator fails: another client could abandon a request id that it can
/// guess.
pub(crate) fn bytes() -> Result<[u8; 16], Fault> {
    POOL.with_borrow_mut(Pool::draw)
}

impl Pool {
    fn draw(&mut self) -> Result<[u8; 16], Fault> {
        if self.used == PAGE {
            getrandom::fill(&mut self.page).map_err(|error| {
                Fault::unavailable(Reason::new("no random bytes").because(error))
            })?;
            self.used = 0;
        }
        let mut drawn = [0; 16];
        drawn.copy_from_slice(&self.page[self.used..self.used + 16]);
        self.page[self.used..self.used + 16].fill(0);
        self.used += 16;
        Ok(drawn)
    }
}
