//! Watching locks for changes.

use std::sync::Arc;

use futures_util::stream::StreamExt as _;
use palisade_core::Timestamp;

use crate::error::Error;
use crate::fault::Fault;
use crate::retry::{Backoff, repeat_until};
use crate::schedule::NEVER;
use crate::service::{Events, Notice};
use crate::state::Core;

/// A stream of changes to locks, in order, as they become durable. After a broken connection it reconnects and
/// continues after the last event seen. A [`Notice::Missed`] counts the events that were missed.
///
/// A holder must not rely on events to learn of a loss: its own deadline decides.
pub struct Watch {
    core: Arc<Core>,
    prefix: Box<str>,
    /// The revision of the last event seen, or the one after which the watch begins.
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

    /// Returns the next change, or the number of missed ones. It waits across reconnects for as long as nothing
    /// happens. Dropping the future loses no event.
    ///
    /// # Errors
    /// Only faults that reconnecting cannot fix.
    pub async fn next(&mut self) -> Result<Notice, Error> {
        let mut backoff = Backoff::new();
        loop {
            let Some(events) = &mut self.events else {
                let events = subscribe(&self.core, &self.prefix, self.after, NEVER).await?;
                self.events = Some(events);
                continue;
            };
            match events.next().await {
                Some(Ok(notice)) => return Ok(self.seen(notice)),
                Some(Err(fault)) if !fault.is_transient() => return Err(fault.into()),
                Some(Err(_)) | None => self.events = None,
            }
            backoff.pause(&*self.core.clock, NEVER).await;
        }
    }

    fn seen(&mut self, notice: Notice) -> Notice {
        self.after = Some(notice.revision());
        notice
    }
}

/// Subscribes. It borrows only `core`, so that a watch can move into a task.
async fn subscribe(
    core: &Core,
    prefix: &str,
    after: Option<u64>,
    until: Timestamp,
) -> Result<Events, Fault> {
    repeat_until(core, until, || core.service.watch(prefix, after)).await
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
