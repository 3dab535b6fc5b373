//! The HTTP/JSON interface.

mod cluster;
mod history;
mod input;
mod listen;
mod locks;
mod openapi;
mod ops;
mod page;
mod sequencer;
mod watch;

use std::sync::Arc;

use axum::Router;
use axum::http::{HeaderMap, Method, Uri};
use axum::middleware::{from_extractor, from_fn_with_state};
use axum::response::{IntoResponse as _, Response};
use axum::routing::{get, post};
use palisade_proto::Code;
use palisade_proto::json::Nothing;

pub use openapi::document;

use super::convert::{self, Refusal};
use super::interfaces::{Interfaces, RouteState};
use super::reply::{Problem, is_grpc};
use super::{forward, listings};
use input::Params;

/// The routes, and JSON answers for all other paths.
pub(super) fn routes(interfaces: &Arc<Interfaces>) -> Router {
    let to_leader = || from_fn_with_state(Arc::clone(&interfaces.forwarder), forward::to_leader);
    let no_parameters = || from_extractor::<Params<Nothing>>();
    let listing = Router::new()
        .route("/v1/locks", get(locks::list))
        .merge(
            Router::new()
                .route("/v1/ranking", get(locks::ranking))
                .route_layer(no_parameters()),
        )
        .route_layer(to_leader());
    let past = Router::new().route("/v1/history", get(history::read));
    let of_the_leader = Router::new()
        .route("/v1/locks/{resource_id}", get(locks::show))
        .route("/v1/locks/{resource_id}/acquire", post(locks::acquire))
        .route("/v1/locks/{resource_id}/renew", post(locks::renew))
        .route("/v1/locks/{resource_id}/release", post(locks::release))
        .route("/v1/locks/{resource_id}/break", post(locks::revoke))
        .route("/v1/locks/{resource_id}/proclaim", post(locks::proclaim))
        .route("/v1/locks/{resource_id}/open", post(locks::open))
        .route("/v1/locks/{resource_id}/permits", post(locks::resize))
        .route("/v1/locks/{resource_id}/rejections", post(history::report))
        .route("/v1/locks/{resource_id}/sequencer", post(sequencer::sign))
        .route("/v1/requests/{request_id}/abandon", post(locks::abandon))
        .route("/v1/listen", post(listen::listen))
        .route("/v1/status", get(ops::status))
        .route("/v1/clock/advance", post(ops::advance))
        .route("/v1/cluster/add", post(cluster::add))
        .route("/v1/cluster/promote", post(cluster::promote))
        .route("/v1/cluster/remove", post(cluster::remove))
        .route("/v1/cluster/transfer", post(cluster::transfer))
        .route_layer(no_parameters())
        .route_layer(to_leader());
    let of_every_node = Router::new()
        .route("/v1/cluster", get(cluster::view))
        .route("/v1/whoami", get(ops::whoami))
        .route("/healthz", get(ops::health))
        .route("/.well-known/jwks.json", get(sequencer::keys))
        .route("/readyz", get(cluster::ready))
        .route("/metrics", get(ops::metrics))
        .route("/openapi.json", get(openapi::openapi))
        .route("/", get(page::html))
        .route("/page.css", get(page::style))
        .route("/page.js", get(page::script))
        .route("/draw.js", get(page::script_draw))
        .route("/ask.js", get(page::script_ask))
        .route("/health.js", get(page::script_health))
        .route_layer(no_parameters());
    Router::new()
        .merge(listings::bounded(&interfaces.listings, listing.merge(past)))
        .route("/v1/watch", get(watch::watch))
        .merge(of_the_leader)
        .merge(of_every_node)
        .method_not_allowed_fallback(method_not_allowed)
        .fallback(not_found)
        .with_state(RouteState(Arc::clone(interfaces)))
}

async fn method_not_allowed(method: Method, uri: Uri) -> Problem {
    let message = format!(
        "{} does not take {method}; see the Allow header",
        uri.path()
    );
    Refusal::new(Code::MethodNotAllowed, message).into()
}

async fn not_found(uri: Uri, headers: HeaderMap) -> Response {
    if is_grpc(&headers) {
        return tonic::Status::unimplemented("no such method").into_http();
    }
    Problem::from(missing(uri.path())).into_response()
}

/// The refusal for an unknown path.
fn missing(path: &str) -> Refusal {
    let Some(rest) = path.strip_prefix("/v1/locks/") else {
        return Refusal::new(Code::NotFound, format!("there is nothing at {path}"));
    };
    if (rest.is_empty() || rest.starts_with('/'))
        && let Err(empty) = convert::lock_name("resource_id", "")
    {
        return empty;
    }
    let message = format!("there is nothing at {path}; in the name of a lock, '/' is written %2F");
    Refusal::new(Code::NotFound, message)
}
