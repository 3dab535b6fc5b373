//! The lock server as a service of the shell.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use axum::middleware::from_fn_with_state;
use bytes::Bytes;
use http::request::Parts;
use palisade_proto::{Code, frames};
use tokio::time::timeout;

use super::cluster::Cluster;
use super::convert::Refusal;
use super::error::ServeError;
use super::gate::GatedPipeline;
use super::interfaces::Interfaces;
use super::recorder::TakeoverRecorder;
use super::session::{self, Sessions};
use super::settings::Settings;
use super::{gate, grpc, http as json};
use crate::shell::{ExchangeKind, Listeners, Peer, Service, Shell, Transport};
use palisade_pipeline::{Handle, Stopped};

/// Serves gRPC, HTTP and plain sessions on `listeners` until `shutdown` completes or the pipeline stops. A member of a
/// cluster names it.
///
/// Then the ports are closed, requests in flight finish (waits in a queue, watches and sessions end at once), and the
/// rest is cut after [`drain_timeout`](crate::shell::Settings::drain_timeout). This does not stop the pipeline.
///
/// # Errors
/// [`ServeError::LogFailed`] if the pipeline stopped because its log failed; the others occur before anything is
/// served.
///
/// Not an `async fn`: the code of the server would be generated in each program that serves.
pub fn serve<'a>(
    listeners: Listeners,
    handle: Handle,
    cluster: Option<Arc<dyn Cluster>>,
    settings: Settings,
    shutdown: Shutdown<'a>,
) -> Serving<'a> {
    Box::pin(run(listeners, handle, cluster, settings, shutdown))
}

/// How long the end of the server waits for the pipeline to record that nobody who waits is granted any more.
const RECORD_WAITS: Duration = Duration::from_secs(2);

/// How long a starting server counts for its quotas before it serves.
const FIRST_COUNT: Duration = Duration::from_secs(2);

/// Completes when the server is to stop.
pub type Shutdown<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

/// Completes when the server has stopped.
pub type Serving<'a> = Pin<Box<dyn Future<Output = Result<(), ServeError>> + Send + 'a>>;

async fn run(
    listeners: Listeners,
    handle: Handle,
    cluster: Option<Arc<dyn Cluster>>,
    settings: Settings,
    shutdown: Shutdown<'_>,
) -> Result<(), ServeError> {
    settings.check()?;
    let shell = Shell::new(settings.shell.clone())?;
    let interfaces = Arc::new(Interfaces::new(handle.clone(), cluster, &settings, &shell)?);
    let pipeline = handle.clone();
    let mut recorder = TakeoverRecorder::new(&interfaces.gate, handle);
    let (grpc, health) = grpc::routes(&interfaces)?;
    let router = grpc.merge(json::routes(&interfaces));
    let router = router.layer(from_fn_with_state(
        Arc::clone(&interfaces.gate),
        gate::identify,
    ));
    // If the count takes longer, it continues while the server serves.
    let _ = timeout(FIRST_COUNT, interfaces.gate.count()).await;
    health.serving().await;
    let shutdown = async {
        tokio::select! {
            () = shutdown => {
                // Before any connection ends: a caller that leaves a queue must not pass its turn to one that is about to
                // get `unavailable`. A cluster without a quorum may not be able to record that.
                let _ = timeout(RECORD_WAITS, pipeline.drain()).await;
            }
            () = pipeline_stopped(&interfaces.pipeline) => {}
        }
        health.not_serving().await;
    };
    let serving = shell.serve(
        listeners,
        Arc::clone(&interfaces.sessions),
        router,
        shutdown,
    );
    let reloading = interfaces.gate.keep_reloading(std::future::pending());
    tokio::select! {
        _ = serving => {}
        () = reloading => {}
        () = interfaces.gate.audit().keep_reopening() => {}
        () = interfaces.gate.keep_counting() => {}
        () = recorder.follow() => {}
        () = interfaces.history.follow() => {}
    }
    tokio::join!(recorder.finish(), interfaces.history.finish());
    match &*interfaces.pipeline.stopped().borrow() {
        Some(Stopped::LogFailed(what)) => Err(ServeError::LogFailed(what.clone())),
        Some(Stopped::Broken(why)) => Err(ServeError::Broken(why.clone())),
        Some(Stopped::Asked | Stopped::Deposed) | None => Ok(()),
    }
}

async fn pipeline_stopped(handle: &GatedPipeline) {
    let mut stopped = handle.stopped();
    while stopped.borrow_and_update().is_none() && stopped.changed().await.is_ok() {}
}

impl Service for Sessions {
    const OWN_PROTOCOL: Option<u8> = Some(frames::PREFACE[0]);

    fn exchange(&self, head: &Parts) -> ExchangeKind {
        let path = head.uri.path();
        match path {
            "/palisade.v1.Locks/Session" => ExchangeKind::Session,
            "/palisade.v1.Locks/Watch" | "/grpc.health.v1.Health/Watch" | "/v1/watch" => {
                ExchangeKind::Watch
            }
            _ if path.starts_with("/grpc.reflection.") => ExchangeKind::Session,
            _ => ExchangeKind::Unary,
        }
    }

    fn refuse_own(&self, code: Code, message: String) -> Vec<u8> {
        session::refused(&Refusal::new(code, message))
    }

    /// The first plain sessions run on the pipeline's own thread ([`Settings::sessions_near`]), further ones on other
    /// threads.
    async fn serve_own<T: Transport>(self: Arc<Sessions>, stream: T, read: Bytes, peer: Peer) {
        let read = read.to_vec();
        // If there are access rules to check, other threads do that work, too.
        if !T::MOVES || self.gate.is_closed() || self.gate.audit().is_on() {
            return session::serve(self, stream, read, peer).await;
        }
        if self.meters.sessions_near.fetch_add(1, Relaxed) >= self.near {
            self.meters.sessions_near.fetch_sub(1, Relaxed);
            return session::serve(self, stream, read, peer).await;
        }
        let sessions = Arc::clone(&self);
        if let Ok(attach) = stream.detach() {
            let session = self.pipeline.near(async move {
                // Registered with the runtime of the pipeline's thread.
                match attach() {
                    Ok(stream) => session::serve(sessions, stream, read, peer).await,
                    Err(error) => tracing::warn!(%error, "a session could not start"),
                }
            });
            // An error means that the pipeline's thread is gone, and the connection with it.
            let _ = session.await;
        }
        self.meters.sessions_near.fetch_sub(1, Relaxed);
    }
}
