//! The state that all request handlers share.

use std::future::pending;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use palisade_core::Wish;
use tokio::sync::{Semaphore, watch};

use super::audit::{Audit, Event};
use super::budget::{Budget, OPERATION_BYTES, Share};
use super::cluster::Cluster;
use super::error::ServeError;
use super::forward::Forwarder;
use super::gate::{Gate, Permitted, Pipeline};
use super::lease_keys::LeaseKeys;
use super::ranked::Ranking;
use super::sequencer::Signer;
use super::settings::Settings;
use super::shares::Shares;
use super::traces::Traces;
use super::watch::Feed;
use crate::shell::{self, Phase, Shell};
use palisade_pipeline::{Answer, Failure, Handle, Request};

/// Access to the pipeline, the bounds in force, and whether the server is shutting down.
pub(super) struct App {
    /// The pipeline, behind the gate.
    pub(super) handle: Pipeline,
    pub(super) gate: Gate,
    /// `None` for a server without a file of keys.
    pub(super) signer: Option<Signer>,
    /// `None` for a single server.
    pub(super) cluster: Option<Arc<dyn Cluster>>,
    pub(super) settings: Settings,
    pub(super) meters: Meters,
    /// The memory for operations in flight of sessions and waiting calls.
    pub(super) budget: Arc<Budget>,
    /// Slots for listings that are being made or read.
    pub(super) listings: Arc<Semaphore>,
    /// The locks that an operator looks for first.
    pub(super) ranking: Ranking,
    /// The traces in which locks were granted.
    pub(super) traces: Traces,
    /// The way to the node that leads, if this one does not.
    pub(super) forwarder: Forwarder,
    /// The feed of the watchers, and how many there are.
    pub(super) feed: Feed,
    pub(super) watches: Arc<Shares>,
    /// The shell's counters, and how many connections may be open.
    pub(super) shell: Arc<shell::Meters>,
    pub(super) connections: u32,
    phase: watch::Receiver<Phase>,
}

/// Counters of sessions.
#[derive(Debug, Default)]
pub(super) struct Meters {
    pub(super) sessions: AtomicU64,
    pub(super) sessions_near: AtomicU64,
    pub(super) sessions_opened: AtomicU64,
}

impl App {
    pub(super) fn new(
        handle: Handle,
        cluster: Option<Arc<dyn Cluster>>,
        settings: Settings,
        shell: &Shell,
    ) -> Result<App, ServeError> {
        let audit = Audit::open(settings.audit.as_deref());
        let audit = audit.map_err(|source| ServeError::Audit {
            file: settings.audit.clone().unwrap_or_default(),
            source,
        })?;
        let keys = settings.sequencer_keys.as_deref();
        let secret = settings.cluster_secret.as_ref();
        let lease_keys = LeaseKeys::open(settings.lease_keys.as_deref(), secret);
        let lease_keys = lease_keys.map_err(|source| ServeError::LeaseKeys {
            file: settings.lease_keys.clone().unwrap_or_default(),
            source,
        })?;
        let identity = handle.identity();
        let signer = keys.map(|file| {
            Signer::open(file, identity, secret, |previous| {
                // A backup has no keys: a directory that has none, and is not new, was restored. A node of a cluster
                // may have just joined.
                let restored = previous.is_some() || handle.revision() > 0;
                if restored && secret.is_none() {
                    audit.note(&Event::Restored {
                        authority: identity.authority.as_str(),
                        incarnation: &identity.incarnation,
                        previous,
                    });
                }
            })
        });
        Ok(App {
            meters: Meters::default(),
            budget: Budget::new(settings.sessions_bytes),
            listings: Arc::new(Semaphore::new(
                settings.listings.min(Semaphore::MAX_PERMITS),
            )),
            ranking: Ranking::default(),
            traces: Traces::default(),
            forwarder: Forwarder::new(&settings)?,
            feed: Feed::default(),
            watches: settings.watch_shares(),
            signer: signer.transpose()?,
            gate: Gate::new(
                settings.access.as_deref(),
                audit,
                lease_keys,
                settings.wait_shares(),
                handle.clone(),
            )?,
            handle: Pipeline::new(handle),
            cluster,
            settings,
            shell: shell.meters(),
            connections: shell.connections(),
            phase: shell.phase(),
        })
    }

    /// Sends one request to the pipeline, which ends a wait in a queue when the server shuts down.
    pub(super) async fn ask(&self, request: Permitted) -> Answer {
        let Request::Acquire(Wish {
            wait: Some(_),
            request: name,
            also,
            ..
        }) = request.request()
        else {
            return self.handle.call(&self.gate, request).await;
        };
        let named = name.is_some();
        let Some(_place) = Share::of(&self.budget, (1 + also.len()) * OPERATION_BYTES) else {
            let why = "the server's memory for requests in flight is used up; nothing happened";
            return Answer::Failed(Failure::Unavailable(why.into()));
        };
        let through = request.through();
        tokio::select! {
            // An answer that is there is given.
            biased;
            answer = self.handle.call(&self.gate, request) => answer,
            // A grant would reach nobody, and keep others waiting until its lease ends.
            () = self.loses(through) => {
                Answer::Failed(given_up(named, "the node that sent the request on is cut off; the wait is over"))
            }
        }
    }

    /// Waits until this node loses the one that sent a request on.
    async fn loses(&self, through: Option<Arc<str>>) {
        match (&self.cluster, through) {
            (Some(cluster), Some(url)) => cluster.loses(url).await,
            _ => pending().await,
        }
    }

    /// Waits until the server shuts down.
    pub(super) fn draining(&self) -> impl Future<Output = ()> + Send + 'static {
        let mut phase = self.phase.clone();
        async move {
            // An error means that the server is gone.
            let _ = phase.wait_for(|phase| *phase != Phase::Serving).await;
        }
    }

    pub(super) fn phase(&self) -> watch::Receiver<Phase> {
        self.phase.clone()
    }
}

/// The answer for a wait that the server cut short. A request without an id leaves nothing behind when its future is
/// dropped; a request with an id may have been granted just then, for its retry.
fn given_up(named: bool, why: &str) -> Failure {
    let message = why.to_owned();
    if named {
        Failure::UnknownOutcome(message)
    } else {
        Failure::Unavailable(message)
    }
}
