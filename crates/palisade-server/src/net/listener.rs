//! Accepts connections, up to a bound, and ends them in order.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;
use std::{io, pin};

use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};

use super::app::{App, Phase};
use super::connection::Connections;
use super::settings::{OutOfRange, Settings};
use super::{grpc, http};
use crate::pipeline::{Handle, Stopped};

/// Why a server ended other than by being asked.
#[derive(Debug, thiserror::Error)]
pub enum ServeError {
    /// The log failed, so nothing more is acknowledged; says what failed.
    #[error("the log failed, nothing more is acknowledged: {0}")]
    LogFailed(String),
    /// The settings cannot be served with.
    #[error(transparent)]
    Settings(#[from] OutOfRange),
    /// The gRPC reflection service could not be built from the descriptor: a defect.
    #[error("the gRPC descriptor is unusable: {0}")]
    Descriptor(String),
}

/// Serves gRPC and HTTP on `listener` until `shutdown` is done or the pipeline stops.
///
/// Then the port is closed, requests in flight finish (waits in a queue end at once), and what is
/// left after [`Settings::drain_timeout`] is cut. The pipeline is left as it is.
///
/// # Errors
/// [`ServeError::LogFailed`] if the pipeline stopped because its log failed; the others before
/// anything is served.
pub async fn serve(
    listener: TcpListener,
    handle: Handle,
    settings: Settings,
    shutdown: impl Future<Output = ()>,
) -> Result<(), ServeError> {
    settings.check()?;
    let (phase, watcher) = watch::channel(Phase::Serving);
    let app = Arc::new(App::new(handle, settings, watcher));
    let (grpc, health) = grpc::routes(&app)?;
    let connections = Connections::new(Arc::clone(&app), grpc.merge(http::routes(&app)));
    let slots = Arc::new(Semaphore::new(app.settings.connections as usize));
    health.serving().await;

    accept_until(&listener, &app, &connections, &slots, shutdown).await;

    drop(listener);
    health.not_serving().await;
    drain(&phase, &slots, &app.settings).await;
    match &*app.handle.stopped().borrow() {
        Some(Stopped::LogFailed(what)) => Err(ServeError::LogFailed(what.clone())),
        Some(Stopped::Asked) | None => Ok(()),
    }
}

async fn accept_until(
    listener: &TcpListener,
    app: &App,
    connections: &Connections,
    slots: &Arc<Semaphore>,
    shutdown: impl Future<Output = ()>,
) {
    let mut shutdown = pin::pin!(shutdown);
    let mut stopped = pin::pin!(pipeline_stopped(&app.handle));
    loop {
        tokio::select! {
            () = &mut shutdown => return,
            () = &mut stopped => return,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => admit(stream, app, connections, slots),
                Err(error) => pause(&error).await,
            },
        }
    }
}

async fn pipeline_stopped(handle: &Handle) {
    let mut stopped = handle.stopped();
    while stopped.borrow_and_update().is_none() && stopped.changed().await.is_ok() {}
}

/// Takes a connection in, or closes it at once: a client that is told so tries elsewhere, one that
/// hangs in the backlog does not.
fn admit(stream: TcpStream, app: &App, connections: &Connections, slots: &Arc<Semaphore>) {
    let Ok(slot) = Arc::clone(slots).try_acquire_owned() else {
        app.meters.connections_refused.fetch_add(1, Relaxed);
        tracing::debug!(
            most = app.settings.connections,
            "connection refused: too many are open"
        );
        return;
    };
    app.meters.connections_accepted.fetch_add(1, Relaxed);
    app.meters.connections_open.fetch_add(1, Relaxed);
    let serving = connections.serve(stream);
    let slot = Slot {
        app: Arc::clone(connections.app()),
        _permit: slot,
    };
    tokio::spawn(async move {
        serving.await;
        drop(slot);
    });
}

/// A place among the open connections.
struct Slot {
    app: Arc<App>,
    _permit: OwnedSemaphorePermit,
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.app.meters.connections_open.fetch_sub(1, Relaxed);
    }
}

/// Accepting fails for one connection (it is gone already) or for want of file descriptors. Neither
/// ends the server; the pause keeps the second from turning into a busy loop.
async fn pause(error: &io::Error) {
    tracing::debug!(%error, "could not accept a connection");
    if !matches!(
        error.kind(),
        io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionReset
    ) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

/// Waits until every connection has given its place back; cuts those that take too long.
async fn drain(phase: &watch::Sender<Phase>, slots: &Semaphore, settings: &Settings) {
    let all = slots.acquire_many(settings.connections);
    let mut all = pin::pin!(all);
    phase.send_replace(Phase::Draining);
    if tokio::time::timeout(settings.drain_timeout, &mut all)
        .await
        .is_err()
    {
        phase.send_replace(Phase::Cutting);
        let _ = all.await;
    }
}
