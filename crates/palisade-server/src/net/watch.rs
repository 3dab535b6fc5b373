//! The feed of changes for both kinds of watch, gRPC and SSE.
//!
//! ```text
//!   pipeline ──► ring of recent events ──► one task ──┬─► prefix a/, revision 9 ─► queue · queue · queue
//!                                             ▲       ├─► prefix a/, revision 4 ─► queue
//!                                             │       └─► prefix    , revision 9 ─► queue · queue
//!                                             └─ watchers that are new, or have room again
//! ```
//!
//! One task serves all [`Watchers`], off the ordering thread. Watchers with the same prefix at the same revision get the
//! same batch, which is made and encoded once. A watcher whose queue is full costs nothing until it reads again; then
//! it gets the changes that are still in the ring and the number of those that are not. No watcher is dropped for being
//! slow.

use std::pin::{Pin, pin};
use std::sync::{Arc, Mutex, PoisonError};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_core::Stream;
use palisade_proto::Code;
use tokio::sync::mpsc;
use tokio::time::MissedTickBehavior;

use super::convert::Refusal;
use super::gate::{Gate, GatedPipeline, ObservableLocks};
use super::notice::NoticeBatch;
use super::phases::Phases;
use super::shares::{ShareFull, SharePart, Shares};
use super::watchers::{QUEUE, WatchPosition, Watcher, Watchers};
use palisade_pipeline::Leading;

/// All watches: how many there may be, and the task that serves them.
pub(super) struct Watches {
    gate: Arc<Gate>,
    pipeline: GatedPipeline,
    shares: Arc<Shares>,
    phases: Phases,
    /// The sender to the task. The first watcher starts it.
    feed: Mutex<Option<mpsc::UnboundedSender<(WatchPosition, Watcher)>>>,
}

impl Watches {
    pub(super) fn new(
        gate: Arc<Gate>,
        pipeline: GatedPipeline,
        shares: Arc<Shares>,
        phases: Phases,
    ) -> Watches {
        Watches {
            gate,
            pipeline,
            shares,
            phases,
            feed: Mutex::default(),
        }
    }

    /// How many are open, and how many were refused.
    pub(super) fn shares(&self) -> Arc<Shares> {
        Arc::clone(&self.shares)
    }

    /// Starts a watch. It ends when the returned stream is dropped, or when the server shuts down.
    ///
    /// The watcher sees every change made after this returns. A watcher that reconnects first gets the changes that it
    /// missed, as far as they are still known. `after` is the last change that it has seen, if it names one.
    ///
    /// # Errors
    /// If it names a revision that this authority, or this node of it, has not reached, or if too many watches are open.
    pub(super) fn watch(
        self: &Arc<Watches>,
        observed: ObservableLocks,
        after: Option<u64>,
    ) -> Result<Batches, Refusal> {
        let latest = self.pipeline.revision();
        let position = after.unwrap_or(latest);
        if position > latest {
            // A node that follows may still be a step behind the one that reported the revision.
            if let Leading::At(_) | Leading::Nowhere = self.pipeline.leader() {
                return Err(Refusal::new(
                    Code::Unavailable,
                    format!(
                        "this node has not reached revision {position} yet; try again, or ask another node"
                    ),
                ));
            }
            return Err(Refusal::invalid(format!(
                "revision {position} is in the future: this authority's latest is {latest} and never goes back, \
             so it came from another authority. List the locks again, and watch without a revision"
            )));
        }
        let slot = self.shares.take(observed.origin(), 1);
        let slot = slot.map_err(ShareFull::of_watches)?;
        let (sender, batches) = mpsc::channel(QUEUE);
        self.join((position, observed.prefixes()), sender);
        Ok(Batches {
            batches,
            observed,
            gate: Arc::clone(&self.gate),
            _slot: slot,
        })
    }

    fn join(self: &Arc<Watches>, position: WatchPosition, watcher: Watcher) {
        let mut task = self.feed.lock().unwrap_or_else(PoisonError::into_inner);
        let joining = match &*task {
            Some(task) => match task.send((position, watcher)) {
                Ok(()) => return,
                Err(refused) => refused.0,
            },
            None => (position, watcher),
        };
        let (sender, joined) = mpsc::unbounded_channel();
        let _ = sender.send(joining);
        *task = Some(sender);
        tokio::spawn(feed(Arc::clone(self), joined));
    }
}

/// The batches of one watcher.
pub(super) struct Batches {
    batches: mpsc::Receiver<Arc<NoticeBatch>>,
    observed: ObservableLocks,
    gate: Arc<Gate>,
    _slot: SharePart,
}

impl Stream for Batches {
    type Item = Arc<NoticeBatch>;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Arc<NoticeBatch>>> {
        let batch = ready!(self.batches.poll_recv(cx));
        // New rules under which it would show other locks end a watch. A watcher that reconnects misses nothing.
        let granted = self.gate.still_observes(&self.observed);
        Poll::Ready(batch.filter(|_| granted))
    }
}

async fn feed(
    watches: Arc<Watches>,
    mut joined: mpsc::UnboundedReceiver<(WatchPosition, Watcher)>,
) {
    let mut news = watches.pipeline.news();
    let mut watchers = Watchers::default();
    let mut draining = pin!(watches.phases.draining());
    let mut sweep = tokio::time::interval(SWEEP_INTERVAL);
    let mut poll = tokio::time::interval(POLL_INTERVAL);
    poll.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            () = &mut draining => return,
            changed = news.changed() => if changed.is_err() {
                return;
            },
            Some((position, watcher)) = joined.recv() => watchers.join(position, vec![watcher]),
            _ = sweep.tick() => watchers.sweep(),
            _ = poll.tick(), if watchers.some_are_full() => watchers.look_at_full(),
        }
        while let Ok((position, watcher)) = joined.try_recv() {
            watchers.join(position, vec![watcher]);
        }
        while watchers.send_round(|revision| watches.pipeline.since(revision)) {
            tokio::task::yield_now().await;
        }
        // Under load, one round serves many batches; with many watchers there are fewer rounds, so that serving them
        // does not starve the holders of locks.
        let sent = u32::try_from(watchers.take_sent()).unwrap_or(u32::MAX);
        tokio::time::sleep(
            (ROUND_PAUSE + PAUSE_PER_WATCHER.saturating_mul(sent)).min(POLL_INTERVAL),
        )
        .await;
    }
}

/// How often to check whether a slow watcher reads again, and whether one is gone.
const POLL_INTERVAL: Duration = Duration::from_millis(20);
const SWEEP_INTERVAL: Duration = Duration::from_secs(1);

/// The pause between two rounds, and an addition for each watcher that got a batch.
const ROUND_PAUSE: Duration = Duration::from_millis(1);
const PAUSE_PER_WATCHER: Duration = Duration::from_micros(20);
