//! Everything that was recorded in an act, and waiting for it: the director acts on events, never on time.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::sync::watch;

use super::timeline::{Event, Operation, OperationKind, RequestKind, merge};

/// What a worker says on its standard output, one JSON value a line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "note", rename_all = "snake_case")]
pub(super) enum Note {
    /// Something for the timeline.
    Record {
        /// It.
        #[serde(rename = "record")]
        event: Event,
    },
    /// The guard was asked whether the lease still holds, and said yes.
    Checked {
        /// When.
        at_ms: f64,
        /// For how long, by the holder's own clock.
        remaining_ms: f64,
    },
    /// It goes on when it is told to.
    Breakpoint,
    /// The store said that the update is done.
    Acknowledged {
        /// The item added.
        item: String,
    },
    /// The store refused the update.
    Rejected {
        /// The item that was to be added.
        item: String,
    },
    /// It cannot go on.
    Failed {
        /// Why.
        message: String,
    },
    /// The network has its whole write and holds it up. Said by the network, not by the worker.
    Held,
    /// It did all it was asked to.
    Done,
    /// Its output ended. Said by the demo, not by the worker.
    Ended,
}

/// What has been told so far.
#[derive(Clone, Debug, Default)]
pub(super) struct Told {
    /// The timeline's events, the halves of each message joined.
    pub(super) events: Vec<Event>,
    notes: Vec<(String, Note)>,
}

/// Collects what all processes of an act tell.
#[derive(Debug)]
pub(super) struct Ledger {
    told: Mutex<Told>,
    version: watch::Sender<u64>,
}

impl Ledger {
    pub(super) fn new() -> Ledger {
        Ledger {
            told: Mutex::default(),
            version: watch::Sender::new(0),
        }
    }

    /// Adds an event of the timeline.
    pub(super) fn record(&self, event: Event) {
        let mut told = self.told();
        told.events.push(event);
        told.events = merge(std::mem::take(&mut told.events));
        drop(told);
        self.version.send_modify(|version| *version += 1);
    }

    /// Adds what a worker said.
    pub(super) fn note(&self, client: &str, note: Note) {
        if let Note::Record { event } = note {
            return self.record(event);
        }
        self.told().notes.push((client.to_owned(), note));
        self.version.send_modify(|version| *version += 1);
    }

    /// Waits until `look` finds something.
    ///
    /// # Errors
    /// In words, that it did not happen in time, or that a worker gave up before.
    pub(super) async fn until<T>(
        &self,
        what: &str,
        limit: Duration,
        look: impl Fn(&Told) -> Option<T>,
    ) -> Result<T, String> {
        let mut changes = self.version.subscribe();
        let found = async {
            loop {
                changes.mark_unchanged();
                let told = self.snapshot();
                if let Some(found) = look(&told) {
                    return Ok(found);
                }
                if let Some(gone) = told.gone() {
                    return Err(gone);
                }
                // The sender lives as long as this ledger.
                let _ = changes.changed().await;
            }
        };
        let late = || format!("{what} did not happen within {} s", limit.as_secs_f64());
        tokio::time::timeout(limit, found)
            .await
            .unwrap_or_else(|_| Err(late()))
    }

    /// A copy of everything told so far.
    pub(super) fn snapshot(&self) -> Told {
        self.told().clone()
    }

    fn told(&self) -> MutexGuard<'_, Told> {
        // Every change is a single push: a panic elsewhere leaves nothing half done.
        self.told.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Told {
    /// What this client said, in order.
    pub(super) fn notes<'a>(&'a self, client: &'a str) -> impl Iterator<Item = &'a Note> {
        self.notes
            .iter()
            .filter(move |(who, _)| who == client)
            .map(|(_, note)| note)
    }

    /// The client's operation of this kind. Each worker does each kind once.
    pub(super) fn operation(&self, client: &str, kind: OperationKind) -> Option<&Operation> {
        self.events.iter().find_map(|event| match event {
            Event::Operation(operation)
                if operation.message.client == client && operation.operation == kind =>
            {
                Some(operation)
            }
            _ => None,
        })
    }

    /// When the lock service granted the lock to this client, and with which token.
    pub(super) fn granted(&self, client: &str) -> Option<(f64, u64)> {
        self.events.iter().find_map(|event| match event {
            Event::Granted {
                at_ms,
                client: who,
                token,
                ..
            } if who == client => Some((*at_ms, *token)),
            _ => None,
        })
    }

    /// Whether this client has told what its request for the lock was answered, and when.
    pub(super) fn asked(&self, client: &str) -> bool {
        self.events.iter().any(|event| match event {
            Event::Request(request) => {
                let acquired = request.request == RequestKind::Acquire && request.answer.is_some();
                acquired && request.message.client == client
            }
            _ => false,
        })
    }

    /// When this client's lease expired at the lock service.
    pub(super) fn expired(&self, client: &str) -> Option<f64> {
        self.events.iter().find_map(|event| match event {
            Event::Expired {
                at_ms, client: who, ..
            } if who == client => Some(*at_ms),
            _ => None,
        })
    }

    /// When this client's release was told by the lock service.
    pub(super) fn released(&self, client: &str) -> Option<f64> {
        self.events.iter().find_map(|event| match event {
            Event::Released {
                at_ms, client: who, ..
            } if who == client => Some(*at_ms),
            _ => None,
        })
    }

    /// From when to when this client was stopped.
    pub(super) fn paused(&self, client: &str) -> Option<(f64, Option<f64>)> {
        self.events.iter().find_map(|event| match event {
            Event::Paused {
                from_ms,
                to_ms,
                client: who,
            } if who == client => Some((*from_ms, *to_ms)),
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

    /// Why a worker will say nothing more, if one gave up.
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
