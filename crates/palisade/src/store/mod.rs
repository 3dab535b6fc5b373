//! `palisade store`: the fenced object store over HTTP.
//!
//! ```text
//!   POST /v1/storage/write, /claim ──► input: parse, name errors ──► palisade_fence::store ──► reply
//!   GET  /v1/storage/{resource_id}/files/{file_path}
//!          with X-Fencing-Token: a tokened read (rule F3); without: an observer's, and it says so
//! ```
//!
//! A separate process that never talks to an authority: it knows tokens only from its callers. Every write must
//! carry a token, even if its resource is not fenced yet; a write without one gets 428 (rule F9). A store that checks
//! nothing (`--danger-unfenced`) takes it.
//!
//! | code | status | meaning |
//! |---|---|---|
//! | `stale` | 412 | a newer holder has written or claimed: give up |
//! | `sequence_stale` | 412 | a late duplicate of this holder's own write |
//! | `tokenless` | 428 | the write carries no fencing token |
//! | `unsigned` | 428 | a bare token, and this store requires sequencers |
//! | `bad_sequencer` | 403 | the sequencer cannot be believed |
//! | `already_written`, `sequence_reused`, `wrong_authority`, `wrong_lock`, `jump` | 409 | see [`palisade_fence::Reject`] |
//! | `missing`, `not_found` | 404 | nothing to delete, no such object |
//! | `invalid`, `too_large`, `request_timeout`, `unsupported_media_type`, `method_not_allowed` | 400, 413, 408, 415, 405 | the request is wrong |
//! | `storage_full` | 507 | a limit of the store or its disk; nothing was written |
//! | `unavailable` | 503 | the store has stopped; nothing happened |
//! | `unknown_outcome` | 504 | it may have happened: repeat it with the same `sequence` |

mod app;
mod input;
mod metrics;
mod middleware;
mod objects;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::http::request::Parts;
use axum::http::{Method, StatusCode, Uri};
use axum::middleware::from_fn_with_state;
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use palisade_client::Client;
use palisade_fence::http::Problem;
use palisade_fence::sequencer::Check;
use palisade_fence::store::Store;
use palisade_proto::Code;
use palisade_server::shell::{self, ExchangeKind, Listeners, Shell};

use app::{App, refused};

pub(crate) use app::mode_name;
pub(crate) use metrics::exposition;
pub(crate) use middleware::percent_encoded;

/// The shell's bounds for objects of this size.
pub(crate) fn settings(object_bytes: u64) -> shell::Settings {
    // Base64 makes an object a third longer.
    let body_bytes = (object_bytes / 3 * 4) as usize + AROUND_BYTES;
    shell::Settings {
        connections: 4_096,
        http2: false,
        unread_bytes: 1 << 20,
        head_bytes: 16 << 10,
        head_timeout: Duration::from_secs(30),
        body_bytes,
        body_timeout: Duration::from_secs(60),
        answer_timeout: Duration::from_secs(600),
        held_bytes_per_connection: 2 * body_bytes,
        held_bytes: (8 * body_bytes).max(256 << 20),
        drain_timeout: Duration::from_secs(10),
        ..shell::Settings::default()
    }
}

/// The shell's service for a store.
struct Service;

impl shell::Service for Service {
    fn exchange(&self, _: &Parts) -> ExchangeKind {
        ExchangeKind::Unary
    }

    fn refuse(&self, code: Code, message: String) -> Response {
        refused(code, message).into_response()
    }
}

/// Serves the store until `shutdown`, then finishes the requests in flight.
///
/// # Errors The reason why it could not serve, or why the store stopped on its own: a failed write or sync. The process
/// should then end; after a restart, the disk decides what the store contains.
pub(crate) async fn serve(
    listeners: Listeners,
    store: Store,
    (sequencers, reporter): (Check, Option<Client>),
    settings: shell::Settings,
    shutdown: impl Future<Output = ()>,
) -> Result<(), String> {
    let failed = store.clone();
    let mut why = Ok(());
    let ended = async {
        tokio::select! {
            () = shutdown => {}
            reason = failed.stopped() => why = Err(reason),
        }
    };
    let shell = Shell::new(settings).map_err(|error| error.to_string())?;
    shell
        .serve(
            listeners,
            Arc::new(Service),
            router(store, sequencers, reporter.clone()),
            ended,
        )
        .await;
    if let Some(reporter) = reporter {
        reporter.reports_sent().await;
    }
    why
}

/// The routes, and JSON answers for all other paths.
fn router(store: Store, sequencers: Check, reporter: Option<Client>) -> Router {
    let app = Arc::new(App {
        store,
        sequencers,
        reporter,
    });
    Router::new()
        .route("/v1/storage/write", post(objects::write))
        .route("/v1/storage/claim", post(objects::claim))
        .route("/v1/storage", get(objects::list))
        .route("/v1/storage/{resource_id}", get(objects::show))
        .route(
            "/v1/storage/{resource_id}/files/{*file_path}",
            get(objects::read),
        )
        .route("/healthz", get(metrics::health))
        .route("/metrics", get(metrics::metrics))
        .route("/openapi.json", get(metrics::openapi))
        .method_not_allowed_fallback(method_not_allowed)
        .fallback(not_found)
        .layer(from_fn_with_state(app.clone(), middleware::check_address))
        .with_state(app)
}

async fn method_not_allowed(method: Method, uri: Uri) -> Problem {
    let message = format!(
        "{} does not take {method}; see the Allow header",
        uri.path()
    );
    Problem::new(
        StatusCode::METHOD_NOT_ALLOWED,
        Code::MethodNotAllowed,
        message,
    )
}

async fn not_found(uri: Uri) -> Problem {
    let message = format!(
        "there is nothing at {}; in a resource_id, '/' is written %2F",
        uri.path()
    );
    Problem::new(StatusCode::NOT_FOUND, Code::NotFound, message)
}

/// Room for names, paths and punctuation around an object.
const AROUND_BYTES: usize = 64 << 10;
