//! The answers that the fence gives without the service.

use axum_core::body::Body;
use axum_core::response::{IntoResponse, Response};
use http::header::CONTENT_TYPE;
use http::{HeaderValue, StatusCode};
use palisade_core::Token;
use serde_json::json;

use crate::http::outcome::WriteEnd;
use crate::http::{Problem, REPEAT_HEADER};

/// Returns the answer to a claim.
pub(super) fn claimed(highest: Option<Token>, grpc: bool) -> Response {
    if grpc {
        status_only("0")
    } else {
        success(StatusCode::OK, highest, false)
    }
}

/// Returns the answer to a write that was already sent; the service does not get it again. The reply message of a gRPC
/// call is not stored, so its caller gets `ALREADY_EXISTS`.
pub(super) fn repeated(
    end: Option<WriteEnd>,
    highest: Option<Token>,
    grpc: bool,
) -> Result<Response, Problem> {
    match end {
        Some(WriteEnd::Answered(status)) => {
            let mut response = if grpc {
                status_only("6")
            } else {
                success(status, highest, true)
            };
            let headers = response.headers_mut();
            headers.insert(REPEAT_HEADER, HeaderValue::from_static("true"));
            Ok(response)
        }
        // The caller passes a write on that was never sent.
        Some(WriteEnd::NotSent) | None => Err(Problem::unknown_outcome(
            "this write was already sent and its outcome is not known: read, then write with the next number",
        )),
    }
}

fn status_only(grpc_status: &'static str) -> Response {
    let mut response = Response::new(Body::empty());
    let headers = response.headers_mut();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/grpc"));
    headers.insert("grpc-status", HeaderValue::from_static(grpc_status));
    response
}

fn success(status: StatusCode, highest: Option<Token>, repeat: bool) -> Response {
    let highest = highest.map(Token::get);
    let mut body = json!({"success": status.is_success(), "error": null, "highest": highest});
    if repeat {
        body["repeat"] = true.into();
    }
    let json = [(CONTENT_TYPE, HeaderValue::from_static("application/json"))];
    (status, json, body.to_string()).into_response()
}
