//! The locks that an operator looks for first: those with the longest queues, and those held for the longest time.
//!
//! ```text
//!   all locks, a page at a time with pauses ─► the first few of each order ─► kept for a while
//! ```
//!
//! The machine sorts locks in neither order, because only people ask for the ranking. So the ranking reads all locks, in
//! bounded pieces that leave most of the ordering thread to other requests. Requests that arrive meanwhile share the result.

use std::sync::Arc;
use std::time::Duration;

use palisade_core::LockView;
use tokio::time::timeout;

use super::calls::Calls;
use super::convert::{Refusal, refusal};
use super::gate::Who;
use super::ranked::{Last, Ranked, now, since};
use palisade_pipeline::clock::wall;
use palisade_pipeline::{Answer, Leading, Request};

/// How many locks are read at a time.
const PAGE: usize = 1_000;

/// The pause after each page.
const PAUSE: Duration = Duration::from_millis(1);

/// How long a caller of [`oldest`] waits for it.
const PATIENCE: Duration = Duration::from_secs(1);

/// Finds these locks, and keeps the last result.
pub(super) struct Ranking {
    calls: Arc<Calls>,
    last: Last,
}

impl Ranking {
    pub(super) fn new(calls: Arc<Calls>) -> Ranking {
        Ranking {
            calls,
            last: Last::default(),
        }
    }

    /// How long the oldest lock has been held, by the wall clock; zero if no lock is held. `None` if this node does not lead,
    /// if the caller may not observe all locks, or while all locks are still being read: a later request gets the value.
    ///
    /// A lock that is not in the last ranking was granted after all of those in it. So as long as one of them is held, only
    /// these are looked at, and all locks are read again only when the last one of them has ended.
    pub(super) async fn oldest(self: &Arc<Ranking>, who: &Who) -> Option<Duration> {
        if self.calls.pipeline.leader() != Leading::Here {
            return None;
        }
        let (ranking, who) = (Arc::clone(self), who.clone());
        // A reading goes on for the next caller when this one has lost its patience.
        let found = tokio::spawn(async move {
            let last = ranking.last.lock().await.clone();
            if let Some(last) = last
                && let Some(held) = ranking.still_held(&who, &last).await?
            {
                return Ok(held);
            }
            let ranked = ranking.ranked(&who).await?;
            Ok::<_, Refusal>(
                ranked
                    .oldest
                    .iter()
                    .filter_map(held)
                    .max()
                    .unwrap_or_default(),
            )
        });
        timeout(PATIENCE, found).await.ok()?.ok()?.ok()
    }

    /// How long the oldest of these locks has been held, if one of them still is.
    async fn still_held(&self, who: &Who, last: &Ranked) -> Result<Option<Duration>, Refusal> {
        let mut oldest = None;
        for lock in &last.oldest {
            let request = Request::Show(lock.lock.clone());
            match self.calls.ask(self.calls.gate.permit(who, request)?).await {
                Answer::Lock(now) if since(&now).is_some() && since(&now) == since(lock) => {
                    oldest = oldest.max(held(&now));
                    // Readers come and go while their token stays; a writer was granted before all that follow.
                    if now.reader_count == 0 {
                        break;
                    }
                }
                Answer::Lock(_) => {}
                other => return Err(refusal(other)),
            }
        }
        Ok(oldest)
    }

    /// The first locks of each order, for a caller that may observe all locks.
    pub(super) async fn ranked(&self, who: &Who) -> Result<Arc<Ranked>, Refusal> {
        self.calls.gate.observe_all(who)?;
        let mut last = self.last.lock().await;
        if let Some(ranked) = last.as_ref().filter(|ranked| ranked.is_fresh()) {
            return Ok(Arc::clone(ranked));
        }
        let mut ranked = Ranked {
            began: now(),
            ended: now(),
            held: 0,
            contended: Vec::new(),
            oldest: Vec::new(),
            longest_wait: None,
        };
        let mut next = Some(0);
        while let Some(cursor) = next {
            let page = Request::List {
                prefix: "".into(),
                cursor,
                limit: PAGE,
            };
            match self.calls.ask(self.calls.gate.permit(who, page)?).await {
                Answer::Locks { locks, next: rest } => {
                    ranked.add(locks);
                    next = rest;
                }
                other => return Err(refusal(other)),
            }
            tokio::time::sleep(PAUSE).await;
        }
        ranked.ended = now();
        Ok(Arc::clone(last.insert(Arc::new(ranked))))
    }
}

/// How long a lock has been held.
fn held(lock: &LockView) -> Option<Duration> {
    lock.holder.as_ref()?;
    Some(wall().since(lock.acquired_at?).to_duration())
}
