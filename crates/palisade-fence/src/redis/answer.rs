//! Conversion of the script's answers into the crate's types.

use palisade_core::fence::{Reject, Sequence};
use palisade_core::{AuthorityId, Code, LockName, Token};
use redis::Value;

use super::fault::Fault;
use crate::checked::{Admitted, Checked};

/// Reads an answer of fence.lua to the token that was presented at a resource; `kind` is the kind of its effect.
pub(super) fn read(
    resource: &str,
    presented: Option<Token>,
    kind: &str,
    reply: Value,
) -> Result<Checked<Value>, Fault> {
    let resource = || resource.to_owned();
    let Value::Array(parts) = reply else {
        return Err(odd(&[reply]));
    };
    let mut words = parts.iter().map_while(word);
    let mut next = || words.next().unwrap_or_default();
    match next() {
        how @ ("admit" | "repeat") => Ok(Checked::Admitted(Admitted {
            highest: token(next()),
            repeat: how == "repeat",
            value: parts.into_iter().nth(2).unwrap_or(Value::Nil),
        })),
        "reject" => match reject(presented, next(), next(), next()) {
            Some(reject) => Ok(Checked::Rejected(reject)),
            None => Err(odd(&parts)),
        },
        "failed" if kind == "script" => Err(Fault::Script(next().to_owned())),
        "failed" => Err(Fault::Command(next().to_owned())),
        "lost" => Err(Fault::Lost {
            resource: resource(),
        }),
        "unarmed" => Err(Fault::Unarmed {
            resource: resource(),
        }),
        "corrupt" => Err(Fault::Corrupt {
            resource: resource(),
            holds: next().to_owned(),
        }),
        _ => Err(odd(&parts)),
    }
}

fn odd(reply: &[Value]) -> Fault {
    Fault::Answer(format!("{reply:?}"))
}

fn reject(presented: Option<Token>, code: &str, what: &str, bound: &str) -> Option<Reject> {
    let last = || what.parse().ok().and_then(Sequence::new);
    Some(match Code::from_name(code)? {
        Code::Stale => Reject::Stale {
            presented: presented?,
            highest: token(what)?,
        },
        Code::SequenceStale => Reject::SequenceStale { last: last()? },
        Code::AlreadyWritten => Reject::AlreadyWritten,
        Code::SequenceReused => Reject::SequenceReused { last: last()? },
        Code::WrongAuthority => Reject::WrongAuthority {
            bound: AuthorityId::new(what).ok()?,
        },
        Code::WrongLock => Reject::WrongLock {
            bound: LockName::new(what).ok()?,
        },
        Code::Jump => Reject::Jump {
            highest: token(what),
            bound: bound.parse().ok()?,
        },
        Code::Tokenless => Reject::Tokenless {
            highest: token(what)?,
        },
        Code::Missing => Reject::Missing,
        _ => return None,
    })
}

pub(super) fn token(text: &str) -> Option<Token> {
    Token::new(text.parse().ok()?).ok()
}

/// Returns a text in an answer; `None` if it is another type.
pub(super) fn word(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        _ => None,
    }
}
