//! A listing of locks, page by page.

use std::sync::Arc;

use palisade_core::LockView;

use crate::error::Error;
use crate::retry::repeat_until;
use crate::service::{Cursor, Page};
use crate::state::Core;

/// The held locks whose names start with a prefix. It is not a snapshot: a lock that is held throughout appears once; a
/// lock that is granted or released meanwhile may or may not appear.
pub struct Listing {
    core: Arc<Core>,
    prefix: Box<str>,
    page: std::vec::IntoIter<LockView>,
    next: NextListing,
}

enum NextListing {
    Page(Option<Cursor>),
    Complete,
}

impl Listing {
    pub(crate) fn new(core: Arc<Core>, prefix: &str) -> Listing {
        Listing {
            core,
            prefix: prefix.into(),
            page: Vec::new().into_iter(),
            next: NextListing::Page(None),
        }
    }

    /// Returns the next lock; `None` when the listing is complete.
    ///
    /// # Errors
    /// Faults only. The listing can continue after one.
    pub async fn next(&mut self) -> Result<Option<LockView>, Error> {
        loop {
            if let Some(lock) = self.page.next() {
                return Ok(Some(lock));
            }
            let NextListing::Page(cursor) = &self.next else {
                return Ok(None);
            };
            let page = self.fetch(cursor.clone()).await?;
            self.next = page.next.map_or(NextListing::Complete, |cursor| {
                NextListing::Page(Some(cursor))
            });
            self.page = page.locks.into_iter();
        }
    }

    /// Returns all remaining locks in one list.
    ///
    /// # Errors
    /// Faults only.
    pub async fn all(mut self) -> Result<Vec<LockView>, Error> {
        let mut locks = Vec::new();
        while let Some(lock) = self.next().await? {
            locks.push(lock);
        }
        Ok(locks)
    }

    async fn fetch(&self, cursor: Option<Cursor>) -> Result<Page, Error> {
        let core = &*self.core;
        let until = core.clock.now().after(core.patience);
        let page = || core.service.list(&self.prefix, cursor.clone(), PAGE);
        Ok(repeat_until(core, until, page).await?)
    }
}

/// The number of locks requested in one page.
const PAGE: u32 = 500;
