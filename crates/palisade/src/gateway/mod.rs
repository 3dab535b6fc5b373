//! `palisade gateway`: a reverse proxy that fences an HTTP API without touching its code.
//!
//! ```text
//!   client ──► connections ──► FenceLayer ──► Forward ──► upstream
//!                                  │             headers of the hop removed, bodies streamed both ways,
//!                                  │             nothing waits for ever
//!                                  └► DIR/marks: the store of `palisade store`, marks only
//!   operator ──► admin, on a port of its own: /healthz, /metrics, /v1/fences
//! ```
//!
//! What is promised about late writes, and on which bounds, stands in [`palisade_fence::http`]. Here its
//! parts are: a connection to the upstream that could not be made is 502 `unavailable`, nothing was sent;
//! one that broke off is 502 `unknown_outcome`, an answer that did not come in time 504
//! `unknown_outcome`. After those two, and after a crash, a higher token waits for `--settle`.
//!
//! | code of its own | status | meaning |
//! |---|---|---|
//! | as `palisade store` | | what the fence rejects, what is wrong with a header |
//! | `no_route` | 404 | a write where no route says what is fenced |
//! | `unavailable` | 502, 503 | nothing was sent: no upstream, or older writes did not end |
//! | `unknown_outcome` | 502, 504 | it was sent and may have happened |

mod admin;
mod folder;
mod forward;
mod headers;

use std::future::Future;

use axum::Router;
use palisade_fence::http::{FenceLayer, Policy, Routes};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tower_layer::Layer as _;

use crate::connections::{self, Bounds};

pub(crate) use folder::{Folder, marks};
pub(crate) use forward::{Times, Upstream};

/// How a gateway is run.
#[derive(Debug)]
pub(crate) struct Gateway {
    pub(crate) folder: Folder,
    pub(crate) routes: Routes,
    pub(crate) upstream: Upstream,
    pub(crate) policy: Policy,
    pub(crate) bounds: Bounds,
}

/// The two ports of a gateway.
#[derive(Debug)]
pub(crate) struct Ports {
    pub(crate) clients: TcpListener,
    pub(crate) admin: TcpListener,
}

impl Gateway {
    /// Serves until `shutdown`, then finishes what is under way.
    ///
    /// # Errors
    /// Why it stopped by itself or did not start.
    pub(crate) async fn serve(
        self,
        ports: Ports,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), String> {
        let Gateway {
            folder,
            routes,
            upstream,
            policy,
            bounds,
        } = self;
        let policy = Policy {
            start: folder.start(),
            ..policy
        };
        let store = folder.store().clone();
        let layer = FenceLayer::new(store.clone(), routes, policy)
            .map_err(|invalid| invalid.to_string())?;
        let clients = Router::new().fallback_service(layer.layer(upstream.service()));
        let (stop, stopping) = watch::channel(false);
        let stopped = |mut stopping: watch::Receiver<bool>| async move {
            // The sender lives until both have ended.
            let _ = stopping.wait_for(|stop| *stop).await;
        };
        let mut why = Ok(());
        let ended = async {
            tokio::select! {
                () = shutdown => {}
                reason = store.stopped() => why = Err(reason),
            }
            let _ = stop.send(true);
        };
        let admin = admin::router(store.clone(), layer.clone());
        let (drained, _, ()) = tokio::join!(
            connections::serve(ports.clients, clients, bounds, stopped(stopping.clone())),
            connections::serve(ports.admin, admin, bounds, stopped(stopping)),
            ended,
        );
        why?;
        if drained && layer.counts().in_flight == 0 {
            folder.ended_cleanly().map_err(|error| error.to_string())?;
        } else {
            tracing::warn!("writes are still under way: the next start lets them settle");
        }
        Ok(())
    }
}
