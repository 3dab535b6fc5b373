//! Lanes order the requests at a resource: writes under one token run together; a higher token waits until all
//! of them have ended.
//!
//! A lane is a fair read-write lock. Requests with the token that was admitted last share it. A request with a
//! higher token, or a numbered write, needs it exclusively; while one waits for that, no later request enters.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use palisade_core::Token;
use palisade_core::fence::Sequence;
use tokio::runtime::Handle;
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock, watch};
use tokio::time::timeout;

use crate::http::outcome::WriteEnd;
use crate::name::ResourceId;

/// A lane for every resource that was requested.
#[derive(Debug)]
pub(super) struct Lanes {
    lanes: Mutex<HashMap<ResourceId, Arc<ResourceLane>>>,
    /// Whether the writes of the previous process have ended.
    settled: watch::Receiver<bool>,
}

#[derive(Debug, Default)]
pub(super) struct ResourceLane {
    /// The highest token known to be admitted, 0 before the first. It may be below the mark, never above.
    highest: AtomicU64,
    /// One request at a time waits for exclusive access, so that the others then see the token it has raised.
    turn: tokio::sync::Mutex<()>,
    /// Locked while a write is in progress. The value is the outcome of the last numbered write.
    last: Arc<RwLock<Option<LastWrite>>>,
}

/// The outcome of a numbered write.
#[derive(Clone, Copy, Debug)]
pub(super) struct LastWrite {
    pub(super) token: Token,
    pub(super) sequence: Sequence,
    /// `None` if it is not known.
    pub(super) end: Option<WriteEnd>,
}

/// The permit of a request in a lane; dropping it leaves the lane.
#[derive(Debug)]
pub(super) enum LanePermit {
    Shared(OwnedRwLockReadGuard<Option<LastWrite>>),
    Alone(OwnedRwLockWriteGuard<Option<LastWrite>>),
}

/// The older writes did not end in time.
#[derive(Debug)]
pub(super) struct Busy;

impl Lanes {
    /// Creates lanes that grant no exclusive access before `unsettled` is over; `None` without a Tokio runtime.
    pub(super) fn new(unsettled: Option<Duration>) -> Option<Lanes> {
        let (settle, settled) = watch::channel(unsettled.is_none());
        if let Some(time) = unsettled {
            Handle::try_current().ok()?.spawn(async move {
                tokio::time::sleep(time).await;
                // The lanes may be gone by then.
                let _ = settle.send(true);
            });
        }
        Some(Lanes {
            lanes: Mutex::default(),
            settled,
        })
    }

    pub(super) fn lane(&self, resource: &ResourceId) -> Arc<ResourceLane> {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        match lanes.get(resource) {
            Some(lane) => lane.clone(),
            None => lanes.entry(resource.clone()).or_default().clone(),
        }
    }

    /// Enters a lane: exclusively if `alone` returns true for the highest token, otherwise together with others.
    pub(super) async fn enter(
        &self,
        lane: &ResourceLane,
        wait: Duration,
        alone: impl Fn(Option<Token>) -> bool,
    ) -> Result<LanePermit, Busy> {
        let entering = async {
            if let Some(permit) = lane.share(&alone).await {
                return permit;
            }
            let _turn = lane.turn.lock().await;
            // The previous request in turn may have raised the mark to this same token.
            if let Some(permit) = lane.share(&alone).await {
                return permit;
            }
            // The task that waits for `unsettled` lives as long as the runtime.
            let _ = self.settled.clone().wait_for(|settled| *settled).await;
            LanePermit::Alone(lane.last.clone().write_owned().await)
        };
        timeout(wait, entering).await.map_err(|_| Busy)
    }

    /// Removes the lane of a resource where nothing was admitted, so that refused requests use no memory.
    pub(super) fn forget(&self, resource: &ResourceId) {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        let idle = |lane: &Arc<ResourceLane>| {
            // A permit refers to this lock, but not to the lane.
            Arc::strong_count(lane) == 1
                && Arc::strong_count(&lane.last) == 1
                && lane.highest().is_none()
        };
        if lanes.get(resource).is_some_and(idle) {
            lanes.remove(resource);
        }
    }
}

impl ResourceLane {
    pub(super) fn highest(&self) -> Option<Token> {
        Token::new(self.highest.load(Ordering::Acquire)).ok()
    }

    /// Records a token that was admitted.
    pub(super) fn note(&self, highest: Option<Token>) {
        let highest = highest.map_or(0, Token::get);
        self.highest.fetch_max(highest, Ordering::AcqRel);
    }

    async fn share(&self, alone: impl Fn(Option<Token>) -> bool) -> Option<LanePermit> {
        let guard = self.last.clone().read_owned().await;
        (!alone(self.highest())).then_some(LanePermit::Shared(guard))
    }
}

impl LanePermit {
    /// Returns the outcome of the last numbered write.
    pub(super) fn last(&self) -> Option<LastWrite> {
        match self {
            LanePermit::Shared(last) => **last,
            LanePermit::Alone(last) => **last,
        }
    }

    /// Records the outcome of a numbered write, which has exclusive access.
    pub(super) fn record(&mut self, recorded: Option<LastWrite>) {
        if let (LanePermit::Alone(last), Some(recorded)) = (self, recorded) {
            **last = Some(recorded);
        }
    }

    /// Lets other requests with the same token in.
    pub(super) fn shared(self) -> LanePermit {
        match self {
            LanePermit::Alone(guard) => LanePermit::Shared(guard.downgrade()),
            shared => shared,
        }
    }
}
