//! Tells a repeated write from another one under the same number.

use std::time::Duration;

use axum_core::body::Body;
use http::StatusCode;
use http::header::CONTENT_LENGTH;
use http::request::Parts;
use http_body::Body as _;
use http_body_util::{BodyExt, Limited};
use tokio::time::timeout;

use crate::http::Problem;

/// A checksum of what a request says: method, address, declared length, and the body where its declared
/// length is at most `most`; such a body is read, and put back. It finds a caller's mistake, not an attack.
pub(super) async fn fingerprint(
    head: &Parts,
    body: &mut Body,
    most: usize,
    within: Duration,
) -> Result<u64, Problem> {
    let mut crc = crc32fast::Hasher::new();
    crc.update(head.method.as_str().as_bytes());
    crc.update(b" ");
    crc.update(head.uri.to_string().as_bytes());
    crc.update(b"\n");
    if let Some(length) = head.headers.get(CONTENT_LENGTH) {
        crc.update(length.as_bytes());
    }
    let short = body
        .size_hint()
        .upper()
        .is_some_and(|upper| upper <= most as u64);
    let mut bytes = 0;
    if short {
        let reading = Limited::new(std::mem::take(body), most).collect();
        let read = match timeout(within, reading).await {
            Ok(Ok(read)) => read.to_bytes(),
            Ok(Err(error)) => {
                let message = format!("the body of a numbered write did not arrive: {error}");
                return Err(Problem::invalid(message));
            }
            Err(_) => {
                let message = "the body of a numbered write did not arrive in time";
                let status = StatusCode::REQUEST_TIMEOUT;
                return Err(Problem::new(status, "request_timeout", message));
            }
        };
        crc.update(b"\n");
        crc.update(&read);
        bytes = read.len() as u64;
        *body = read.into();
    }
    Ok(u64::from(crc.finalize()) << 32 | bytes & 0xffff_ffff)
}
