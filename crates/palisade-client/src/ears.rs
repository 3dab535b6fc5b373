//! Requests that wait to be told of their grants, for authorities that tell by message.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use palisade_core::RequestId;
use tokio::sync::Notify;

/// Who waits.
#[derive(Debug, Default)]
pub(crate) struct Ears {
    waiting: Mutex<HashMap<RequestId, Arc<Notify>>>,
    wake_ups: AtomicU64,
}

/// A request that wants to hear of its grant; it is forgotten when this is dropped.
pub(crate) struct Ear<'a> {
    ears: &'a Ears,
    request: RequestId,
    rings: Arc<Notify>,
}

impl Ears {
    /// Hears of this request's grant from now on.
    pub(crate) fn open(&self, request: RequestId) -> Ear<'_> {
        let rings = Arc::new(Notify::new());
        self.lock().insert(request, Arc::clone(&rings));
        Ear {
            ears: self,
            request,
            rings,
        }
    }

    /// Wakes the request that was granted, if it waits here.
    pub(crate) fn tell(&self, request: &RequestId) {
        if let Some(rings) = self.lock().get(request) {
            self.wake_ups.fetch_add(1, Ordering::Relaxed);
            rings.notify_one();
        }
    }

    /// How many requests were woken.
    pub(crate) fn wake_ups(&self) -> u64 {
        self.wake_ups.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<RequestId, Arc<Notify>>> {
        self.waiting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Ear<'_> {
    /// Completes when its grant was told.
    pub(crate) async fn heard(&self) {
        self.rings.notified().await;
    }
}

impl Drop for Ear<'_> {
    fn drop(&mut self) {
        self.ears.lock().remove(&self.request);
    }
}
