//! The locks that an operator looks for first: those with the longest queues, and those held for the longest time.
//!
//! ```text
//!   all locks, a page at a time with pauses ─► the first few of each order ─► kept for a while
//! ```
//!
//! The machine keeps locks in neither order, because only people ask for it. So all of them are read, in bounded
//! pieces that leave most of the ordering thread to others, and whoever asks meanwhile gets the same result.

use std::cmp::Reverse;
use std::sync::Arc;
use std::time::Duration;

use palisade_core::{LockView, Token};
use tokio::sync::Mutex;

use super::app::App;
use super::convert::{Refusal, refusal};
use super::gate::Who;
use crate::pipeline::clock::boottime;
use crate::pipeline::{Answer, Request};

/// How many locks are listed in each order.
const LISTED: usize = 50;

/// How many locks are read at a time.
const PAGE: usize = 1_000;

/// The pause after each page.
const PAUSE: Duration = Duration::from_millis(1);

/// How long a result is kept at least.
const KEPT: Duration = Duration::from_secs(1);

/// And at least this many times as long as it took to make, so that reading all locks takes a fifth of the time.
const REST: u32 = 4;

/// The first locks of each order, as they were a moment ago.
pub(super) struct Ranked {
    /// The machine's time when the first lock was read, and when the last one had been.
    began: Duration,
    ended: Duration,
    /// How many locks are held.
    pub(super) held: u64,
    /// Those with the most waiting requests. Locks without any are left out.
    pub(super) contended: Vec<LockView>,
    /// Those that were granted first.
    pub(super) oldest: Vec<LockView>,
}

impl Ranked {
    /// How long ago the first of the locks was read.
    pub(super) fn age(&self) -> Duration {
        now().saturating_sub(self.began)
    }

    fn is_fresh(&self) -> bool {
        let took = self.ended.saturating_sub(self.began);
        now().saturating_sub(self.ended) < KEPT.max(took * REST)
    }

    fn add(&mut self, page: Vec<LockView>) {
        self.held += page.len() as u64;
        self.contended
            .extend(page.iter().filter(|lock| lock.waiters > 0).cloned());
        self.contended
            .sort_by_key(|lock| (Reverse(lock.waiters), since(lock)));
        self.contended.truncate(LISTED);
        self.oldest.extend(page);
        self.oldest.sort_by_key(since);
        self.oldest.truncate(LISTED);
    }
}

/// Tokens rise with every grant, and no clock has a say in that.
fn since(lock: &LockView) -> Option<Token> {
    lock.holder.as_ref().map(|holder| holder.token)
}

fn now() -> Duration {
    Duration::from_nanos(boottime())
}

/// The last result, which is made by one caller at a time.
pub(super) type Ranking = Mutex<Option<Arc<Ranked>>>;

/// The first locks of each order, for a caller that may observe all locks.
pub(super) async fn ranked(app: &App, who: &Who) -> Result<Arc<Ranked>, Refusal> {
    app.gate.observe_all(who)?;
    let mut last = app.ranking.lock().await;
    if let Some(ranked) = last.as_ref().filter(|ranked| ranked.is_fresh()) {
        return Ok(Arc::clone(ranked));
    }
    let mut ranked = Ranked {
        began: now(),
        ended: now(),
        held: 0,
        contended: Vec::new(),
        oldest: Vec::new(),
    };
    let mut next = Some(0);
    while let Some(cursor) = next {
        let page = Request::List {
            prefix: "".into(),
            cursor,
            limit: PAGE,
        };
        match app.ask(app.gate.permit(who, page)?).await {
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
