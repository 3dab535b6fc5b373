//! The OpenAPI description, built from the handlers themselves.

use palisade_proto::json::ErrorReply;
use utoipa::{IntoResponses, OpenApi};

use super::{cluster, locks, ops, sequencer, watch};

/// The HTTP interface as an OpenAPI document.
#[must_use]
pub fn document() -> utoipa::openapi::OpenApi {
    Document::openapi()
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
        locks::resize,
        locks::proclaim,
        locks::show,
        locks::list,
        sequencer::sign,
        sequencer::keys,
        locks::ranking,
        watch::watch,
        ops::status,
        ops::advance,
        ops::health,
        ops::metrics,
        ops::openapi,
        cluster::ready,
        cluster::view,
        cluster::add,
        cluster::promote,
        cluster::remove,
        cluster::transfer,
    ),
    components(schemas(palisade_proto::json::MissedBody)),
)]
struct Document;

/// The refusals that every operation can return.
#[derive(IntoResponses)]
#[allow(dead_code, reason = "read by the derive; never built")]
pub(super) enum Refusals {
    /// `invalid`: malformed or out of range; the message names the field and the range.
    #[response(status = 400)]
    Invalid(ErrorReply),
    /// `unauthenticated`: no token and no certificate shows who is asking, or the token is not valid.
    #[response(status = 401)]
    Unauthenticated(ErrorReply),
    /// `forbidden`: no rule grants it; the message names the principal, the verb and the lock. `cross_origin`.
    #[response(status = 403)]
    Forbidden(ErrorReply),
    /// `method_not_allowed`: see the `Allow` header.
    #[response(status = 405)]
    MethodNotAllowed(ErrorReply),
    /// `request_timeout`: the body did not arrive in time.
    #[response(status = 408)]
    RequestTimeout(ErrorReply),
    /// `too_large`: the body is larger than 64 KiB.
    #[response(status = 413)]
    TooLarge(ErrorReply),
    /// `unsupported_media_type`: the body is not declared as JSON.
    #[response(status = 415)]
    UnsupportedMediaType(ErrorReply),
    /// `over_quota`: the message names the bound, whose it is, and its value; for a rate, `retry_after_ms` is there.
    #[response(status = 429)]
    OverQuota(ErrorReply),
    /// `unavailable`: nothing happened; try later. `not_leader`: another node of the cluster leads, or none does.
    #[response(status = 503)]
    Unavailable(ErrorReply),
    /// `unknown_outcome`: it may have happened; repeat it with the same `request_id`.
    #[response(status = 504)]
    UnknownOutcome(ErrorReply),
}
