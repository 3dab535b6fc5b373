//! Conversion of the script's answers into the crate's types.

use palisade_core::fence::{Reject, Sequence};
use palisade_core::{AuthorityId, Code, LockName, Token};
use redis::Value;

use crate::admitted::Admitted;
use crate::error::{Error, Result};

/// Reads an answer of fence.lua to the token that was presented at a resource; `kind` is the kind of its effect.
pub(super) fn read(
    resource: &str,
    presented: Option<Token>,
    kind: &str,
    reply: Value,
) -> Result<Admitted<Value>> {
    let Value::Array(parts) = reply else {
        return Err(odd(&[reply]));
    };
    let mut words = parts.iter().map_while(word);
    let mut next = || words.next().unwrap_or_default();
    match next() {
        how @ ("admit" | "repeat") => Ok(Admitted {
            highest: token(next()),
            repeat: how == "repeat",
            value: parts.into_iter().nth(2).unwrap_or(Value::Nil),
        }),
        "reject" => match reject(presented, next(), next(), next()) {
            Some(reject) => Err(Error::Rejected(reject)),
            None => Err(odd(&parts)),
        },
        "failed" if kind == "script" => Err(Error::Script(next().to_owned())),
        "failed" => Err(Error::Command(next().to_owned())),
        "lost" => Err(Error::FenceLost(format!(
            "{resource}: there is data without its fence state; an operator must re-arm the fence with a floor"
        ))),
        "unarmed" => Err(Error::Argument(format!(
            "{resource}: the first write must carry a fencing token"
        ))),
        "corrupt" => Err(not_a_state(resource, next())),
        _ => Err(odd(&parts)),
    }
}

/// A mark that no fence can have written.
pub(super) fn not_a_state(resource: &str, holds: &str) -> Error {
    Error::Damaged(format!("{resource}: {holds:?} is not a fence state"))
}

/// An answer that the script does not give.
pub(super) fn odd(reply: &[Value]) -> Error {
    Error::Unsuitable(format!(
        "Redis gave an answer that the fence's script never gives: {reply:?}"
    ))
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
