//! What comes in: names in paths, query parameters and JSON bodies, with every refusal as JSON.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::{
    DefaultBodyLimit, FromRequest, FromRequestParts, Query, RawPathParams, Request,
};
use axum::http::header::{CONTENT_TYPE, ORIGIN};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use palisade_core::LockName;
use palisade_proto::Code;
use serde::de::DeserializeOwned;

use super::reply::Problem;
use crate::net::app::App;
use crate::net::convert::{self, Refusal};

/// The lock that the path names; percent-encoded, so any name can be written.
pub(super) struct Lock(pub(super) LockName);

impl FromRequestParts<Arc<App>> for Lock {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, app: &Arc<App>) -> Result<Lock, Problem> {
        let params = RawPathParams::from_request_parts(parts, app)
            .await
            .map_err(|_| Refusal::invalid("resource_id: lock name is not printable ASCII"))?;
        let name = params.iter().next().map_or("", |(_, name)| name);
        Ok(Lock(convert::lock_name("resource_id", name)?))
    }
}

/// The parameters after `?`.
pub(super) struct Params<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequestParts<Arc<App>> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &Arc<App>) -> Result<Params<T>, Problem> {
        match Query::try_from_uri(&parts.uri) {
            Ok(Query(params)) => Ok(Params(params)),
            Err(rejection) => Err(Refusal::invalid(source(&rejection)).into()),
        }
    }
}

/// The innermost cause, which names the parameter.
fn source(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    innermost.to_string()
}

/// An integer among the parameters.
pub(super) fn integer(name: &str, text: Option<&str>) -> Result<Option<u64>, Refusal> {
    let Some(text) = text else { return Ok(None) };
    // `parse` alone would take a sign.
    let digits = text
        .bytes()
        .all(|byte| byte.is_ascii_digit())
        .then_some(text);
    match digits.and_then(|digits| digits.parse().ok()) {
        Some(number) => Ok(Some(number)),
        None => Err(Refusal::invalid(format!(
            "{name} must be an integer of at most 20 digits"
        ))),
    }
}

/// A JSON body.
pub(super) struct Input<T>(pub(super) T);

impl<T: DeserializeOwned> FromRequest<Arc<App>> for Input<T> {
    type Rejection = Problem;

    async fn from_request(mut request: Request, app: &Arc<App>) -> Result<Input<T>, Problem> {
        declared_as_json(request.headers())?;
        DefaultBodyLimit::max(app.settings.body_bytes).apply(&mut request);
        let reading = Bytes::from_request(request, app);
        let body = match tokio::time::timeout(app.settings.body_timeout, reading).await {
            Ok(Ok(body)) => body,
            Ok(Err(rejection)) if rejection.status() == StatusCode::PAYLOAD_TOO_LARGE => {
                let most = app.settings.body_bytes;
                let message = format!("the body is larger than {most} bytes");
                return Err(Refusal::new(Code::TooLarge, message).into());
            }
            Ok(Err(_)) => return Err(Refusal::invalid("the body ended early").into()),
            Err(_) => {
                let message = "the body did not arrive in time";
                return Err(Refusal::new(Code::RequestTimeout, message).into());
            }
        };
        serde_json::from_slice(&body)
            .map(Input)
            .map_err(|error| Refusal::invalid(complaint(&error, &body)).into())
    }
}

/// What is wrong with a body, for a person.
fn complaint(error: &serde_json::Error, body: &[u8]) -> String {
    if body.is_empty() {
        return "the body is empty; a JSON object is needed".to_owned();
    }
    if error.is_data() {
        error.to_string()
    } else {
        format!("the body is not JSON: {error}")
    }
}

/// JSON may come undeclared, and as the form type that `curl -d` sends by itself.
///
/// From a web page it may not: a browser sends forms anywhere without asking, so a foreign page could
/// take or break locks through a visitor's browser. For `application/json` it asks first, and is
/// told no.
fn declared_as_json(headers: &HeaderMap) -> Result<(), Refusal> {
    let declared = headers.get(CONTENT_TYPE).map(|value| value.as_bytes());
    let essence = declared
        .unwrap_or_default()
        .split(|byte| *byte == b';')
        .next();
    let essence = essence
        .unwrap_or_default()
        .trim_ascii()
        .to_ascii_lowercase();
    let lenient = declared.is_none() || essence == b"application/x-www-form-urlencoded";
    let json = essence == b"application/json" || essence.ends_with(b"+json");
    match (json, lenient && !headers.contains_key(ORIGIN)) {
        (false, false) => Err(Refusal::new(
            Code::UnsupportedMediaType,
            "the body must be JSON: send Content-Type: application/json",
        )),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn headers(content_type: Option<&str>, origin: bool) -> HeaderMap {
        let mut headers = HeaderMap::new();
        if let Some(content_type) = content_type {
            headers.insert(CONTENT_TYPE, content_type.parse().unwrap());
        }
        if origin {
            headers.insert(ORIGIN, "https://example.org".parse().unwrap());
        }
        headers
    }

    #[test]
    fn curl_needs_no_header_and_a_web_page_does() {
        let form = Some("application/x-www-form-urlencoded");
        for taken in [
            None,
            form,
            Some("application/json"),
            Some("Application/JSON; charset=utf-8"),
        ] {
            assert!(
                declared_as_json(&headers(taken, false)).is_ok(),
                "{taken:?}"
            );
        }
        assert!(declared_as_json(&headers(Some("application/json"), true)).is_ok());
        for refused in [None, form, Some("text/plain")] {
            let refusal = declared_as_json(&headers(refused, true)).unwrap_err();
            assert_eq!(refusal.code, Code::UnsupportedMediaType);
        }
        assert!(declared_as_json(&headers(Some("text/plain"), false)).is_err());
        assert!(declared_as_json(&headers(Some("application/xml"), false)).is_err());
    }

    #[test]
    fn integers_of_parameters_are_plain_digits() {
        assert_eq!(integer("limit", None), Ok(None));
        assert_eq!(integer("limit", Some("10")), Ok(Some(10)));
        for bad in ["", "+1", "-1", "1.0", "x", "1e3", "99999999999999999999999"] {
            assert!(integer("limit", Some(bad)).is_err(), "{bad}");
        }
    }
}
