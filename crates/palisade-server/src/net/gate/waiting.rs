//! Bookkeeping for a caller that waits and disconnects.

use std::mem;
use std::sync::Arc;

use palisade_pipeline::{Answer, KeepsPlace};

use crate::net::places::{Named, Places};
use crate::net::shares::Used;
use crate::shell::Origin;

/// A waiting request whose caller may come back.
pub(super) struct Returning {
    pub(super) places: Arc<Places>,
    pub(super) named: Named,
    pub(super) origin: Origin,
}

/// A caller that waits for an answer. If it disconnects before that, its place is reserved, and its use of
/// quotas goes on.
pub(super) struct Waiting {
    pub(super) place: Option<Returning>,
    pub(super) keeps_place: KeepsPlace,
    pub(super) used: Used,
}

impl Waiting {
    pub(super) fn settle(mut self, answer: &Answer) {
        self.place = None;
        mem::take(&mut self.used).settle(answer);
    }
}

impl Drop for Waiting {
    fn drop(&mut self) {
        if let Some(Returning {
            places,
            named,
            origin,
        }) = self.place.take()
            && places.keep(named, origin, mem::take(&mut self.used))
        {
            self.keeps_place.keep();
        }
    }
}
