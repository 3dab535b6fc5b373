//! What every request handler shares.

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use palisade_core::Wish;
use tokio::sync::{Semaphore, watch};

use super::budget::{Budget, Share};
use super::session::OPERATION_BYTES;
use super::settings::Settings;
use super::watch::Feed;
use crate::pipeline::{Answer, Failure, Handle, Request};
use crate::shell::{self, Phase, Shell};

/// The way to the pipeline, the bounds in force, and whether the server is going down.
pub(super) struct App {
    pub(super) handle: Handle,
    pub(super) settings: Settings,
    pub(super) meters: Meters,
    /// Memory for what sessions and waiting calls have in flight.
    pub(super) budget: Arc<Budget>,
    /// Places for listings that are being made or read.
    pub(super) listings: Arc<Semaphore>,
    /// What watchers are told.
    pub(super) feed: Feed,
    /// The counters of its connections, and how many may be open.
    pub(super) shell: Arc<shell::Meters>,
    pub(super) connections: u32,
    phase: watch::Receiver<Phase>,
}

/// Counters of sessions and watches.
#[derive(Debug, Default)]
pub(super) struct Meters {
    pub(super) sessions: AtomicU64,
    pub(super) sessions_near: AtomicU64,
    pub(super) sessions_opened: AtomicU64,
    pub(super) watchers: AtomicU64,
}

impl App {
    pub(super) fn new(handle: Handle, settings: Settings, shell: &Shell) -> App {
        App {
            meters: Meters::default(),
            budget: Budget::new(settings.sessions_bytes),
            listings: Arc::new(Semaphore::new(
                settings.listings.min(Semaphore::MAX_PERMITS),
            )),
            feed: Feed::default(),
            handle,
            settings,
            shell: shell.meters(),
            connections: shell.connections(),
            phase: shell.phase(),
        }
    }

    /// Asks the pipeline one question. A wait in a queue ends when the server goes down.
    pub(super) async fn ask(&self, request: Request) -> Answer {
        let Request::Acquire(Wish {
            wait: Some(_),
            request: name,
            ..
        }) = &request
        else {
            return self.handle.call(request).await;
        };
        let named = name.is_some();
        let Some(_place) = Share::of(&self.budget, OPERATION_BYTES) else {
            let why = "the server's memory for requests in flight is used up; nothing happened";
            return Answer::Failed(Failure::Unavailable(why.into()));
        };
        tokio::select! {
            answer = self.handle.call(request) => answer,
            () = self.draining() => Answer::Failed(given_up(named)),
        }
    }

    /// Waits until the server goes down.
    pub(super) fn draining(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut phase = self.phase.clone();
        async move {
            // An error means that the server is gone altogether.
            let _ = phase.wait_for(|phase| *phase != Phase::Serving).await;
        }
    }

    pub(super) fn phase(&self) -> watch::Receiver<Phase> {
        self.phase.clone()
    }
}

/// A wait that the server cut short. A request without a name of its own leaves nothing behind when
/// its future is dropped; one with a name may have been granted in that moment, for its retry.
fn given_up(named: bool) -> Failure {
    let message = "the server is stopping; the wait is over".to_owned();
    if named {
        Failure::UnknownOutcome(message)
    } else {
        Failure::Unavailable(message)
    }
}
