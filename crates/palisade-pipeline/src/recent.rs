//! The latest events, kept for watchers that are slow or come back.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use palisade_core::{Change, Event};

/// A ring of durable events, bounded in number and in bytes; the oldest make room.
#[derive(Debug)]
pub(super) struct RecentEvents(Mutex<EventRing>);

#[derive(Debug)]
struct EventRing {
    batches: VecDeque<Arc<[Event]>>,
    events: usize,
    bytes: usize,
    latest: u64,
}

/// The events after a revision that are still kept.
#[derive(Clone, Debug)]
pub struct Since {
    /// The first batches with later events, in order. If their first revision is not the next one, the events in
    /// between are no longer kept.
    pub batches: Vec<Arc<[Event]>>,
    /// The latest event's revision.
    pub latest: u64,
}

impl RecentEvents {
    /// Begins behind the event of revision `latest`, which is not kept.
    pub(super) fn new(latest: u64) -> RecentEvents {
        RecentEvents(Mutex::new(EventRing {
            batches: VecDeque::new(),
            events: 0,
            bytes: 0,
            latest,
        }))
    }

    pub(super) fn push(&self, batch: Arc<[Event]>) {
        let Some(last) = batch.last() else {
            return;
        };
        let mut kept = self.lock();
        kept.latest = last.revision;
        kept.events += batch.len();
        kept.bytes += bytes(&batch);
        kept.batches.push_back(batch);
        while (kept.events > EVENTS || kept.bytes > BYTES)
            && let Some(oldest) = kept.batches.pop_front()
        {
            kept.events -= oldest.len();
            kept.bytes -= bytes(&oldest);
        }
    }

    /// The latest event has this revision, and it is not kept.
    pub(super) fn reach(&self, revision: u64) {
        let mut kept = self.lock();
        kept.latest = kept.latest.max(revision);
    }

    pub(super) fn latest(&self) -> u64 {
        self.lock().latest
    }

    pub(super) fn since(&self, revision: u64) -> Since {
        let kept = self.lock();
        let known =
            |batch: &Arc<[Event]>| batch.last().is_none_or(|event| event.revision <= revision);
        let first = kept.batches.partition_point(known);
        Since {
            batches: kept.batches.range(first..).take(AT_ONCE).cloned().collect(),
            latest: kept.latest,
        }
    }

    fn lock(&self) -> MutexGuard<'_, EventRing> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn bytes(batch: &[Event]) -> usize {
    batch.iter().map(bytes_of).sum()
}

/// The memory that an event takes.
#[must_use]
pub fn bytes_of(event: &Event) -> usize {
    let reason = match &event.change {
        Change::Ended {
            reason: Some(reason),
            ..
        }
        | Change::Opened { reason } => reason.len(),
        _ => 0,
    };
    let client = event.client.as_ref().map_or(0, |client| client.len());
    let metadata = event.detail.metadata.as_ref().map_or(0, |text| text.len());
    size_of::<Event>() + event.lock.len() + client + metadata + reason
}

/// Events kept, and the bytes they may take.
const EVENTS: usize = 1 << 16;
const BYTES: usize = 16 << 20;

/// Batches handed out at once.
const AT_ONCE: usize = 64;

#[cfg(test)]
mod tests {
    use palisade_core::{
        ClientId, Detail, Ending, LeaseId, LockName, Principal, Slots, Span, Timestamp, Token,
        WallTime,
    };

    use super::*;

    fn event(revision: u64, reason: usize) -> Event {
        Event {
            revision,
            at: Timestamp::ZERO,
            wall: WallTime::default(),
            lock: LockName::new("a").unwrap(),
            client: Some(ClientId::new("c").unwrap()),
            token: Token::FIRST,
            shared: None,
            slots: Slots::NONE,
            by: Principal::ANONYMOUS,
            lease: Some(LeaseId(Token::FIRST)),
            held: Span::ZERO,
            detail: Detail::default(),
            change: Change::Ended {
                how: Ending::Revoked,
                reason: Some("x".repeat(reason).into()),
                delayed: None,
            },
        }
    }

    fn revisions(recent: &RecentEvents, after: u64) -> Vec<u64> {
        let since = recent.since(after);
        let events = since.batches.iter().flat_map(|batch| batch.iter());
        events.map(|event| event.revision).collect()
    }

    #[test]
    fn the_events_after_a_revision_begin_with_its_batch() {
        let recent = RecentEvents::new(10);
        assert_eq!((recent.latest(), revisions(&recent, 0)), (10, vec![]));
        recent.push([].into());
        recent.push([event(11, 0), event(12, 0)].into());
        recent.push([event(13, 0)].into());
        assert_eq!(recent.latest(), 13);
        assert_eq!(revisions(&recent, 3), [11, 12, 13]);
        assert_eq!(revisions(&recent, 11), [11, 12, 13]);
        assert_eq!(revisions(&recent, 12), [13]);
        assert!(revisions(&recent, 13).is_empty());
        assert!(revisions(&recent, 99).is_empty());
    }

    #[test]
    fn the_memory_of_an_event_is_its_size_and_its_names_and_its_reason() {
        let event = Event {
            lock: LockName::new("a/long/name").unwrap(),
            client: Some(ClientId::new("client").unwrap()),
            ..event(1, 100)
        };
        assert_eq!(bytes_of(&event), size_of::<Event>() + 11 + 6 + 100);
    }

    #[test]
    fn the_oldest_make_room_by_number_and_by_bytes() {
        let recent = RecentEvents::new(0);
        for revision in 1..=EVENTS as u64 + 10 {
            recent.push([event(revision, 0)].into());
        }
        assert_eq!(recent.since(0).batches[0][0].revision, 11);
        for revision in 100_000..101_000 {
            recent.push([event(revision, 256 << 10)].into());
        }
        let kept = recent.lock();
        assert!(
            kept.bytes <= BYTES && kept.batches.len() < 70,
            "{}",
            kept.bytes
        );
        assert_eq!(kept.latest, 100_999);
    }
}
