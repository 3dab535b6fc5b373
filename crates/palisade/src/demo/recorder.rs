//! Everything recorded in an act. The driver waits here for events, never for a time.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::timeline::{
    LeaseChange, LockMessageKind, OperationKind, Period, ResourceMessage, TimelineEvent, merge,
};

/// A line that a worker prints on its standard output, as one JSON value.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "note", rename_all = "snake_case")]
pub(super) enum Note {
    /// An event of the timeline.
    Record {
        /// The event.
        #[serde(rename = "record")]
        event: TimelineEvent,
    },
    /// The guard confirmed that the lease still holds.
    Checked {
        /// The time of the check.
        at_ms: f64,
        /// The time left, by the holder's own clock.
        remaining_ms: f64,
    },
    /// The worker waits at its breakpoint.
    Breakpoint,
    /// The store acknowledged the update.
    Acknowledged {
        /// The item added.
        item: String,
    },
    /// The store refused the update.
    Rejected {
        /// The item that was to be added.
        item: String,
    },
    /// The worker gave up.
    Failed {
        /// Why.
        message: String,
    },
    /// The network has received the whole write and delays it. Recorded by the network, not by the worker.
    Held,
    /// The worker finished its work.
    Done,
    /// The worker's output ended. Recorded by the demo, not by the worker.
    Ended,
}

/// The events recorded so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Snapshot {
    /// The timeline's events; the two halves of each message are joined.
    pub(super) events: Vec<TimelineEvent>,
    notes: Vec<(String, Note)>,
}

/// Collects the records of all processes of an act.
#[derive(Debug)]
pub(super) struct Recorder {
    state: Mutex<Snapshot>,
    version: watch::Sender<u64>,
}

impl Recorder {
    pub(super) fn new() -> Recorder {
        Recorder {
            state: Mutex::default(),
            version: watch::Sender::new(0),
        }
    }

    /// Adds an event of the timeline.
    pub(super) fn record(&self, event: TimelineEvent) {
        let mut state = self.lock();
        state.events.push(event);
        state.events = merge(std::mem::take(&mut state.events));
        drop(state);
        self.version.send_modify(|version| *version += 1);
    }

    /// Adds a note of a worker.
    pub(super) fn note(&self, client: &str, note: Note) {
        if let Note::Record { event } = note {
            return self.record(event);
        }
        self.lock().notes.push((client.to_owned(), note));
        self.version.send_modify(|version| *version += 1);
    }

    /// Waits until `look` returns a value.
    ///
    /// # Errors
    /// A sentence: it did not happen in time, or a worker gave up first.
    pub(super) async fn until<T>(
        &self,
        what: &str,
        limit: Duration,
        look: impl Fn(&Snapshot) -> Option<T>,
    ) -> Result<T, String> {
        let mut changes = self.version.subscribe();
        let found = async {
            loop {
                changes.mark_unchanged();
                let snapshot = self.snapshot();
                if let Some(found) = look(&snapshot) {
                    return Ok(found);
                }
                if let Some(gone) = snapshot.gone() {
                    return Err(gone);
                }
                // The sender lives as long as `self`.
                let _ = changes.changed().await;
            }
        };
        let late = || format!("{what} did not happen within {} s", limit.as_secs_f64());
        tokio::time::timeout(limit, found)
            .await
            .unwrap_or_else(|_| Err(late()))
    }

    /// A copy of everything recorded so far.
    pub(super) fn snapshot(&self) -> Snapshot {
        self.lock().clone()
    }

    fn lock(&self) -> MutexGuard<'_, Snapshot> {
        // Every change is a single push, so a panic elsewhere leaves nothing half done.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Snapshot {
    /// The notes of this client, in order.
    pub(super) fn notes<'a>(&'a self, client: &'a str) -> impl Iterator<Item = &'a Note> {
        self.notes
            .iter()
            .filter(move |(who, _)| who == client)
            .map(|(_, note)| note)
    }

    /// The client's operation of this kind. Each worker does each kind once.
    pub(super) fn operation(&self, client: &str, kind: OperationKind) -> Option<&ResourceMessage> {
        self.events.iter().find_map(|event| match event {
            TimelineEvent::Operation(operation)
                if operation.message.client == client && operation.operation == kind =>
            {
                Some(operation)
            }
            _ => None,
        })
    }

    /// The grant of the lock to this client.
    pub(super) fn granted(&self, client: &str) -> Option<&LeaseChange> {
        self.events.iter().find_map(|event| match event {
            TimelineEvent::Granted(lease) if lease.client == client => Some(lease),
            _ => None,
        })
    }

    /// Whether this client has recorded the answer to its request for the lock.
    pub(super) fn asked(&self, client: &str) -> bool {
        self.events.iter().any(|event| match event {
            TimelineEvent::Request(request) => {
                let acquired =
                    request.request == LockMessageKind::Acquire && request.answer.is_some();
                acquired && request.message.client == client
            }
            _ => false,
        })
    }

    /// When this client's lease expired at the lock service.
    pub(super) fn expired(&self, client: &str) -> Option<f64> {
        self.events.iter().find_map(|event| match event {
            TimelineEvent::Expired(lease) if lease.client == client => Some(lease.at_ms),
            _ => None,
        })
    }

    /// When the lock service reported this client's release.
    pub(super) fn released(&self, client: &str) -> Option<f64> {
        self.events.iter().find_map(|event| match event {
            TimelineEvent::Released(lease) if lease.client == client => Some(lease.at_ms),
            _ => None,
        })
    }

    /// When this client was stopped.
    pub(super) fn paused(&self, client: &str) -> Option<&Period> {
        self.events.iter().find_map(|event| match event {
            TimelineEvent::Paused(period) if period.client == client => Some(period),
            _ => None,
        })
    }

    /// When this client's check of its lease passed, and how long the lease then had, ms.
    pub(super) fn checked(&self, client: &str) -> Option<(f64, f64)> {
        self.notes(client).find_map(|note| match note {
            Note::Checked {
                at_ms,
                remaining_ms,
            } => Some((*at_ms, *remaining_ms)),
            _ => None,
        })
    }

    /// Why a worker will record no more, if one gave up.
    fn gone(&self) -> Option<String> {
        let clients = self.notes.iter().filter(|(_, note)| *note == Note::Ended);
        clients.map(|(client, _)| client).find_map(|client| {
            let failed = self.notes(client).find_map(|note| match note {
                Note::Failed { message } => Some(format!("{client} gave up: {message}")),
                _ => None,
            });
            let done = self.notes(client).any(|note| *note == Note::Done);
            failed.or_else(|| (!done).then(|| format!("the process of {client} ended early")))
        })
    }
}
