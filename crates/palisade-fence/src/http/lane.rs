//! Who may be under way at a resource: writes of one token together, a higher token only when all of
//! them have ended.
//!
//! A lane is a fair read-write lock. Whoever has the token that was admitted last shares it; whoever
//! brings a higher one, or a numbered write, wants it alone. While one waits for that, nobody enters
//! behind it.

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use palisade_core::Token;
use palisade_core::fence::Sequence;
use tokio::runtime::Handle;
use tokio::sync::{OwnedRwLockReadGuard, OwnedRwLockWriteGuard, RwLock, watch};
use tokio::time::timeout;

use crate::http::flight::End;
use crate::name::ResourceId;

/// A lane for every resource that was asked for.
#[derive(Debug)]
pub(super) struct Lanes {
    lanes: Mutex<HashMap<ResourceId, Arc<Lane>>>,
    /// Whether writes of the process before this one have ended.
    settled: watch::Receiver<bool>,
}

#[derive(Debug, Default)]
pub(super) struct Lane {
    /// The highest token seen admitted, 0 before the first. It may be behind the mark, never ahead.
    highest: AtomicU64,
    /// One at a time asks to be alone, so that the others see what it has raised.
    turn: tokio::sync::Mutex<()>,
    /// Held as long as a write is under way. The value is what became of the last numbered write.
    room: Arc<RwLock<Option<Recorded>>>,
}

/// What became of a numbered write.
#[derive(Clone, Copy, Debug)]
pub(super) struct Recorded {
    pub(super) token: Token,
    pub(super) sequence: Sequence,
    /// `None`: it is not known.
    pub(super) end: Option<End>,
}

/// A place in a lane; dropping it leaves.
#[derive(Debug)]
pub(super) enum Place {
    Shared(OwnedRwLockReadGuard<Option<Recorded>>),
    Alone(OwnedRwLockWriteGuard<Option<Recorded>>),
}

/// The older writes did not end in time.
#[derive(Debug)]
pub(super) struct Busy;

impl Lanes {
    /// Lanes where nobody is alone before `unsettled` is over; `None` without a runtime to wait in.
    pub(super) fn new(unsettled: Option<Duration>) -> Option<Lanes> {
        let (settle, settled) = watch::channel(unsettled.is_none());
        if let Some(time) = unsettled {
            Handle::try_current().ok()?.spawn(async move {
                tokio::time::sleep(time).await;
                // Everybody may have gone by then.
                let _ = settle.send(true);
            });
        }
        Some(Lanes {
            lanes: Mutex::default(),
            settled,
        })
    }

    pub(super) fn lane(&self, resource: &ResourceId) -> Arc<Lane> {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        match lanes.get(resource) {
            Some(lane) => lane.clone(),
            None => lanes.entry(resource.clone()).or_default().clone(),
        }
    }

    /// Enters: alone where `alone` says so about the highest token, otherwise beside the others.
    pub(super) async fn enter(
        &self,
        lane: &Lane,
        wait: Duration,
        alone: impl Fn(Option<Token>) -> bool,
    ) -> Result<Place, Busy> {
        let entering = async {
            if let Some(place) = lane.share(&alone).await {
                return place;
            }
            let _turn = lane.turn.lock().await;
            // Whoever had the turn before may have raised it to the very same token.
            if let Some(place) = lane.share(&alone).await {
                return place;
            }
            // The task that settles lives as long as the runtime does.
            let _ = self.settled.clone().wait_for(|settled| *settled).await;
            Place::Alone(lane.room.clone().write_owned().await)
        };
        timeout(wait, entering).await.map_err(|_| Busy)
    }

    /// Forgets a resource where nothing was admitted, so that refused requests leave nothing behind.
    pub(super) fn forget(&self, resource: &ResourceId) {
        let mut lanes = self.lanes.lock().unwrap_or_else(PoisonError::into_inner);
        let idle = |lane: &Arc<Lane>| {
            // A place holds the room without the lane.
            Arc::strong_count(lane) == 1
                && Arc::strong_count(&lane.room) == 1
                && lane.highest().is_none()
        };
        if lanes.get(resource).is_some_and(idle) {
            lanes.remove(resource);
        }
    }
}

impl Lane {
    pub(super) fn highest(&self) -> Option<Token> {
        Token::new(self.highest.load(Ordering::Acquire)).ok()
    }

    /// Notes a token that was admitted.
    pub(super) fn note(&self, highest: Option<Token>) {
        let highest = highest.map_or(0, Token::get);
        self.highest.fetch_max(highest, Ordering::AcqRel);
    }

    async fn share(&self, alone: impl Fn(Option<Token>) -> bool) -> Option<Place> {
        let guard = self.room.clone().read_owned().await;
        (!alone(self.highest())).then_some(Place::Shared(guard))
    }
}

impl Place {
    /// What became of the last numbered write.
    pub(super) fn last(&self) -> Option<Recorded> {
        match self {
            Place::Shared(last) => **last,
            Place::Alone(last) => **last,
        }
    }

    /// Notes what became of a numbered write. It was alone.
    pub(super) fn record(&mut self, recorded: Option<Recorded>) {
        if let (Place::Alone(last), Some(recorded)) = (self, recorded) {
            **last = Some(recorded);
        }
    }

    /// Lets others of the same token in.
    pub(super) fn shared(self) -> Place {
        match self {
            Place::Alone(guard) => Place::Shared(guard.downgrade()),
            shared => shared,
        }
    }
}
