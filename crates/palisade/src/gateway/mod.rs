//! `palisade gateway`: a reverse proxy that fences an HTTP API without touching its code.
//!
//! ```text
//!   client ──► shell ──► FenceLayer ──► Forward ──► upstream
//!                            │             headers of the hop removed; reads are passed on piece by
//!                            │             piece, of writes the fence keeps both bodies
//!                            └► DIR/marks: the store of `palisade store`, marks only
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
//! | as `palisade store` | | what the fence rejects, what is wrong with a header or an address |
//! | `no_route` | 404 | a write where no route says what is fenced |
//! | `unavailable` | 502, 503 | nothing was sent: no upstream, or older writes did not end |
//! | `unknown_outcome` | 502, 504 | it was sent and may have happened |

mod admin;
mod folder;
mod forward;
mod headers;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse as _, Response};
use palisade_fence::http::{FenceLayer, Policy, Problem, Routes};
use palisade_proto::Code;
use palisade_proto::codes::Row;
use palisade_server::shell::{self, Exchange, Hosts, Service, Shell};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tower_layer::Layer as _;

pub(crate) use folder::{Folder, marks};
pub(crate) use forward::{Times, Upstream};

/// How a gateway is run.
#[derive(Debug)]
pub(crate) struct Gateway {
    pub(crate) folder: Folder,
    pub(crate) routes: Routes,
    pub(crate) upstream: Upstream,
    pub(crate) policy: Policy,
    /// What clients may take, and what operators may.
    pub(crate) clients: shell::Settings,
    pub(crate) admin: shell::Settings,
}

/// What the clients of a gateway may take. Bodies are bounded where they are sent on. Names are not checked:
/// what a request calls the upstream is the upstream's business, and so is what a browser may do there.
pub(crate) fn client_settings() -> shell::Settings {
    shell::Settings {
        connections: 4_096,
        // One to the client, one to the upstream; and those of the operators.
        files_per_connection: 2,
        reserved_files: shell::Settings::default().reserved_files + ADMIN_CONNECTIONS,
        http2: false,
        unread_bytes: 1 << 20,
        head_bytes: 16 << 10,
        head_timeout: Duration::from_secs(30),
        peer_timeout: Duration::from_secs(60),
        hosts: Hosts::Any,
        ..shell::Settings::default()
    }
}

/// What the operators of a gateway may take.
pub(crate) fn admin_settings() -> shell::Settings {
    shell::Settings {
        connections: ADMIN_CONNECTIONS,
        http2: false,
        ..shell::Settings::default()
    }
}

const ADMIN_CONNECTIONS: u32 = 64;

/// How the shell serves the clients.
struct Clients;

impl Service for Clients {
    fn exchange(&self, _: &Parts) -> Exchange {
        Exchange::Proxied
    }

    fn refuse(&self, code: Code, message: String) -> Response {
        refused(code, message)
    }
}

/// How the shell serves the operators.
struct Operators;

impl Service for Operators {
    fn exchange(&self, _: &Parts) -> Exchange {
        Exchange::Unary
    }

    fn refuse(&self, code: Code, message: String) -> Response {
        refused(code, message)
    }
}

fn refused(code: Code, message: String) -> Response {
    let status =
        StatusCode::from_u16(Row::of(code).http).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    Problem::new(status, code, message).into_response()
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
            clients,
            admin,
        } = self;
        let shell = |settings| Shell::new(settings).map_err(|error| error.to_string());
        let (clients, admin) = (shell(clients)?, shell(admin)?);
        let policy = Policy {
            start: folder.start(),
            ..policy
        };
        let store = folder.store().clone();
        let layer = FenceLayer::new(store.clone(), routes, policy)
            .map_err(|invalid| invalid.to_string())?;
        let client_router = Router::new().fallback_service(layer.layer(upstream.service()));
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
        let admin_router = admin::router(store.clone(), layer.clone());
        let (drained, _, ()) = tokio::join!(
            clients.serve(
                ports.clients,
                Arc::new(Clients),
                client_router,
                stopped(stopping.clone())
            ),
            admin.serve(
                ports.admin,
                Arc::new(Operators),
                admin_router,
                stopped(stopping)
            ),
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
