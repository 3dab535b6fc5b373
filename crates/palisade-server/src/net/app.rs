//! What every request handler shares.

use std::sync::atomic::AtomicU64;

use tokio::sync::watch;

use super::settings::Settings;
use crate::pipeline::{Acquire, Answer, Failure, Handle, Request};

/// The way to the pipeline, the bounds in force, and whether the server is going down.
pub(super) struct App {
    pub(super) handle: Handle,
    pub(super) settings: Settings,
    pub(super) meters: Meters,
    phase: watch::Receiver<Phase>,
}

/// Where the server is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Phase {
    /// Taking requests.
    Serving,
    /// Finishing what is in flight.
    Draining,
    /// Out of patience: every connection is dropped.
    Cutting,
}

/// Counters of the network side.
#[derive(Debug, Default)]
pub(super) struct Meters {
    pub(super) connections_accepted: AtomicU64,
    pub(super) connections_refused: AtomicU64,
    pub(super) connections_open: AtomicU64,
    pub(super) requests: AtomicU64,
    pub(super) sessions: AtomicU64,
    pub(super) sessions_near: AtomicU64,
    pub(super) sessions_opened: AtomicU64,
    pub(super) watchers: AtomicU64,
}

impl App {
    pub(super) fn new(handle: Handle, settings: Settings, phase: watch::Receiver<Phase>) -> App {
        App {
            handle,
            settings,
            meters: Meters::default(),
            phase,
        }
    }

    /// Asks the pipeline one question. A wait in a queue ends when the server goes down.
    pub(super) async fn ask(&self, request: Request) -> Answer {
        let Request::Acquire(Acquire {
            wait: Some(_),
            request: name,
            ..
        }) = &request
        else {
            return self.handle.call(request).await;
        };
        let named = name.is_some();
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
