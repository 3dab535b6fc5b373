//! Input: names in paths, query parameters and JSON bodies; every refusal is JSON.

use std::sync::Arc;

use axum::extract::{FromRef, FromRequest, FromRequestParts, Query, RawPathParams, Request};
use axum::http::HeaderMap;
use axum::http::header::{CONTENT_TYPE, ORIGIN};
use axum::http::request::Parts;
use palisade_core::{LockName, RequestId};
use palisade_proto::Code;
use palisade_proto::json::Object;
use serde::de::DeserializeOwned;

use crate::net::convert::{self, Refusal};
use crate::net::gate::{self, Administered, Gate, Who};
use crate::net::reply::Problem;
use crate::shell;

/// The lock in the path; percent-encoded, so any name can be written.
pub(super) struct LockParam(pub(super) LockName);

impl<S: Send + Sync> FromRequestParts<S> for LockParam {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<LockParam, Problem> {
        let name = segment(parts, "resource_id").await?;
        Ok(LockParam(convert::lock_name("resource_id", &name)?))
    }
}

/// The request id in the path.
pub(super) struct RequestParam(pub(super) RequestId);

impl<S: Send + Sync> FromRequestParts<S> for RequestParam {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<RequestParam, Problem> {
        let id = segment(parts, "request_id").await?;
        Ok(RequestParam(convert::json::request_id(&id)?))
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Who {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Who, Problem> {
        Ok(gate::who(&parts.extensions)?)
    }
}

/// A caller that may administer this server. The right is checked before the body, so a caller without it learns
/// nothing about the body's format.
pub(super) struct AdminCaller(pub(super) Administered);

impl<S: Send + Sync> FromRequestParts<S> for AdminCaller
where
    Arc<Gate>: FromRef<S>,
{
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<AdminCaller, Problem> {
        let who = gate::who(&parts.extensions)?;
        Ok(AdminCaller(Arc::<Gate>::from_ref(state).administer(&who)?))
    }
}

/// The variable part of the path, decoded.
async fn segment(parts: &mut Parts, name: &str) -> Result<String, Refusal> {
    let escapes = well_escaped(name, parts.uri.path());
    let params = RawPathParams::from_request_parts(parts, &()).await;
    escapes?;
    // Text that is not UTF-8 is not a name either.
    let params = params.map_err(|_| Refusal::invalid(format!("{name} is not printable ASCII")))?;
    let value = params.iter().next().map_or("", |(_, value)| value);
    Ok(value.to_owned())
}

/// Decoders keep an invalid escape unchanged, so two spellings would mean one name.
fn well_escaped(what: &str, encoded: &str) -> Result<(), Refusal> {
    for (at, _) in encoded.match_indices('%') {
        let digits = encoded.as_bytes().get(at + 1..at + 3);
        if !digits.is_some_and(|digits| digits.iter().all(u8::is_ascii_hexdigit)) {
            let shown: String = encoded[at..].chars().take(3).collect();
            return Err(Refusal::invalid(format!(
                "{what}: {shown:?} is not a percent-encoded byte; write a % as %25"
            )));
        }
    }
    Ok(())
}

/// The parameters after `?`.
pub(super) struct Params<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequestParts<S> for Params<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Params<T>, Problem> {
        well_escaped("parameters", parts.uri.query().unwrap_or_default())?;
        match Query::try_from_uri(&parts.uri) {
            Ok(Query(params)) => Ok(Params(params)),
            Err(rejection) => Err(Refusal::invalid(source(&rejection)).into()),
        }
    }
}

/// The innermost cause, which names the parameter. Serde calls it a field.
fn source(error: &dyn std::error::Error) -> String {
    let mut innermost = error;
    while let Some(source) = innermost.source() {
        innermost = source;
    }
    let message = innermost.to_string();
    message
        .replace("there are no fields", "this path takes no parameters")
        .replacen("field", "parameter", 1)
}

/// An integer query parameter.
pub(super) fn integer(name: &str, text: Option<&str>) -> Result<Option<u64>, Refusal> {
    let Some(text) = text else { return Ok(None) };
    // `parse` alone would accept a sign.
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

/// A JSON object as the body. An empty body is allowed where every field is optional.
pub(super) struct Input<T>(pub(super) T);

impl<S: Send + Sync, T: DeserializeOwned> FromRequest<S> for Input<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &S) -> Result<Input<T>, Problem> {
        declared_as_json(request.headers())?;
        let body = shell::read(request.into_body())
            .await
            .map_err(|error| Refusal::new(error.code(), error.to_string()))?;
        let said: &[u8] = if body.is_empty() { b"{}" } else { &body };
        serde_json::from_slice(said)
            .map(|Object(input)| Input(input))
            .map_err(|error| Refusal::invalid(describe_error(&error, &body)).into())
    }
}

/// Describes an invalid body for people.
fn describe_error(error: &serde_json::Error, body: &[u8]) -> String {
    if body.is_empty() {
        return "the body is empty; a JSON object is needed".to_owned();
    }
    if error.is_data() {
        error.to_string()
    } else {
        format!("the body is not JSON: {error}")
    }
}

/// JSON may come without a content type, and with the form type that `curl -d` sends by default.
///
/// From a web page it may not: browsers send forms anywhere without asking, so another site's page could take or break
/// locks through a visitor's browser. For `application/json` a browser asks first, and the answer is no.
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
