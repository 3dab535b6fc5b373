//! Request bodies, headers and names; an error names the mistake.

use palisade_proto::Code;
use std::fmt;
use std::sync::Arc;

use axum::extract::{FromRequest, Request};
use axum::http::header::{CONTENT_TYPE, ORIGIN};
use axum::http::{HeaderMap, StatusCode};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use palisade_core::{AuthorityId, Token};
use palisade_fence::Sequence;
use palisade_fence::http::Problem;
use palisade_server::shell;
use serde::de::{Deserialize, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::store::app::{App, refused};

/// The fields of a JSON object, taken one by one: an error names its field, and fields left at the end are
/// unknown.
#[derive(Debug)]
pub(super) struct ObjectFields {
    /// Where in the body this object is, with a trailing dot.
    path: &'static str,
    left: Map<String, Value>,
}

impl ObjectFields {
    /// An optional field; `null` counts as absent.
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

    pub(super) fn optional_text(&mut self, name: &str) -> Result<Option<String>, Problem> {
        match self.take(name) {
            None => Ok(None),
            Some(Value::String(text)) => Ok(Some(text)),
            Some(other) => Err(self.wrong(name, "a string", &other)),
        }
    }

    pub(super) fn token(&mut self, name: &str) -> Result<Option<Token>, Problem> {
        let Some(value) = self.take(name) else {
            return Ok(None);
        };
        let token = whole(&value).and_then(|number| Token::new(number).ok());
        token
            .map(Some)
            .ok_or_else(|| self.wrong(name, TOKEN_RANGE, &value))
    }

    pub(super) fn sequence(&mut self, name: &str) -> Result<Option<Sequence>, Problem> {
        let Some(value) = self.take(name) else {
            return Ok(None);
        };
        let sequence = whole(&value).and_then(Sequence::new);
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

    /// Bytes in base64; line breaks and spaces are skipped, because `base64` inserts them.
    pub(super) fn bytes(&mut self, name: &str) -> Result<Vec<u8>, Problem> {
        let mut text = self.text(name)?;
        text.retain(|letter| !letter.is_ascii_whitespace());
        let path = self.path;
        STANDARD.decode(text).map_err(|error| {
            Problem::invalid(format!("{path}{name} is not base64 with padding: {error}"))
        })
    }

    pub(super) fn object(
        &mut self,
        name: &str,
        path: &'static str,
    ) -> Result<ObjectFields, Problem> {
        match self.need(name)? {
            Value::Object(left) => Ok(ObjectFields { path, left }),
            other => Err(self.wrong(name, "an object", &other)),
        }
    }

    /// Checks that a field is absent.
    pub(super) fn without(&mut self, name: &str, why: &str) -> Result<(), Problem> {
        let path = self.path;
        match self.take(name) {
            None => Ok(()),
            Some(_) => Err(Problem::invalid(format!(
                "{path}{name} must be left out: {why}"
            ))),
        }
    }

    /// Checks that no fields are left: a misspelt field must not pass for an absent one.
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

/// The start of a caller's text, for a message.
fn shown(text: &str) -> String {
    match text.char_indices().nth(40) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text.to_owned(),
    }
}

/// Accepts every form of an integer: JSON has one type of number, so 10, 10.0 and 1e1 are equal. The integer must be
/// one that a double represents exactly.
fn whole(value: &Value) -> Option<u64> {
    let exact = |number: f64| {
        let whole = number as u64;
        (whole as f64 == number && whole <= Token::MAX.get()).then_some(whole)
    };
    value.as_u64().or_else(|| value.as_f64().and_then(exact))
}

/// A JSON value whose objects have no duplicate fields: of two fencing tokens, neither could be trusted.
struct Single(Value);

impl<'de> Deserialize<'de> for Single {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Single, D::Error> {
        struct Any;

        impl<'de> Visitor<'de> for Any {
            type Value = Value;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a JSON value")
            }

            fn visit_bool<E>(self, value: bool) -> Result<Value, E> {
                Ok(value.into())
            }

            fn visit_i64<E>(self, value: i64) -> Result<Value, E> {
                Ok(value.into())
            }

            fn visit_u64<E>(self, value: u64) -> Result<Value, E> {
                Ok(value.into())
            }

            fn visit_f64<E>(self, value: f64) -> Result<Value, E> {
                Ok(value.into())
            }

            fn visit_str<E>(self, value: &str) -> Result<Value, E> {
                Ok(value.into())
            }

            fn visit_string<E>(self, value: String) -> Result<Value, E> {
                Ok(value.into())
            }

            fn visit_unit<E>(self) -> Result<Value, E> {
                Ok(Value::Null)
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
                let mut values = Vec::new();
                while let Some(Single(value)) = seq.next_element()? {
                    values.push(value);
                }
                Ok(values.into())
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
                let mut fields = Map::new();
                while let Some((name, Single(value))) = map.next_entry::<String, Single>()? {
                    if fields.contains_key(&name) {
                        return Err(A::Error::custom(format!("{} appears twice", shown(&name))));
                    }
                    fields.insert(name, value);
                }
                Ok(fields.into())
            }
        }

        deserializer.deserialize_any(Any).map(Single)
    }
}

/// The whole body.
fn parse(body: &[u8]) -> Result<ObjectFields, Problem> {
    match serde_json::from_slice(body) {
        Ok(Single(Value::Object(left))) => Ok(ObjectFields { path: "", left }),
        Ok(Single(other)) => Err(Problem::invalid(format!(
            "the body must be a JSON object, not {}",
            shown(&other.to_string())
        ))),
        Err(error) => Err(Problem::invalid(format!("the body is not valid: {error}"))),
    }
}

impl FromRequest<Arc<App>> for ObjectFields {
    type Rejection = Problem;

    async fn from_request(request: Request, _: &Arc<App>) -> Result<ObjectFields, Problem> {
        declared_as_json(request.headers())?;
        let body = shell::read(request.into_body())
            .await
            .map_err(|error| refused(error.code(), error.to_string()))?;
        if body.is_empty() {
            return Err(Problem::invalid(
                "the body is empty; a JSON object is needed",
            ));
        }
        parse(&body)
    }
}

/// JSON may come without a content type, and with the form type that `curl -d` sends by default; but not from a web
/// page, which can make a visitor's browser send forms anywhere without asking.
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
        Code::UnsupportedMediaType,
        message,
    ))
}

fn authority(name: &str) -> Result<AuthorityId, Problem> {
    AuthorityId::new(name).map_err(|invalid| Problem::invalid(format!("authority: {invalid}")))
}

const TOKEN_RANGE: &str = "an integer in 1 ..= 9007199254740991";
const SEQUENCE_RANGE: &str = "an integer in 0 ..= 9007199254740991";
