//! Bookkeeping for a caller that waits and disconnects.

use std::mem;
use std::sync::Arc;

use palisade_pipeline::{Answer, KeepsPlace};

use crate::net::places::{Places, RequestName};
use crate::net::shares::Used;
use crate::shell::Origin;

/// A waiting request whose caller may come back.
pub(super) struct ReturningCaller {
    pub(super) places: Arc<Places>,
    pub(super) named: RequestName,
    pub(super) origin: Origin,
}

/// A caller that waits for an answer. If it disconnects before that, its place is reserved, and its use of
/// quotas goes on.
pub(super) struct WaitingCaller {
    pub(super) place: Option<ReturningCaller>,
    pub(super) keeps_place: KeepsPlace,
    pub(super) used: Used,
}

impl WaitingCaller {
    pub(super) fn settle(mut self, answer: &Answer) {
        self.place = None;
        mem::take(&mut self.used).settle(answer);
    }
}

impl Drop for WaitingCaller {
    fn drop(&mut self) {
        if let Some(ReturningCaller {
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
