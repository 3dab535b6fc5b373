//! Reports of refused late writes, for the authority's history. Best effort: nobody waits for one, and none changes a lease.
//!
//! ```text
//!   fence ── Reporter::late ──► queue, 64 ──► the client's background task: one attempt each, ten a second
//! ```

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use palisade_core::fence::{Late, Reporter};
use palisade_core::{LockName, Span, Timestamp, Token};
use tokio::sync::Notify;

use crate::client::Client;
use crate::lease::Lease;
use crate::retry::before;
use crate::service::LateWrite;
use crate::state::Core;

/// The queue of one client.
pub(crate) struct Reports {
    is_on: bool,
    queue: Mutex<ReportQueue>,
    idle: Notify,
}

#[derive(Default)]
struct ReportQueue {
    waiting: VecDeque<LateWrite>,
    /// When the latest report of a lock, token and resource came; the bounds of the queue and of the rate bound it, too.
    latest: HashMap<ReportKey, Timestamp>,
    dropped: u64,
    is_sending: bool,
    /// The next report leaves no earlier.
    next: Timestamp,
}

type ReportKey = (LockName, Token, Box<str>);

impl Reports {
    pub(crate) fn new(is_on: bool) -> Reports {
        Reports {
            is_on,
            queue: Mutex::default(),
            idle: Notify::new(),
        }
    }

    fn queue(&self) -> MutexGuard<'_, ReportQueue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Queues a report. Returns whether there is something to send.
    pub(crate) fn take(&self, late: LateWrite, now: Timestamp) -> bool {
        self.is_on && self.queue().take(late, now)
    }

    pub(crate) fn dropped(&self) -> u64 {
        self.queue().dropped
    }

    /// Completes when nothing is queued any more, or after a moment.
    pub(crate) async fn sent(&self, core: &Core) {
        let until = core.clock.now().after(LAST);
        loop {
            let mut idle = Box::pin(self.idle.notified());
            idle.as_mut().enable();
            if self.queue().is_idle() || before(&*core.clock, until, idle).await.is_none() {
                return;
            }
        }
    }
}

impl ReportQueue {
    fn take(&mut self, late: LateWrite, now: Timestamp) -> bool {
        self.latest.retain(|_, at| now.since(*at) < EQUAL);
        let key = (late.lock.clone(), late.token, late.resource.clone());
        if self.latest.contains_key(&key) {
            return false;
        }
        if self.waiting.len() >= MOST {
            self.dropped += 1;
            return false;
        }
        self.latest.insert(key, now);
        self.waiting.push_back(late);
        true
    }

    fn is_idle(&self) -> bool {
        self.waiting.is_empty() && !self.is_sending
    }

    /// The next report and when it may leave.
    fn next(&mut self, now: Timestamp) -> Option<(LateWrite, Timestamp)> {
        let late = self.waiting.pop_front()?;
        let at = self.next.max(now);
        self.next = at.after(BETWEEN);
        Some((late, at))
    }
}

/// Sends what is queued, unless another call does. It runs in the client's background task.
pub(crate) async fn run(core: Arc<Core>) {
    let Some(_turn) = SendingTurn::begin(&core.reports) else {
        return;
    };
    loop {
        let next = core.reports.queue().next(core.clock.now());
        let Some((late, at)) = next else { return };
        core.clock.sleep_until(at).await;
        let until = core.clock.now().after(ATTEMPT);
        let told = before(&*core.clock, until, core.service.report(late)).await;
        if !matches!(told, Some(Ok(()))) {
            core.reports.queue().dropped += 1;
        }
    }
}

/// Ends also when the runtime drops the task.
struct SendingTurn<'a>(&'a Reports);

impl SendingTurn<'_> {
    fn begin(reports: &Reports) -> Option<SendingTurn<'_>> {
        let was_sending = std::mem::replace(&mut reports.queue().is_sending, true);
        // Not `then_some`: a turn that is made and dropped ends the other one.
        (!was_sending).then(|| SendingTurn(reports))
    }
}

impl Drop for SendingTurn<'_> {
    fn drop(&mut self) {
        self.0.queue().is_sending = false;
        self.0.idle.notify_waiters();
    }
}

/// A fence that was given [`Lease::pass`] calls this when it refuses the token as stale.
impl Reporter for Lease {
    fn late(&self, write: &Late<'_>) {
        let late = late_write(self.lock().clone(), write);
        self.keeper().report(LateWrite {
            authority: Some(self.authority().clone()),
            ..late
        });
    }
}

/// For a service that fences the requests of others. If a request names no lock, its resource is taken to be named after the
/// lock, or after a slot of it ([`slot_key`](crate::slot_key)).
impl Reporter for Client {
    fn late(&self, write: &Late<'_>) {
        let lock = match write.lock {
            // A signed token names its slot as its lock.
            Some(lock) if lock.as_str() != write.resource => Ok(lock.clone()),
            _ => LockName::new(without_slot(write.resource)),
        };
        if let Ok(lock) = lock {
            self.keeper().report(late_write(lock, write));
        }
    }
}

fn late_write(lock: LockName, write: &Late<'_>) -> LateWrite {
    LateWrite {
        authority: write.authority.cloned(),
        lock,
        token: write.token,
        resource: cut(write.resource).into(),
        highest: write.highest,
        operation: cut(write.operation).into(),
    }
}

fn without_slot(name: &str) -> &str {
    match name.rsplit_once('~') {
        Some((lock, slot)) if slot.parse::<u8>().is_ok() => lock,
        _ => name,
    }
}

/// As much of a text as the server takes, and never half a character.
fn cut(text: &str) -> &str {
    &text[..text.floor_char_boundary(MAX_BYTES)]
}

/// More reports than these are dropped.
const MOST: usize = 64;

/// The server takes as many bytes of a resource and of an operation.
const MAX_BYTES: usize = 255;

/// There are at most ten reports a second.
const BETWEEN: Span = Span::from_millis(100);

/// The same report is sent once in this time.
const EQUAL: Span = Span::from_millis(10_000);

const ATTEMPT: Span = Span::from_millis(2_000);

/// How long [`Client::reports_sent`] waits.
const LAST: Span = Span::from_millis(250);

#[cfg(test)]
mod tests {
    use super::*;

    fn late(token: u64) -> LateWrite {
        LateWrite {
            authority: None,
            lock: LockName::new("orders").unwrap(),
            token: Token::new(token).unwrap(),
            resource: "orders".into(),
            highest: Token::MAX,
            operation: "write".into(),
        }
    }

    #[test]
    fn equal_reports_count_once_in_ten_seconds_and_the_queue_is_bounded() {
        let mut queue = ReportQueue::default();
        let now = Timestamp::ZERO.after(Span::from_millis(1));
        assert!(queue.take(late(1), now));
        assert!(!queue.take(late(1), now.after(Span::from_millis(9_999))));
        assert_eq!(queue.dropped, 0);
        for token in 2..=64 {
            assert!(queue.take(late(token), now), "{token}");
        }
        assert!(!queue.take(late(65), now));
        assert_eq!((queue.waiting.len(), queue.dropped), (MOST, 1));
        queue.waiting.clear();
        // The dropped one was not sent, so it may come again.
        assert!(queue.take(late(65), now));
        assert!(queue.take(late(1), now.after(EQUAL)));
        assert_eq!(queue.latest.len(), 1, "the others are forgotten");
    }

    #[test]
    fn reports_keep_a_distance() {
        let mut queue = ReportQueue::default();
        let now = Timestamp::ZERO.after(Span::from_millis(1));
        for token in 1..=3 {
            queue.take(late(token), now);
        }
        let times = std::iter::from_fn(|| queue.next(now)).map(|(_, at)| at.since(now));
        let hundreds = [0, 100, 200].map(Span::from_millis);
        assert_eq!(times.collect::<Vec<_>>(), hundreds);
    }

    #[test]
    fn a_slot_names_its_lock_and_texts_fit() {
        for (name, lock) in [
            ("gpu~3", "gpu"),
            ("a~b", "a~b"),
            ("orders", "orders"),
            ("a~1~2", "a~1"),
        ] {
            assert_eq!(without_slot(name), lock);
        }
        let long = "ü".repeat(300);
        assert_eq!(cut(&long).len(), 254);
        assert_eq!(cut("short"), "short");
    }
}
