//! The OpenAPI description, built from the handlers themselves.

use axum::response::IntoResponse;
use utoipa::OpenApi;

use super::{cluster, history, listen, locks, ops, sequencer, watch};
use crate::net::reply::{Json, Refusals};

/// The HTTP interface as an OpenAPI document.
#[must_use]
pub fn document() -> utoipa::openapi::OpenApi {
    OpenApiDocument::openapi()
}

#[derive(OpenApi)]
#[openapi(
    info(
        title = "Palisade",
        description = "Leases with fencing tokens.\n\nNo lock service can stop two processes from both believing they hold a lock. The lease saves work; the fence at the resource keeps data safe: give every write its `fencing_token`, and let the resource refuse lower ones.\n\n`lock_token` is the lease's secret key (who may renew and release). `fencing_token` is the number for the resource. They are never mixed.\n\nBodies are JSON. A request without a `Content-Type`, or with the form type that `curl -d` sends by itself, is taken as JSON too, except from a web page (a request with `Origin`). Names in paths are percent-encoded.",
        license(name = "MIT OR Apache-2.0", identifier = "MIT OR Apache-2.0"),
    ),
    tags(
        (name = "locks", description = "Acquire, renew, release, show and watch."),
        (name = "cluster", description = "The nodes of a cluster, and which one leads."),
        (name = "operation", description = "Status, health, metrics, the manual clock."),
    ),
    paths(
        locks::acquire,
        locks::renew,
        locks::release,
        locks::abandon,
        locks::revoke,
        locks::open,
        locks::resize,
        locks::proclaim,
        locks::show,
        locks::list,
        sequencer::sign,
        sequencer::keys,
        locks::ranking,
        watch::watch,
        listen::listen,
        history::read,
        history::report,
        ops::status,
        ops::whoami,
        ops::advance,
        ops::health,
        ops::metrics,
        openapi,
        cluster::ready,
        cluster::view,
        cluster::add,
        cluster::promote,
        cluster::remove,
        cluster::transfer,
    ),
    components(schemas(palisade_proto::json::MissedBody)),
)]
struct OpenApiDocument;

/// Read this description
#[utoipa::path(
    get,
    path = "/openapi.json",
    tag = "operation",
    responses(
        (status = 200, description = "OpenAPI 3.1.", content_type = "application/json", body = Object),
        Refusals,
    )
)]
pub(super) async fn openapi() -> impl IntoResponse {
    Json(document())
}
