//! The lines for grants and their ends, from the authority's own events.
//!
//! ```text
//!   pipeline ──► ring of recent events ──► this task ──► lines ──► the audit file's thread
//!                                              ▲                        │
//!                                              └── written, or lost ◄───┘
//! ```
//!
//! The events know what no request does: that a lease expired, and what was granted to a client that no longer waited for
//! the answer. The ordering thread does nothing for the lines. The task has one piece of work in the queue of the audit
//! file at a time, so grants leave room there for a break; meanwhile the ring keeps the events. Those that leave the ring
//! unseen are counted as lost lines.

use std::borrow::Cow;
use std::time::Duration;

use palisade_access::{ANONYMOUS, Access};
use palisade_core::{Change, Ending, Event, Principal};
use serde::Serialize;

use super::{Audit, line};
use crate::net::convert::json::ending;
use crate::net::gate::Gate;
use palisade_pipeline::Handle;

/// What a line says of a grant.
#[derive(Serialize)]
pub(in crate::net) struct Grant<'a> {
    /// The number of the authority's event: lines with one number are about one event.
    revision: u64,
    principal: Cow<'a, str>,
    lock: &'a str,
    mode: &'static str,
    fencing_token: u64,
    /// What tells a reader from the others.
    #[serde(skip_serializing_if = "Option::is_none")]
    grant_id: Option<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    slots: Vec<u32>,
    lease_id: Option<u64>,
    client_id: Option<&'a str>,
}

impl<'a> Grant<'a> {
    fn of(event: &'a Event, access: Option<&'a Access>) -> Grant<'a> {
        let slots: Vec<u32> = event.slots.iter().collect();
        Grant {
            revision: event.revision,
            principal: name(event.by, access),
            lock: event.lock.as_str(),
            mode: match (event.shared, slots.is_empty()) {
                (Some(_), _) => "shared",
                (None, true) => "exclusive",
                (None, false) => "permits",
            },
            fencing_token: event.token.get(),
            grant_id: event.shared.map(|id| id.0.get()),
            slots,
            lease_id: event.lease.map(|lease| lease.0.get()),
            client_id: event.client.as_deref(),
        }
    }
}

/// The name of a principal. One that is no longer in the access file is called by what the log has of it.
fn name<'a>(by: Principal, access: Option<&'a Access>) -> Cow<'a, str> {
    if by.is_anonymous() {
        return ANONYMOUS.into();
    }
    match access.and_then(|access| access.stored(by.to_bytes())) {
        Some(principal) => principal.name().into(),
        None => {
            let digits = by.to_bytes().map(|byte| format!("{byte:02x}"));
            format!("sha256:{}", digits.concat()).into()
        }
    }
}

/// The line of one event; `later` are the events of its batch after it.
fn line_of(event: &Event, later: &[Event], access: Option<&Access>) -> Option<Vec<u8>> {
    let superseded = matches!(
        event.change,
        Change::Ended {
            how: Ending::Superseded,
            ..
        }
    );
    if !superseded && !access.is_some_and(|access| access.audits(event.lock.as_str())) {
        return None;
    }
    let grant = || Grant::of(event, access);
    Some(line(&match &event.change {
        // An opening has had its line before it was done.
        Change::Proclaimed | Change::Opened { .. } => return None,
        Change::Granted { .. } => super::Event::Granted(grant()),
        Change::Ended { how, reason, .. } => {
            // The grant that supersedes is made in the same entry of the log.
            let succeeds = |next: &&Event| {
                superseded
                    && matches!(next.change, Change::Granted { .. })
                    && (&next.lock, &next.client, next.by) == (&event.lock, &event.client, event.by)
            };
            let successor = later.iter().find(succeeds);
            super::Event::Ended {
                grant: grant(),
                how: ending(*how),
                reason: reason.as_deref(),
                new_fencing_token: successor.map(|next| next.token.get()),
            }
        }
    }))
}

/// Follows the events.
pub(in crate::net) struct Recorder<'a> {
    gate: &'a Gate,
    audit: &'a Audit,
    handle: Handle,
    /// The last event that was looked at.
    seen: u64,
}

impl<'a> Recorder<'a> {
    /// Begins with the first event of this process: what ended during the start is recorded too.
    pub(in crate::net) fn new(gate: &'a Gate, handle: Handle) -> Recorder<'a> {
        let since = handle.since(0);
        let first = since.batches.first().and_then(|batch| batch.first());
        Recorder {
            seen: first.map_or(since.latest, |first| first.revision - 1),
            audit: gate.audit(),
            gate,
            handle,
        }
    }

    /// Records what happens. Does not end.
    pub(in crate::net) async fn follow(&mut self) {
        let mut news = self.handle.news();
        while self.audit.is_on() {
            self.catch_up().await;
            // Under load, one round serves many batches.
            tokio::time::sleep(PAUSE).await;
            if news.changed().await.is_err() {
                break;
            }
        }
        std::future::pending().await
    }

    /// Records what is left, when the server stops: but it does not wait for a disk that hangs.
    pub(in crate::net) async fn finish(mut self) {
        if !self.audit.is_on() {
            return;
        }
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
                    if let Some(line) = line_of(event, &batch[at + 1..], access.as_deref()) {
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

/// The bytes of lines that are written at once.
const ENOUGH: usize = 64 << 10;

const PAUSE: Duration = Duration::from_millis(2);
const FAREWELL: Duration = Duration::from_secs(2);
