//! Sequencers: the signed form of a fencing token, and the keys to check it with.

use std::sync::Arc;

use axum::extract::State;
use palisade_proto::json::{ErrorReply, RenewBody, SequencerBody, SequencerReply};
use serde_json::Value;

use super::input::{Input, LockParam};
use crate::net::convert::json;
use crate::net::gate::Who;
use crate::net::issuer::SequencerIssuer;
use crate::net::reply::{Json, Refusals, Reply};

/// Get a sequencer
///
/// Signs the caller's grant: authority, lock, mode, fencing token, slots and principal. A fence that has the
/// authority's keys checks it on its own, and rejects every invented token. It does not expire. The request renews
/// the lease, as every proof of holding it does.
#[utoipa::path(
    post,
    path = "/v1/locks/{resource_id}/sequencer",
    tag = "locks",
    params((
        "resource_id" = String,
        Path,
        min_length = 1,
        max_length = 255,
        pattern = "^[ -~]+$",
        description = "The lock, percent-encoded."
    )),
    request_body = SequencerBody,
    responses(
        (status = 200, description = "The sequencer.", body = SequencerReply),
        (status = 409, description = "`not_held`. `refused`: this server has no keys for sequencers.", body = ErrorReply),
        (status = 410, description = "`expired`, `revoked`, `superseded`", body = ErrorReply),
        (status = 412, description = "`stale`", body = ErrorReply),
        Refusals,
    )
)]
pub(super) async fn sign(
    State(issuer): State<Arc<SequencerIssuer>>,
    who: Who,
    LockParam(lock): LockParam,
    Input(body): Input<SequencerBody>,
) -> Reply<SequencerReply> {
    let renew = RenewBody {
        lock_token: body.lock_token,
        fencing_token: body.fencing_token,
        lease_duration_ms: None,
    };
    let renew = json::renew(lock.clone(), &renew)?;
    let (token, sequencer) = issuer.issue(&who, &lock, renew).await?;
    Ok(Json(SequencerReply {
        resource_id: lock.as_str().to_owned(),
        fencing_token: token.get(),
        sequencer,
    }))
}

/// Read the keys for sequencers
///
/// A JWK set (RFC 7517) whose `issuer` is the authority. Reading it needs no credentials.
#[utoipa::path(
    get,
    path = "/.well-known/jwks.json",
    tag = "operation",
    responses(
        (status = 200, description = "The public keys.", body = Object),
        (status = 409, description = "`refused`: this server has no keys for sequencers.", body = ErrorReply),
        Refusals,
    )
)]
pub(super) async fn keys(State(issuer): State<Arc<SequencerIssuer>>) -> Reply<Value> {
    Ok(Json(issuer.signer()?.published()))
}
