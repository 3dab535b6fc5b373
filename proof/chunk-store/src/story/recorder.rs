//! Everything that the processes of an act recorded. The schedule waits here for events, never for a time.

use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::sync::watch;

use crate::Failure;
use crate::event::{Event, Record};

/// The longest wait for an event.
const LIMIT: Duration = Duration::from_secs(60);

/// Collects the records of all processes of an act.
#[derive(Debug)]
pub(super) struct Recorder {
    records: Mutex<Vec<Record>>,
    count: watch::Sender<usize>,
}

impl Recorder {
    pub(super) fn new() -> Recorder {
        Recorder {
            records: Mutex::default(),
            count: watch::Sender::new(0),
        }
    }

    pub(super) fn add(&self, record: Record) {
        self.lock().push(record);
        self.count.send_modify(|count| *count += 1);
    }

    /// How many records there are; a place to wait from.
    pub(super) fn len(&self) -> usize {
        self.lock().len()
    }

    /// All records.
    pub(super) fn records(&self) -> Vec<Record> {
        self.lock().clone()
    }

    /// Waits for an event among those after the first `from`.
    pub(super) async fn until<T>(
        &self,
        what: &str,
        from: usize,
        look: impl Fn(&Event) -> Option<T>,
    ) -> Result<T, Failure> {
        let mut changes = self.count.subscribe();
        let found = async {
            loop {
                changes.mark_unchanged();
                let found = self
                    .lock()
                    .iter()
                    .skip(from)
                    .find_map(|its| look(&its.event));
                if let Some(found) = found {
                    return found;
                }
                // The sender lives as long as `self`.
                let _ = changes.changed().await;
            }
        };
        let late = |_| format!("{what} did not happen within {} s", LIMIT.as_secs()).into();
        tokio::time::timeout(LIMIT, found).await.map_err(late)
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Record>> {
        // Every change is a single push, so a panic elsewhere leaves nothing half done.
        self.records.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
