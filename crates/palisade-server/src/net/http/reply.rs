//! Output: JSON, and every refusal in the same form.

use axum::http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use palisade_core::LockName;
use palisade_proto::codes::Row;
use palisade_proto::json::{DeniedReply, ErrorReply};
use serde::Serialize;

use crate::net::convert::{Refusal, json};

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
pub(in crate::net) struct Problem {
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
        let status = StatusCode::from_u16(Row::of(refusal.code).http);
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

/// What handlers return.
pub(super) type Reply<T> = Result<Json<T>, Problem>;
