//! Readers for the fields of requests, whose complaints name the field and its range.
//!
//! Serde's own message ("invalid type: string, expected u64") does not tell a person at a prompt which
//! of five fields is wrong. A field that may be left out may also be `null`.

use serde::de::{Deserialize as _, Deserializer, Error, Unexpected};
use serde_json::{Number, Value};

use super::{LockMode, MAX_FENCING_TOKEN, PermitsBody};

/// Declares the readers of one field: `optional` and `required`.
macro_rules! field {
    ($name:ident: $type:ty = $read:ident, $must:literal) => {
        pub(super) mod $name {
            #[allow(unused_imports, reason = "two fields have types of their own")]
            use super::{Deserializer, Error, LockMode, PermitsBody, Value, complaint};

            const MUST: &str = concat!(stringify!($name), " must be ", $must);

            #[allow(dead_code, reason = "some fields are required wherever they occur")]
            pub(in super::super) fn optional<'de, D: Deserializer<'de>>(
                input: D,
            ) -> Result<Option<$type>, D::Error> {
                super::$read(input, MUST)
            }

            #[allow(dead_code, reason = "some fields are optional wherever they occur")]
            pub(in super::super) fn required<'de, D: Deserializer<'de>>(
                input: D,
            ) -> Result<$type, D::Error> {
                optional(input)?.ok_or_else(|| D::Error::custom(complaint(MUST, &Value::Null)))
            }
        }
    };
}

pub(crate) use field;

field!(client_id: String = text, "a string of 1 ..= 255 bytes of printable ASCII");
field!(resource_id: String = text, "a string of 1 ..= 255 bytes of printable ASCII");
field!(waiters: u64 = integer, "an integer in 0 ..= 4294967295");
field!(lock_token: String = text, "a string of 32 hexadecimal digits");
field!(request_id: String = text, "a string of 32 hexadecimal digits, or a UUID");
field!(metadata: String = text, "a string of 0 ..= 256 bytes");
field!(value: String = text, "a string of 0 ..= 256 bytes");
field!(reason: String = text, "a string of 0 ..= 256 bytes");
field!(lease_duration_ms: u64 = integer, "an integer in 100 ..= 86400000");
field!(wait_ms: u64 = integer, "an integer in 0 ..= 86400000");
field!(poll_ms: u64 = integer, "an integer in 1000 ..= 60000");
field!(fencing_token: u64 = integer, "an integer in 1 ..= 9007199254740991");
field!(highest: u64 = integer, "an integer in 1 ..= 9007199254740991");
field!(resource: String = text, "a string of 1 ..= 255 bytes");
field!(operation: String = text, "a string of 0 ..= 255 bytes");
field!(mode: LockMode = mode, "\"exclusive\", \"shared\", \"update\", \"upgrade\" or \"permits\"");
field!(also: Vec<String> = names, "an array of names of locks, such as [\"account:8\"]");
field!(permits: PermitsBody = permits, "an object such as {\"count\": 1, \"of\": 5}");
field!(count: u64 = integer, "an integer in 1 ..= 64");
field!(of: u64 = integer, "an integer in 1 ..= 64");
field!(ms: u64 = integer, "an integer in 1 ..= 31536000000");

fn text<'de, D: Deserializer<'de>>(
    input: D,
    must: &'static str,
) -> Result<Option<String>, D::Error> {
    match Value::deserialize(input)? {
        Value::Null => Ok(None),
        Value::String(text) => Ok(Some(text)),
        other => Err(D::Error::custom(complaint(must, &other))),
    }
}

fn mode<'de, D: Deserializer<'de>>(
    input: D,
    must: &'static str,
) -> Result<Option<LockMode>, D::Error> {
    let value = Value::deserialize(input)?;
    match value.as_str() {
        None if value.is_null() => Ok(None),
        Some("exclusive") => Ok(Some(LockMode::Exclusive)),
        Some("shared") => Ok(Some(LockMode::Shared)),
        Some("update") => Ok(Some(LockMode::Update)),
        Some("upgrade") => Ok(Some(LockMode::Upgrade)),
        Some("permits") => Ok(Some(LockMode::Permits)),
        _ => Err(D::Error::custom(complaint(must, &value))),
    }
}

fn names<'de, D: Deserializer<'de>>(
    input: D,
    must: &'static str,
) -> Result<Option<Vec<String>>, D::Error> {
    let names = match Value::deserialize(input)? {
        Value::Null => return Ok(None),
        Value::Array(names) => names,
        other => return Err(D::Error::custom(complaint(must, &other))),
    };
    let names = names.into_iter().map(|name| match name {
        Value::String(name) => Ok(name),
        other => Err(D::Error::custom(format!(
            "{must}; it contains {}",
            describe(&other)
        ))),
    });
    names.collect::<Result<_, _>>().map(Some)
}

fn permits<'de, D: Deserializer<'de>>(
    input: D,
    must: &'static str,
) -> Result<Option<PermitsBody>, D::Error> {
    match Value::deserialize(input)? {
        Value::Null => Ok(None),
        value @ Value::Object(_) => PermitsBody::deserialize(value)
            .map(Some)
            .map_err(|error| D::Error::custom(format!("permits: {error}"))),
        other => Err(D::Error::custom(complaint(must, &other))),
    }
}

pub(crate) fn integer<'de, D: Deserializer<'de>>(
    input: D,
    must: &'static str,
) -> Result<Option<u64>, D::Error> {
    match Value::deserialize(input)? {
        Value::Null => Ok(None),
        Value::Number(number) => match whole(&number) {
            Some(whole) => Ok(Some(whole)),
            None => Err(D::Error::custom(complaint(must, &Value::Number(number)))),
        },
        other => Err(D::Error::custom(complaint(must, &other))),
    }
}

/// JSON has one type of number, so 10, 10.0 and 1e1 are the same integer, as long as a double tells it
/// from its neighbours.
fn whole(number: &Number) -> Option<u64> {
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "it is a whole number in 0 ..= 2^53 - 1"
    )]
    let exact = |number: f64| {
        let is_exact = number.fract() == 0.0 && (0.0..=MAX_FENCING_TOKEN as f64).contains(&number);
        is_exact.then_some(number as u64)
    };
    number.as_u64().or_else(|| number.as_f64().and_then(exact))
}

/// The values that the field takes, and the one given.
pub(crate) fn complaint(must: &str, given: &Value) -> String {
    format!("{must}, not {}", describe(given))
}

/// The type of a JSON value, with its content unless it is a long text.
fn describe(value: &Value) -> Unexpected<'_> {
    match value {
        Value::Null => Unexpected::Other("null"),
        Value::Bool(value) => Unexpected::Bool(*value),
        Value::Number(number) => match (number.as_i64(), number.as_f64()) {
            (Some(number), _) => Unexpected::Signed(number),
            (None, Some(number)) => Unexpected::Float(number),
            (None, None) => Unexpected::Other("a number"),
        },
        Value::String(text) if text.len() <= 64 => Unexpected::Str(text),
        Value::String(_) => Unexpected::Other("a long string"),
        Value::Array(_) => Unexpected::Seq,
        Value::Object(_) => Unexpected::Map,
    }
}
