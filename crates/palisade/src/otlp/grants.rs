//! Grants that last, and how they end.

use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use opentelemetry_proto::tonic::common::v1::KeyValue;
use opentelemetry_proto::tonic::trace::v1::Span;
use palisade_core::{Change, Ending, Event};
use palisade_pipeline::Handle;
use tokio::sync::mpsc;

use super::counters::DROPPED;
use super::span::{ParentSpan, now, number, text};

/// A grant of a caller whose trace is recorded.
pub(super) struct TracedGrant {
    pub(super) parent: ParentSpan,
    pub(super) lock: String,
    pub(super) client: String,
    pub(super) token: u64,
    /// When its request was answered.
    pub(super) since: SystemTime,
}

impl TracedGrant {
    fn span(&self, start: SystemTime, end: SystemTime, ending: &str, reason: Option<&str>) -> Span {
        let mut attributes: Vec<KeyValue> = vec![
            text("palisade.lock", &*self.lock),
            text("palisade.client_id", &*self.client),
            number("palisade.fencing_token", self.token),
            text("palisade.ending", ending),
        ];
        attributes.extend(reason.map(|reason| text("palisade.reason", reason)));
        self.parent.child("grant", (start, end), attributes)
    }
}

/// The end of a grant.
struct EndedGrant {
    /// The number that names the grant; locks of a set have the same.
    grant: u64,
    lock: Box<str>,
    how: Ending,
    reason: Option<Box<str>>,
    at: SystemTime,
    lasted: Duration,
}

impl EndedGrant {
    /// `None` for an event that ends no grant.
    fn of(event: &Event) -> Option<EndedGrant> {
        let Change::Ended { how, reason, .. } = &event.change else {
            return None;
        };
        Some(EndedGrant {
            grant: event.shared.map_or(event.token, |id| id.0).get(),
            lock: event.lock.as_str().into(),
            how: *how,
            reason: reason.clone(),
            at: now(),
            lasted: event.held.to_duration(),
        })
    }

    fn span(&self, held: &TracedGrant) -> Span {
        let start = self.at.checked_sub(self.lasted).unwrap_or(self.at);
        held.span(start, self.at, ending(self.how), self.reason.as_deref())
    }
}

/// As the events and the audit file name it.
fn ending(how: Ending) -> &'static str {
    match how {
        Ending::Released => "released",
        Ending::Expired => "expired",
        Ending::Revoked => "revoked",
        Ending::Superseded => "superseded",
    }
}

/// The grants that last, by number. Their memory is bounded.
#[derive(Default)]
pub(super) struct OpenGrants {
    last: BTreeMap<u64, TracedGrant>,
    /// The latest ends, for a grant that ends before its request is answered.
    ended: VecDeque<EndedGrant>,
}

impl OpenGrants {
    /// Keeps a grant until its end; the span, if that has come already. The oldest makes room.
    pub(super) fn granted(&mut self, grant: u64, held: TracedGrant) -> Option<Span> {
        let mut ended = self.ended.iter();
        if let Some(ended) = ended.find(|ended| ended.grant == grant && *ended.lock == *held.lock) {
            return Some(ended.span(&held));
        }
        // A repeated request gets the same grant again.
        self.last.entry(grant).or_insert(held);
        if self.last.len() > GRANTS {
            self.last.pop_first();
            DROPPED.fetch_add(1, Relaxed);
        }
        None
    }

    fn ended(&mut self, ended: EndedGrant) -> Option<Span> {
        let last = self.last.get(&ended.grant);
        if last.is_some_and(|held| *held.lock == *ended.lock) {
            return Some(ended.span(&self.last.remove(&ended.grant)?));
        }
        self.ended.push_back(ended);
        if self.ended.len() > ENDS {
            self.ended.pop_front();
        }
        None
    }

    /// The spans of all that last; the server stops.
    pub(super) fn take_all(&mut self) -> Vec<Span> {
        let at = now();
        let last = std::mem::take(&mut self.last).into_values();
        last.map(|held| held.span(held.since.min(at), at, "server_stopped", None))
            .collect()
    }
}

/// The state that the layer shares with the tasks.
pub(super) struct Shared {
    pub(super) queue: mpsc::Sender<Span>,
    pub(super) grants: Mutex<OpenGrants>,
}

impl Shared {
    /// Queues a span, or counts it as dropped.
    pub(super) fn send(&self, span: Span) {
        if self.queue.try_send(span).is_err() {
            DROPPED.fetch_add(1, Relaxed);
        }
    }

    pub(super) fn grants(&self) -> MutexGuard<'_, OpenGrants> {
        self.grants.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Looks for the ends among the authority's events. Ends only with the server.
pub(super) async fn follow(handle: Handle, shared: Arc<Shared>) {
    let mut news = handle.news();
    let mut seen = handle.revision();
    loop {
        seen = catch_up(&handle, &shared, seen);
        // Under load, one round serves many batches.
        tokio::time::sleep(PAUSE).await;
        if news.changed().await.is_err() {
            return;
        }
    }
}

/// Reads the events after `seen`, and returns the revision of the last one. Events that left the ring unread may have
/// ended grants; those grants stay until others replace them.
fn catch_up(handle: &Handle, shared: &Shared, mut seen: u64) -> u64 {
    loop {
        let since = handle.since(seen);
        let batches = since.batches.iter().flat_map(|batch| batch.iter());
        for event in batches.filter(|event| event.revision > seen) {
            if let Some(ended) = EndedGrant::of(event) {
                let span = shared.grants().ended(ended);
                if let Some(span) = span {
                    shared.send(span);
                }
            }
        }
        let last = since.batches.last().and_then(|batch| batch.last());
        let reached = last.map_or(since.latest, |event| event.revision);
        if reached <= seen {
            return seen;
        }
        seen = reached;
    }
}

/// The number of stored grants: some megabytes.
const GRANTS: usize = 1 << 14;

/// The number of stored ends.
const ENDS: usize = 1 << 12;

const PAUSE: Duration = Duration::from_millis(2);
