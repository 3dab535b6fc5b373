//! Output: JSON, and every refusal in the same form.

use axum::http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use palisade_core::LockName;
use palisade_proto::codes::CodeRow;
use palisade_proto::json::{DeniedReply, ErrorReply};
use serde::Serialize;
use utoipa::IntoResponses;

use super::convert::{Refusal, json};
use super::grpc_status::status;

/// An answer as JSON.
pub(super) struct Json<T>(pub(super) T);

impl<T: Serialize> IntoResponse for Json<T> {
    fn into_response(self) -> Response {
        match serde_json::to_vec(&self.0) {
            Ok(body) => {
                let headers = [
                    (CONTENT_TYPE, HeaderValue::from_static("application/json")),
                    // Secrets and short-lived states must not be cached.
                    (header::CACHE_CONTROL, HeaderValue::from_static("no-store")),
                ];
                (headers, body).into_response()
            }
            Err(_) => StatusCode::INTERNAL_SERVER_ERROR.into_response(),
        }
    }
}

/// A refusal as an answer.
#[derive(Debug)]
pub(super) struct Problem {
    refusal: Refusal,
    /// The lock of a denied acquire.
    denied: Option<LockName>,
}

impl Problem {
    /// A denied acquire.
    pub(super) fn denied(lock: LockName, refusal: Refusal) -> Problem {
        Problem {
            refusal,
            denied: Some(lock),
        }
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Problem {
        Problem {
            refusal,
            denied: None,
        }
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        let Problem { refusal, denied } = self;
        let error = json::error(&refusal);
        let mut response = match denied {
            Some(lock) => Json(DeniedReply {
                resource_id: lock.as_str().to_owned(),
                lock_acquired: false,
                error,
                holder: refusal.holder.as_ref().map(json::holder),
            })
            .into_response(),
            None => Json(ErrorReply { error }).into_response(),
        };
        let status = StatusCode::from_u16(CodeRow::of(refusal.code).http);
        *response.status_mut() = status.unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
        if let Some(ms) = refusal.retry_after_ms() {
            // The header counts seconds; rounded up, so that the retry does not come too early.
            response
                .headers_mut()
                .insert(RETRY_AFTER, ms.div_ceil(1_000).into());
        }
        response
    }
}

/// The result of a handler.
pub(super) type Reply<T> = Result<Json<T>, Problem>;

/// A refusal from outside the handlers, in the form of the handler that such a request would reach.
pub(super) fn refused(headers: &HeaderMap, refusal: &Refusal) -> Response {
    if is_grpc(headers) {
        return status(refusal).into_http();
    }
    Problem::from(refusal.clone()).into_response()
}

/// Whether the request is a gRPC call.
pub(super) fn is_grpc(headers: &HeaderMap) -> bool {
    let content_type = headers.get(CONTENT_TYPE);
    content_type.is_some_and(|value| value.as_bytes().starts_with(b"application/grpc"))
}

/// The refusals that every operation can return.
#[derive(IntoResponses)]
#[allow(dead_code, reason = "read by the derive; never built")]
pub(super) enum Refusals {
    /// `invalid`: malformed or out of range; the message names the field and the range.
    #[response(status = 400)]
    Invalid(ErrorReply),
    /// `unauthenticated`: no token and no certificate identifies the caller, or the token is not valid.
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
