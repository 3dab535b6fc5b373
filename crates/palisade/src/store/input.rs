//! What comes in: bodies, headers and names, each refused by its own name.

use std::fmt;
use std::sync::Arc;

use axum::body::to_bytes;
use axum::extract::{FromRequest, Request};
use axum::http::header::{CONTENT_TYPE, ORIGIN};
use axum::http::{HeaderMap, StatusCode};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use palisade_core::{AuthorityId, Token};
use palisade_fence::Sequence;
use palisade_fence::http::Problem;
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, Visitor};
use serde_json::{Map, Value};

use crate::store::App;

/// The fields of a JSON object, taken one by one: what is wrong is said by the field's name, and what is
/// left over is unknown.
#[derive(Debug)]
pub(super) struct Fields {
    /// Where in the body this object is, with a dot behind it.
    path: &'static str,
    left: Map<String, Value>,
}

impl Fields {
    /// A field that may be left out; `null` is the same as none.
    fn take(&mut self, name: &str) -> Option<Value> {
        self.left.remove(name).filter(|value| !value.is_null())
    }

    fn need(&mut self, name: &str) -> Result<Value, Problem> {
        let path = self.path;
        self.take(name)
            .ok_or_else(|| Problem::invalid(format!("{path}{name} is missing")))
    }

    pub(super) fn text(&mut self, name: &str) -> Result<String, Problem> {
        match self.need(name)? {
            Value::String(text) => Ok(text),
            other => Err(self.wrong(name, "a string", &other)),
        }
    }

    pub(super) fn token(&mut self, name: &str) -> Result<Option<Token>, Problem> {
        let Some(value) = self.take(name) else {
            return Ok(None);
        };
        let token = value.as_u64().and_then(|number| Token::new(number).ok());
        token
            .map(Some)
            .ok_or_else(|| self.wrong(name, TOKEN_RANGE, &value))
    }

    pub(super) fn sequence(&mut self, name: &str) -> Result<Option<Sequence>, Problem> {
        let Some(value) = self.take(name) else {
            return Ok(None);
        };
        let sequence = value.as_u64().and_then(Sequence::new);
        sequence
            .map(Some)
            .ok_or_else(|| self.wrong(name, SEQUENCE_RANGE, &value))
    }

    pub(super) fn authority(&mut self, name: &str) -> Result<Option<AuthorityId>, Problem> {
        if self.left.get(name).is_none_or(Value::is_null) {
            self.left.remove(name);
            return Ok(None);
        }
        authority(&self.text(name)?).map(Some)
    }

    /// Bytes in base64; line breaks and spaces in it are skipped, as `base64` puts them there.
    pub(super) fn bytes(&mut self, name: &str) -> Result<Vec<u8>, Problem> {
        let mut text = self.text(name)?;
        text.retain(|letter| !letter.is_ascii_whitespace());
        let path = self.path;
        STANDARD.decode(text).map_err(|error| {
            Problem::invalid(format!("{path}{name} is not base64 with padding: {error}"))
        })
    }

    pub(super) fn object(&mut self, name: &str, path: &'static str) -> Result<Fields, Problem> {
        match self.need(name)? {
            Value::Object(left) => Ok(Fields { path, left }),
            other => Err(self.wrong(name, "an object", &other)),
        }
    }

    /// A field that must not be there.
    pub(super) fn without(&mut self, name: &str, why: &str) -> Result<(), Problem> {
        let path = self.path;
        match self.take(name) {
            None => Ok(()),
            Some(_) => Err(Problem::invalid(format!(
                "{path}{name} must be left out: {why}"
            ))),
        }
    }

    /// Nothing else may be there: a misspelt field must not be a field that was left out.
    pub(super) fn end(self) -> Result<(), Problem> {
        match self.left.keys().next() {
            None => Ok(()),
            Some(name) => Err(Problem::invalid(format!(
                "unknown field {}{}",
                self.path,
                shown(name)
            ))),
        }
    }

    fn wrong(&self, name: &str, expected: &str, given: &Value) -> Problem {
        let given = shown(&given.to_string());
        Problem::invalid(format!(
            "{}{name} must be {expected}, not {given}",
            self.path
        ))
    }
}

/// The start of what a caller sent, for a message.
fn shown(text: &str) -> String {
    match text.char_indices().nth(40) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

/// An object whose fields are told once each: of two fencing tokens neither would be the one.
impl<'de> Deserialize<'de> for Fields {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Fields, D::Error> {
        struct Object;

        impl<'de> Visitor<'de> for Object {
            type Value = Map<String, Value>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Self::Value, A::Error> {
                let mut fields = Map::new();
                while let Some((name, value)) = map.next_entry::<String, Value>()? {
                    if fields.contains_key(&name) {
                        return Err(A::Error::custom(format!("{} is told twice", shown(&name))));
                    }
                    fields.insert(name, value);
                }
                Ok(fields)
            }
        }

        deserializer
            .deserialize_map(Object)
            .map(|left| Fields { path: "", left })
    }
}

impl FromRequest<Arc<App>> for Fields {
    type Rejection = Problem;

    async fn from_request(request: Request, app: &Arc<App>) -> Result<Fields, Problem> {
        declared_as_json(request.headers())?;
        let most = app.bounds.body_bytes;
        let declared = request
            .headers()
            .get("content-length")
            .and_then(|value| value.to_str().ok());
        if declared
            .and_then(|text| text.parse::<usize>().ok())
            .is_some_and(|bytes| bytes > most)
        {
            return Err(too_large(most));
        }
        let reading = to_bytes(request.into_body(), most);
        let body = match tokio::time::timeout(app.bounds.body_timeout, reading).await {
            Ok(Ok(body)) => body,
            // Too large, or the connection broke off: then nobody reads this.
            Ok(Err(_)) => return Err(too_large(most)),
            Err(_) => {
                let message = "the body did not arrive in time";
                return Err(Problem::new(
                    StatusCode::REQUEST_TIMEOUT,
                    "request_timeout",
                    message,
                ));
            }
        };
        if body.is_empty() {
            return Err(Problem::invalid(
                "the body is empty; a JSON object is needed",
            ));
        }
        serde_json::from_slice(&body)
            .map_err(|error| Problem::invalid(format!("the body is not as it should be: {error}")))
    }
}

fn too_large(most: usize) -> Problem {
    Problem::new(
        StatusCode::PAYLOAD_TOO_LARGE,
        "too_large",
        format!("the body is larger than {most} bytes"),
    )
}

/// JSON may come undeclared, and as the form type that `curl -d` sends by itself; but not from a web
/// page, which can send forms anywhere through a visitor's browser without asking.
fn declared_as_json(headers: &HeaderMap) -> Result<(), Problem> {
    let declared = headers.get(CONTENT_TYPE).map(|value| value.as_bytes());
    let essence = declared
        .unwrap_or_default()
        .split(|byte| *byte == b';')
        .next();
    let essence = essence
        .unwrap_or_default()
        .trim_ascii()
        .to_ascii_lowercase();
    let form = declared.is_none() || essence == b"application/x-www-form-urlencoded";
    if essence == b"application/json" || form && !headers.contains_key(ORIGIN) {
        return Ok(());
    }
    let message = "the body must be JSON: send Content-Type: application/json";
    Err(Problem::new(
        StatusCode::UNSUPPORTED_MEDIA_TYPE,
        "unsupported_media_type",
        message,
    ))
}

fn authority(name: &str) -> Result<AuthorityId, Problem> {
    AuthorityId::new(name).map_err(|invalid| Problem::invalid(format!("authority: {invalid}")))
}

const TOKEN_RANGE: &str = "an integer in 1 ..= 9007199254740991";
const SEQUENCE_RANGE: &str = "an integer in 0 ..= 9007199254740991";
