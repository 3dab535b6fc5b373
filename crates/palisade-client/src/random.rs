//! Random bytes, bought from the kernel by the page.

use std::cell::RefCell;

use crate::fault::Fault;

const PAGE: usize = 1_024;

thread_local! {
    static POOL: RefCell<Pool> = const { RefCell::new(Pool { page: [0; PAGE], used: PAGE }) };
}

struct Pool {
    page: [u8; PAGE],
    used: usize,
}

/// Sixteen fresh bytes from the operating system's generator, asked once per 64 draws.
///
/// # Errors
/// [`Fault::Unavailable`] if it has none to give: a guessable request id could be abandoned by
/// somebody else.
pub(crate) fn bytes() -> Result<[u8; 16], Fault> {
    POOL.with_borrow_mut(Pool::draw)
}

impl Pool {
    fn draw(&mut self) -> Result<[u8; 16], Fault> {
        if self.used == PAGE {
            getrandom::fill(&mut self.page)
                .map_err(|error| Fault::unavailable(format!("no random bytes: {error}")))?;
            self.used = 0;
        }
        let mut drawn = [0; 16];
        drawn.copy_from_slice(&self.page[self.used..self.used + 16]);
        self.page[self.used..self.used + 16].fill(0);
        self.used += 16;
        Ok(drawn)
    }
}
