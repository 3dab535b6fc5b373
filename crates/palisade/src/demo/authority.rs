//! The lock service's part of an act, as a watcher sees it.

use std::sync::Arc;

use palisade_client::{Change, Client, Ending, Error, Notice, WatchEvent};

use super::clock::ActClock;
use super::recorder::Recorder;
use super::timeline::{LeaseChange, LockMessage, LockMessageKind, Message, TimelineEvent};
use super::worker::LOCK;

/// A client that watches the demo's lock.
#[derive(Debug)]
pub(super) struct LockWatcher {
    client: Client,
    clock: ActClock,
    recorder: Arc<Recorder>,
}

impl LockWatcher {
    pub(super) async fn open(
        url: &str,
        clock: ActClock,
        recorder: Arc<Recorder>,
    ) -> Result<LockWatcher, Error> {
        Ok(LockWatcher {
            client: Client::connect(url).await?,
            clock,
            recorder,
        })
    }

    /// Records the lock's events from now on, for as long as the returned future is polled.
    pub(super) async fn watch(&self) -> Result<impl Future<Output = Error> + use<>, Error> {
        let mut changes = self.client.watch(LOCK).await?;
        let (clock, recorder) = (self.clock, Arc::clone(&self.recorder));
        Ok(async move {
            loop {
                match changes.next().await {
                    Ok(Notice::Change(change)) => event_of(clock.now_ms(), change)
                        .into_iter()
                        .for_each(|event| recorder.record(event)),
                    Ok(_) => {}
                    Err(error) => return error,
                }
            }
        })
    }

    /// Waits until the lock service reports a waiter in the lock's queue, and records this as the arrival of the
    /// client's request. Only one client asks at a time, so the waiter is this client.
    pub(super) async fn queued(&self, client: &str) -> Result<f64, Error> {
        while self.client.show(LOCK).await?.waiters == 0 {
            tokio::task::yield_now().await;
        }
        let arrived_ms = self.clock.now_ms();
        let message = Message {
            id: format!("{client}-acquire"),
            client: client.to_owned(),
            arrived_ms: Some(arrived_ms),
            ..Message::default()
        };
        self.recorder.record(TimelineEvent::Request(LockMessage {
            message,
            request: LockMessageKind::Acquire,
            answer: None,
        }));
        Ok(arrived_ms)
    }
}

/// A change as an event of the timeline. It was durable before it was reported, so `at_ms` is an upper bound.
fn event_of(at_ms: f64, event: WatchEvent) -> Option<TimelineEvent> {
    let client = event.client?;
    let change = |ttl_ms| LeaseChange {
        at_ms,
        client: client.as_str().to_owned(),
        token: event.token.get(),
        ttl_ms,
    };
    match event.change {
        Change::Granted { ttl } => {
            let ttl_ms = ttl.span().as_millis() as f64;
            Some(TimelineEvent::Granted(change(Some(ttl_ms))))
        }
        Change::Proclaimed | Change::Opened { .. } => None,
        Change::Ended { how, .. } => match how {
            Ending::Expired => Some(TimelineEvent::Expired(change(None))),
            Ending::Released => Some(TimelineEvent::Released(change(None))),
            _ => None,
        },
    }
}

/// Combines the watcher's records with the clients' answers. A change happened no later than the earlier of the two: a
/// grant is no later than its answer, and the end of a lease no later than the next grant.
pub(super) fn reconcile(events: &mut [TimelineEvent]) {
    let mut answers: Vec<(LockMessageKind, String, f64)> = Vec::new();
    for event in events.iter() {
        if let TimelineEvent::Request(LockMessage {
            message, request, ..
        }) = event
        {
            let answered = message.answered_ms.unwrap_or(f64::INFINITY);
            answers.push((*request, message.client.clone(), answered));
        }
    }
    let (mut grants, mut happened) = (Vec::new(), Vec::new());
    for event in events.iter_mut() {
        let (kind, lease) = match event {
            TimelineEvent::Granted(lease) => (LockMessageKind::Acquire, lease),
            TimelineEvent::Released(lease) => (LockMessageKind::Release, lease),
            _ => continue,
        };
        let own = answers
            .iter()
            .filter(|(what, who, _)| *what == kind && *who == lease.client);
        lease.at_ms = own.fold(lease.at_ms, |first, (.., answered)| first.min(*answered));
        if kind == LockMessageKind::Acquire {
            grants.push((lease.token, lease.at_ms));
        }
    }
    for event in events.iter_mut() {
        if let TimelineEvent::Expired(lease) | TimelineEvent::Released(lease) = event {
            let later = grants.iter().filter(|(next, _)| *next > lease.token);
            lease.at_ms = later.fold(lease.at_ms, |first, (_, granted)| first.min(*granted));
        }
        match event {
            TimelineEvent::Granted(lease) => {
                happened.push((LockMessageKind::Acquire, lease.clone()))
            }
            TimelineEvent::Released(lease) => {
                happened.push((LockMessageKind::Release, lease.clone()))
            }
            _ => {}
        }
    }
    // The lock service decided a request when the requested change happened.
    for event in events.iter_mut() {
        if let TimelineEvent::Request(LockMessage {
            message, request, ..
        }) = event
        {
            let mut own = happened.iter().filter(|(what, _)| what == request);
            let own = own.find(|(_, lease)| lease.client == message.client);
            message.decided_ms = own.map(|(_, lease)| lease.at_ms);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::demo::timeline::LockAnswer;

    fn asked(client: &str, answered: f64) -> TimelineEvent {
        let message = Message {
            client: client.into(),
            answered_ms: Some(answered),
            ..Message::default()
        };
        TimelineEvent::Request(LockMessage {
            message,
            request: LockMessageKind::Acquire,
            answer: Some(LockAnswer::Done),
        })
    }

    #[test]
    fn a_client_that_learns_of_its_grant_before_the_watcher_bounds_grant_and_expiry() {
        let lease = |at_ms, client: &str, token| LeaseChange {
            at_ms,
            client: client.to_owned(),
            token,
            ttl_ms: None,
        };
        let mut events = vec![
            TimelineEvent::Granted(lease(1.0, "A", 1)),
            TimelineEvent::Expired(lease(10.5, "A", 1)),
            TimelineEvent::Granted(lease(10.6, "B", 2)),
            asked("A", 1.5),
            asked("B", 10.4),
        ];
        reconcile(&mut events);
        let decided = |event: &TimelineEvent| match event {
            TimelineEvent::Granted(lease) | TimelineEvent::Expired(lease) => Some(lease.at_ms),
            TimelineEvent::Request(request) => request.message.decided_ms,
            _ => None,
        };
        let times: Vec<f64> = events.iter().filter_map(decided).collect();
        assert_eq!(times, [1.0, 10.4, 10.4, 1.0, 10.4]);
    }
}
