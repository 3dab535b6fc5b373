//! Tokens in columns, and the names of columns.

use palisade_core::Token;
use palisade_core::fence::{Op, Pass, Reject, Rule, Verdict};

use crate::error::{Error, Result};
use crate::guard_row::{CorruptRow, column_state};

/// Decides a token against the number in a column; `None`: it is admitted.
pub(crate) fn judge(rule: Rule, column: i64, token: Token) -> Result<Option<Reject>, CorruptRow> {
    match rule.decide(&column_state(column)?, Pass::new(token), Op::Claim) {
        Verdict::Reject(reject) => Ok(Some(reject)),
        Verdict::Admit(_) | Verdict::Repeat => Ok(None),
    }
}

/// The largest jump of a token, as a number for SQL.
pub(crate) fn bound(rule: Rule) -> u64 {
    rule.max_jump.unwrap_or(Token::MAX.get())
}

/// Refuses a column that is not the row's token alone: each raise would write the key of the row, or the fence's own marks
/// past the fence.
pub(crate) fn check_column(table: &str, key: &str, token: &str) -> Result<()> {
    if key.eq_ignore_ascii_case(token) {
        return Err(Error::Argument(format!(
            "{token:?} is the key of the row: the token needs a column of its own"
        )));
    }
    let table = table.rsplit('.').next().unwrap_or(table);
    if table.eq_ignore_ascii_case("palisade_fence") {
        return Err(Error::Argument(format!(
            "{table:?} is the fence's own table: claim its resources, and give each row of your own table a token"
        )));
    }
    Ok(())
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_column_is_neither_the_key_nor_the_fences_own() {
        for (table, key, token) in [
            ("orders", "id", "id"),
            ("orders", "ID", "id"),
            ("palisade_fence", "resource", "token"),
            ("shop.Palisade_Fence", "resource", "token"),
        ] {
            let refused = check_column(table, key, token);
            assert!(
                matches!(refused, Err(Error::Argument(_))),
                "{table} {key}: {refused:?}"
            );
        }
        for table in ["orders", "shop.orders", "palisade_fences"] {
            assert!(check_column(table, "id", "token").is_ok(), "{table}");
        }
    }
}
