//! The lines about grants and their ends, from the authority's own events.
//!
//! ```text
//!   pipeline ──► ring of recent events ──► this task ──┬─► the server's log: what no caller asked for
//!                                              │       └─► lines ──► the audit file's thread
//!                                              │                           │
//!                                              └──── written, or lost ◄────┘
//! ```
//!
//! The events contain facts that no request has: a lease that expired, or a grant to a client that no longer waited for
//! the answer. The audit lines cost the ordering thread nothing. The task has one piece of work in the queue of the audit
//! file at a time, so grants leave room there for a break; meanwhile the ring keeps the events. Those that leave the ring
//! unseen are counted as lost lines.

use std::time::Duration;

use palisade_access::Access;
use palisade_core::{Change, Ending, Event};
use palisade_pipeline::Handle;

use super::audit::{Audit, line_of, name};
use super::gate::Gate;

/// Follows the events.
pub(super) struct TakeoverRecorder<'a> {
    gate: &'a Gate,
    audit: &'a Audit,
    handle: Handle,
    /// The last event that was looked at.
    seen: u64,
}

impl<'a> TakeoverRecorder<'a> {
    /// Starts at the first event of this process, so that grants which ended during the start are recorded too.
    pub(super) fn new(gate: &'a Gate, handle: Handle) -> TakeoverRecorder<'a> {
        let since = handle.since(0);
        let first = since.batches.first().and_then(|batch| batch.first());
        TakeoverRecorder {
            seen: first.map_or(since.latest, |first| first.revision - 1),
            audit: gate.audit(),
            gate,
            handle,
        }
    }

    /// Records events. Does not end.
    pub(super) async fn follow(&mut self) {
        let mut news = self.handle.news();
        loop {
            self.catch_up().await;
            // Under load, one round serves many batches.
            let pause = if self.audit.is_on() { PAUSE } else { ALONE };
            tokio::time::sleep(pause).await;
            if news.changed().await.is_err() {
                break;
            }
        }
        std::future::pending().await
    }

    /// Records the remaining events when the server stops, without waiting for a disk that hangs.
    pub(super) async fn finish(mut self) {
        let last = async {
            self.catch_up().await;
            // Lines of an earlier round may still wait for their turn, which comes before this one's.
            self.audit.note_lines(Vec::new(), 0).await;
        };
        let _ = tokio::time::timeout(FAREWELL, last).await;
    }

    async fn catch_up(&mut self) {
        loop {
            let since = self.handle.since(self.seen);
            if since.latest <= self.seen {
                return;
            }
            let access = self.gate.rules();
            let first = since.batches.iter().find_map(|batch| batch.first());
            let next = first.map_or(since.latest + 1, |event| event.revision);
            // Gone unseen: nobody knows for how many of them there would have been a line.
            self.audit.lose(next.saturating_sub(self.seen + 1));
            self.seen = self.seen.max(next - 1);
            for batch in &since.batches {
                let (mut lines, mut count) = (Vec::new(), 0);
                for (at, event) in batch.iter().enumerate() {
                    if event.revision <= self.seen {
                        continue;
                    }
                    tell(event, access.as_deref());
                    if self.audit.is_on()
                        && let Some(line) = line_of(event, &batch[at + 1..], access.as_deref())
                    {
                        lines.extend(line);
                        count += 1;
                    }
                    self.seen = event.revision;
                    if lines.len() >= ENOUGH {
                        self.audit
                            .note_lines(std::mem::take(&mut lines), std::mem::take(&mut count))
                            .await;
                    }
                }
                if count > 0 {
                    self.audit.note_lines(lines, count).await;
                }
            }
        }
    }
}

/// The log's line of a change that no caller asked for, or that an operator made.
fn tell(event: &Event, access: Option<&Access>) {
    let (lock, token) = (event.lock.as_str(), event.token.get());
    let client = event.client.as_deref();
    match &event.change {
        Change::Ended { how, reason, .. } => match how {
            Ending::Revoked => tracing::info!(
                lock,
                token,
                client,
                by = &*name(event.detail.by, access),
                reason = reason.as_deref(),
                "a grant was revoked"
            ),
            Ending::Expired => {
                let unrenewed_ms = event.detail.unrenewed.as_millis();
                tracing::debug!(lock, token, client, unrenewed_ms, "a lease expired");
            }
            Ending::Superseded => {
                tracing::debug!(lock, token, client, "a client took its own lock again");
            }
            Ending::Released => {}
        },
        Change::Opened { reason } => {
            let by = name(event.by, access);
            tracing::info!(lock, token, by = &*by, %reason, "an operator opened a closed lock");
        }
        Change::Granted { .. } | Change::Proclaimed => {}
    }
}

/// The bytes of lines that are written at once.
const ENOUGH: usize = 64 << 10;

/// Between two rounds, with an audit file and without.
const PAUSE: Duration = Duration::from_millis(2);
const ALONE: Duration = Duration::from_millis(50);
const FAREWELL: Duration = Duration::from_secs(2);
