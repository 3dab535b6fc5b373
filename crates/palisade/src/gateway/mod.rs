//! `palisade gateway`: a reverse proxy that fences an HTTP API without changing its code.
//!
//! ```text
//!   client ──► shell ──► FenceLayer ──► Forward ──► upstream
//!                            │             removes hop-by-hop headers; streams reads piece by piece;
//!                            │             the fence buffers both bodies of a write
//!                            └► DIR/marks: the store of `palisade store`, marks only
//!   operator ──► admin, on a port of its own: /healthz, /metrics, /v1/fences
//! ```
//!
//! [`palisade_fence::http`] describes the promises about late writes, and their bounds. In those terms, a
//! failure to connect to the upstream is 502 `unavailable` (nothing was sent), a broken connection is 502
//! `unknown_outcome`, and an answer that did not come in time is 504 `unknown_outcome`. After the last two, and
//! after a crash, a higher token waits for `--settle`.
//!
//! | code | status | meaning |
//! |---|---|---|
//! | as `palisade store` | | the fence rejects it, or a header or an address is wrong |
//! | `no_route` | 404 | a write matches no route, so nothing says what is fenced |
//! | `unavailable` | 502, 503 | nothing was sent: the upstream is unreachable, or older writes did not end |
//! | `unknown_outcome` | 502, 504 | the request was sent and may have taken effect |

mod admin;
mod directory;
mod forward;
mod headers;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::StatusCode;
use axum::http::request::Parts;
use axum::response::{IntoResponse as _, Response};
use palisade_client::Client;
use palisade_fence::http::{FenceLayer, Policy, Problem, Routes};
use palisade_fence::sequencer::Check;
use palisade_proto::Code;
use palisade_proto::codes::CodeRow;
use palisade_server::shell::{self, ExchangeKind, Hosts, Listeners, Service, Shell};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tower_layer::Layer as _;

pub(crate) use directory::{GatewayDirectory, marks};
pub(crate) use forward::{Timeouts, Upstream};

/// The parts of a gateway.
#[derive(Debug)]
pub(crate) struct Gateway {
    pub(crate) directory: GatewayDirectory,
    pub(crate) routes: Routes,
    pub(crate) upstream: Upstream,
    pub(crate) policy: Policy,
    pub(crate) sequencers: Check,
    /// Tells an authority of late writes.
    pub(crate) reporter: Option<Client>,
    /// The bounds for clients, and for operators.
    pub(crate) clients: shell::Settings,
    pub(crate) admin: shell::Settings,
}

/// The bounds for a gateway's clients. Bodies are bounded where they are forwarded. Host names are not checked:
/// they are the upstream's business, and so are requests from browsers.
pub(crate) fn client_settings() -> shell::Settings {
    shell::Settings {
        connections: 4_096,
        // One file for the client and one for the upstream; the reserve includes the operators' connections.
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

/// The bounds for a gateway's operators.
pub(crate) fn admin_settings() -> shell::Settings {
    shell::Settings {
        connections: ADMIN_CONNECTIONS,
        http2: false,
        ..shell::Settings::default()
    }
}

const ADMIN_CONNECTIONS: u32 = 64;

/// The shell's service for clients.
struct ClientService;

impl Service for ClientService {
    fn exchange(&self, _: &Parts) -> ExchangeKind {
        ExchangeKind::Proxied
    }

    fn refuse(&self, code: Code, message: String) -> Response {
        refused(code, message)
    }
}

/// The shell's service for operators.
struct AdminService;

impl Service for AdminService {
    fn exchange(&self, _: &Parts) -> ExchangeKind {
        ExchangeKind::Unary
    }

    fn refuse(&self, code: Code, message: String) -> Response {
        refused(code, message)
    }
}

fn refused(code: Code, message: String) -> Response {
    let status =
        StatusCode::from_u16(CodeRow::of(code).http).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    Problem::new(status, code, message).into_response()
}

/// The two ports of a gateway.
#[derive(Debug)]
pub(crate) struct Ports {
    pub(crate) clients: Listeners,
    pub(crate) admin: TcpListener,
}

impl Gateway {
    /// Serves until `shutdown`, then finishes the requests in flight.
    ///
    /// # Errors The reason why it did not start, or stopped on its own.
    pub(crate) async fn serve(
        self,
        ports: Ports,
        shutdown: impl Future<Output = ()>,
    ) -> Result<(), String> {
        let Gateway {
            directory,
            routes,
            upstream,
            policy,
            sequencers,
            reporter,
            clients,
            admin,
        } = self;
        let shell = |settings| Shell::new(settings).map_err(|error| error.to_string());
        let (clients, admin) = (shell(clients)?, shell(admin)?);
        let policy = Policy {
            start: directory.start(),
            ..policy
        };
        let store = directory.store().clone();
        let layer = FenceLayer::with_sequencers(store.clone(), routes, policy, sequencers)
            .map_err(|invalid| invalid.to_string())?;
        let layer = match &reporter {
            Some(reporter) => layer.reporting_to(Arc::new(reporter.clone())),
            None => layer,
        };
        let client_router = Router::new().fallback_service(layer.layer(upstream.service()));
        let (stop, stopping) = watch::channel(false);
        let stopped = |mut stopping: watch::Receiver<bool>| async move {
            // The sender lives until both servers have ended.
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
        let admin_router = admin::router(store.clone(), layer.clone(), reporter.clone());
        let (drained, _, ()) = tokio::join!(
            clients.serve(
                ports.clients,
                Arc::new(ClientService),
                client_router,
                stopped(stopping.clone())
            ),
            admin.serve(
                ports.admin,
                Arc::new(AdminService),
                admin_router,
                stopped(stopping)
            ),
            ended,
        );
        if let Some(reporter) = reporter {
            reporter.reports_sent().await;
        }
        why?;
        if drained && layer.counts().in_flight == 0 {
            directory
                .ended_cleanly()
                .map_err(|error| error.to_string())?;
        } else {
            tracing::warn!("writes are still in flight: the next start waits until they settle");
        }
        Ok(())
    }
}
