//! The HTTP/JSON interface.

mod input;
mod locks;
mod openapi;
mod ops;
mod reply;
mod watch;

use std::sync::Arc;

use axum::Router;
use axum::http::{Method, Uri};
use axum::middleware::from_extractor_with_state;
use axum::routing::{get, post};
use palisade_proto::Code;
use palisade_proto::json::Nothing;

pub use openapi::document;

use super::app::App;
use super::convert::{self, Refusal};
use super::listings;
use input::Params;
use reply::Problem;

/// The routes, and JSON answers for all other paths.
pub(super) fn routes(app: &Arc<App>) -> Router {
    let listing = Router::new().route("/v1/locks", get(locks::list));
    let without_parameters = Router::new()
        .route("/v1/locks/{resource_id}", get(locks::show))
        .route("/v1/locks/{resource_id}/acquire", post(locks::acquire))
        .route("/v1/locks/{resource_id}/renew", post(locks::renew))
        .route("/v1/locks/{resource_id}/release", post(locks::release))
        .route("/v1/locks/{resource_id}/break", post(locks::revoke))
        .route("/v1/requests/{request_id}/abandon", post(locks::abandon))
        .route("/v1/status", get(ops::status))
        .route("/v1/clock/advance", post(ops::advance))
        .route("/healthz", get(ops::health))
        .route("/metrics", get(ops::metrics))
        .route("/openapi.json", get(ops::openapi))
        .route_layer(from_extractor_with_state::<Params<Nothing>, _>(Arc::clone(
            app,
        )));
    Router::new()
        .merge(listings::bounded(app, listing))
        .route("/v1/watch", get(watch::watch))
        .merge(without_parameters)
        .method_not_allowed_fallback(method_not_allowed)
        .fallback(not_found)
        .with_state(Arc::clone(app))
}

/// A refusal from outside the handlers, in the form of theirs.
pub(super) fn refused(refusal: Refusal) -> axum::response::Response {
    axum::response::IntoResponse::into_response(Problem::from(refusal))
}

async fn method_not_allowed(method: Method, uri: Uri) -> Problem {
    let message = format!(
        "{} does not take {method}; see the Allow header",
        uri.path()
    );
    Refusal::new(Code::MethodNotAllowed, message).into()
}

async fn not_found(uri: Uri, headers: axum::http::HeaderMap) -> axum::response::Response {
    if is_grpc(&headers) {
        return tonic::Status::unimplemented("no such method").into_http();
    }
    axum::response::IntoResponse::into_response(Problem::from(missing(uri.path())))
}

fn is_grpc(headers: &axum::http::HeaderMap) -> bool {
    let content_type = headers.get(axum::http::header::CONTENT_TYPE);
    content_type.is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
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
