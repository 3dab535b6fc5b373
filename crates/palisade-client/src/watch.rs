//! Watching locks change.

use std::sync::Arc;

use futures_util::stream::StreamExt as _;

use crate::errand::{Backoff, insist};
use crate::error::Error;
use crate::fault::Fault;
use crate::keeper::{Core, NEVER};
use crate::service::{Events, WatchEvent};

/// Changes of locks as they become durable, in order. A connection that breaks is opened again and
/// goes on after the last event that was seen; what was missed all the same is counted in
/// [`WatchEvent::missed`].
///
/// It is news, not proof: a holder learns from its own deadline, not from an event.
pub struct Watch {
    core: Arc<Core>,
    prefix: Box<str>,
    /// The last event seen, or where the watch was asked to begin.
    after: Option<u64>,
    events: Option<Events>,
}

impl Watch {
    pub(crate) async fn open(
        core: Arc<Core>,
        prefix: &str,
        after: Option<u64>,
    ) -> Result<Watch, Error> {
        let mut watch = Watch {
            core,
            prefix: prefix.into(),
            after,
            events: None,
        };
        let until = watch.core.clock.now().after(watch.core.patience);
        watch.events = Some(watch.subscribe(until).await?);
        Ok(watch)
    }

    /// The next change. It waits through reconnects, for as long as nothing happens; dropping the
    /// future loses no event.
    ///
    /// # Errors
    /// Only faults that no reconnect cures.
    pub async fn next(&mut self) -> Result<WatchEvent, Error> {
        let mut backoff = Backoff::new();
        loop {
            let Some(events) = &mut self.events else {
                self.events = Some(self.subscribe(NEVER).await?);
                continue;
            };
            match events.next().await {
                Some(Ok(event)) => return Ok(self.seen(event)),
                Some(Err(fault)) if !fault.is_transient() => return Err(fault.into()),
                Some(Err(_)) | None => self.events = None,
            }
            backoff.pause(&*self.core.clock, NEVER).await;
        }
    }

    fn seen(&mut self, event: WatchEvent) -> WatchEvent {
        self.after = Some(event.revision);
        event
    }

    async fn subscribe(&self, until: palisade_core::Timestamp) -> Result<Events, Fault> {
        let core = &*self.core;
        insist(core, until, || core.service.watch(&self.prefix, self.after)).await
    }
}
