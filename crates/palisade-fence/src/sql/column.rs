//! Tokens in columns, and the names of columns.

use palisade_core::Token;
use palisade_core::fence::{Op, Pass, Reject, Rule, Verdict};

use crate::error::{Error, Result};
use crate::guard_row::{Corrupt, column_state};

/// Decides a token against the number in a column; `None`: it is admitted.
pub(crate) fn judge(rule: Rule, column: i64, token: Token) -> Result<Option<Reject>, Corrupt> {
    match rule.decide(&column_state(column)?, Pass::new(token), Op::Claim) {
        Verdict::Reject(reject) => Ok(Some(reject)),
        Verdict::Admit(_) | Verdict::Repeat => Ok(None),
    }
}

/// The largest jump of a token, as a number for SQL.
pub(crate) fn bound(rule: Rule) -> u64 {
    rule.max_jump.unwrap_or(Token::MAX.get())
}

/// Checks the name of a table or column, up to the length that the database allows.
pub(crate) fn valid_name(name: &str, longest: usize) -> Result<()> {
    if name.is_empty() || name.len() > longest || name.contains('\0') {
        return Err(Error::Argument(format!(
            "{name:?} is not the name of a table or column: 1 ..= {longest} bytes without NUL are allowed"
        )));
    }
    Ok(())
}

/// Checks a key of `resource_records`.
pub(crate) fn valid_id(id: &str) -> Result<()> {
    let characters = id.chars().count();
    if (1..=100).contains(&characters) && !id.contains('\0') {
        return Ok(());
    }
    Err(Error::Argument(format!(
        "resource_id has {characters} characters; 1 ..= 100 without NUL are allowed"
    )))
}
