//! Watching locks change.

use std::sync::Arc;

use futures_util::stream::StreamExt as _;
use palisade_core::Timestamp;

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
        let until = core.clock.now().after(core.patience);
        let events = Some(subscribe(&core, prefix, after, until).await?);
        Ok(Watch {
            core,
            prefix: prefix.into(),
            after,
            events,
        })
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
                let events = subscribe(&self.core, &self.prefix, self.after, NEVER).await?;
                self.events = Some(events);
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
}

/// Borrows only what it needs: a watch can then be moved into a task of its own.
async fn subscribe(
    core: &Core,
    prefix: &str,
    after: Option<u64>,
    until: Timestamp,
) -> Result<Events, Fault> {
    insist(core, until, || core.service.watch(prefix, after)).await
}

#[cfg(test)]
mod tests {
    /// Compiles only if a task may wait for the next event.
    #[test]
    fn a_watch_can_be_followed_in_a_task() {
        fn task<T: Send>(_: impl FnOnce(&'static mut super::Watch) -> T) {}
        task(super::Watch::next);
    }
}
