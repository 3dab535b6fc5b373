//! The components of the network side, and the construction of each. A handler receives the components that it
//! names.

use std::sync::Arc;

use axum::extract::FromRef;

use super::audit::{Audit, AuditEvent};
use super::budget::SessionBudget;
use super::calls::Calls;
use super::cluster::Cluster;
use super::error::ServeError;
use super::forward::Forwarder;
use super::gate::{Gate, GatedPipeline};
use super::history::History;
use super::issuer::SequencerIssuer;
use super::lease_keys::LeaseKeys;
use super::listening::Listens;
use super::listings::Listings;
use super::metrics::Metrics;
use super::phases::Phases;
use super::ranking::Ranking;
use super::sequencer::Signer;
use super::session::Sessions;
use super::settings::Settings;
use super::shares::Shares;
use super::traces::Traces;
use super::watch::Watches;
use crate::shell::Shell;
use palisade_pipeline::Handle;

/// The components that routes are built from. No component knows all the others.
pub(super) struct Interfaces {
    pub(super) gate: Arc<Gate>,
    /// The pipeline, behind the gate.
    pub(super) pipeline: GatedPipeline,
    pub(super) calls: Arc<Calls>,
    pub(super) sessions: Arc<Sessions>,
    pub(super) watches: Arc<Watches>,
    pub(super) listings: Arc<Listings>,
    listens: Arc<Listens>,
    /// The streams that nothing else bounds.
    pub(super) streams: Arc<Shares>,
    pub(super) forwarder: Arc<Forwarder>,
    pub(super) issuer: Arc<SequencerIssuer>,
    pub(super) traces: Arc<Traces>,
    pub(super) phases: Phases,
    pub(super) history: Arc<History>,
    ranking: Arc<Ranking>,
    metrics: Arc<Metrics>,
    /// `None` for a single server.
    cluster: Option<Arc<dyn Cluster>>,
}

/// The state of the HTTP routes: handlers take single parts of it.
#[derive(Clone)]
pub(super) struct RouteState(pub(super) Arc<Interfaces>);

macro_rules! given {
    ($($part:ident: $kind:ty),+ $(,)?) => {
        $(impl FromRef<RouteState> for $kind {
            fn from_ref(shared: &RouteState) -> $kind {
                shared.0.$part.clone()
            }
        })+
    };
}

given! {
    gate: Arc<Gate>,
    pipeline: GatedPipeline,
    calls: Arc<Calls>,
    watches: Arc<Watches>,
    listens: Arc<Listens>,
    issuer: Arc<SequencerIssuer>,
    traces: Arc<Traces>,
    ranking: Arc<Ranking>,
    history: Arc<History>,
    metrics: Arc<Metrics>,
    cluster: Option<Arc<dyn Cluster>>,
}

impl Interfaces {
    pub(super) fn new(
        handle: Handle,
        cluster: Option<Arc<dyn Cluster>>,
        settings: &Settings,
        shell: &Shell,
    ) -> Result<Interfaces, ServeError> {
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
                    audit.note(&AuditEvent::Restored {
                        authority: identity.authority.as_str(),
                        incarnation: &identity.incarnation,
                        previous,
                    });
                }
            })
        });
        let signer = signer.transpose()?;
        let gate = Arc::new(Gate::new(
            settings.access.as_deref(),
            audit,
            lease_keys,
            settings.wait_shares(),
            handle.clone(),
        )?);
        let history = History::start(settings.history.as_ref(), &handle);
        let history = Arc::new(history.map_err(ServeError::Thread)?);
        let pipeline = GatedPipeline::new(handle);
        let budget = SessionBudget::new(settings.sessions_bytes);
        let phases = Phases::new(shell.phase());
        let calls = Arc::new(Calls::new(
            Arc::clone(&gate),
            pipeline.clone(),
            Arc::clone(&budget),
            cluster.clone(),
        ));
        let listens = Arc::new(Listens::new(
            Arc::clone(&gate),
            pipeline.clone(),
            phases.clone(),
            settings.listen_shares(),
        ));
        let sessions = Arc::new(Sessions::new(
            Arc::clone(&gate),
            pipeline.clone(),
            Arc::clone(&listens),
            Arc::clone(&budget),
            phases.clone(),
            settings,
        ));
        let watches = Arc::new(Watches::new(
            Arc::clone(&gate),
            pipeline.clone(),
            settings.watch_shares(),
            phases.clone(),
        ));
        let forwarder = Forwarder::new(
            settings,
            Arc::clone(&gate),
            pipeline.clone(),
            budget,
            phases.clone(),
        )?;
        let metrics = Metrics::new(
            Arc::clone(&gate),
            pipeline.clone(),
            (sessions.meters(), watches.shares()),
            cluster.clone(),
            Arc::clone(&history),
            shell,
            settings,
        );
        Ok(Interfaces {
            listings: Arc::new(Listings::new(settings)),
            listens,
            streams: settings.stream_shares(),
            forwarder: Arc::new(forwarder),
            issuer: Arc::new(SequencerIssuer::new(Arc::clone(&calls), signer)),
            traces: Arc::default(),
            history,
            ranking: Arc::new(Ranking::new(Arc::clone(&calls))),
            metrics: Arc::new(metrics),
            gate,
            pipeline,
            calls,
            sessions,
            watches,
            phases,
            cluster,
        })
    }
}
