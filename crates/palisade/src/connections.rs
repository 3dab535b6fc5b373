//! Accepts connections, up to a bound, and ends them in order.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, watch};
use tokio::task::JoinSet;

/// What connections may take.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// How long the head of a request may take, and how long a connection may idle.
    pub(crate) head_timeout: Duration,
    /// Connections at a time; more wait to be accepted.
    pub(crate) connections: usize,
    /// How long requests in flight have at shutdown.
    pub(crate) drain: Duration,
}

impl Bounds {
    /// 30 s for a head, 4,096 connections, 10 s to finish.
    pub(crate) const DEFAULT: Bounds = Bounds {
        head_timeout: Duration::from_secs(30),
        connections: 4_096,
        drain: Duration::from_secs(10),
    };
}

/// Serves until `shutdown`; then no connection is accepted, and those there are may finish the request
/// they are in. Says whether all of them did.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    bounds: Bounds,
    shutdown: impl Future<Output = ()>,
) -> bool {
    let (stop, stopping) = watch::channel(false);
    let room = Arc::new(Semaphore::new(bounds.connections));
    let mut shutdown = pin!(shutdown);
    let mut connections = JoinSet::new();
    loop {
        let (stream, permit) = tokio::select! {
            () = &mut shutdown => break,
            accepted = accept(&listener, &room) => accepted,
            Some(_) = connections.join_next() => continue,
        };
        let connection = connection(stream, router.clone(), bounds, stopping.clone());
        connections.spawn(async move {
            connection.await;
            drop(permit);
        });
    }
    drop(listener);
    let _ = stop.send(true);
    let all = async { while connections.join_next().await.is_some() {} };
    // What is left then is cut off when the set is dropped.
    tokio::time::timeout(bounds.drain, all).await.is_ok()
}

/// The next connection, once there is room for it.
async fn accept(
    listener: &TcpListener,
    room: &Arc<Semaphore>,
) -> (TcpStream, Option<OwnedSemaphorePermit>) {
    // Never closed, so there is always a permit in the end.
    let permit = room.clone().acquire_owned().await.ok();
    loop {
        match listener.accept().await {
            Ok((stream, _)) => return (stream, permit),
            Err(error) => {
                // Out of descriptors, mostly: they come back when a connection ends.
                tracing::warn!(%error, "no connection accepted");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

/// One connection to its end.
async fn connection(
    stream: TcpStream,
    router: Router,
    bounds: Bounds,
    mut stopping: watch::Receiver<bool>,
) {
    // Small answers: waiting to fill a segment would cost 40 ms each.
    let _ = stream.set_nodelay(true);
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(bounds.head_timeout)
            .max_buf_size(HEAD_BYTES)
            .serve_connection(TokioIo::new(stream), TowerToHyperService::new(router))
    );
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        _ = stopping.changed() => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        tracing::debug!(%error, "connection ended");
    }
}

/// Longest head of a request, and the piece in which bodies are read.
const HEAD_BYTES: usize = 16 << 10;
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
