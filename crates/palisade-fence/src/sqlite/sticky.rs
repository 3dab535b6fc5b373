//! Triggers that stop code without a token. They call the function of [`token_function`](super::token_function).

use palisade_core::Token;
use palisade_core::fence::Reject;
use rusqlite::Connection;

use super::guard::show;
use super::token_function::{shown_token, unregistered};
use crate::audit;
use crate::error::{Error, Result};
use crate::name::ResourceId;
use crate::sql::valid_name;

const TEMPLATE: &str = include_str!("../../sql/sqlite/sticky.sql");
const EVENTS: [&str; 3] = ["INSERT", "UPDATE", "DELETE"];

/// Returns the SQL that makes a table sticky (rule F9): every write to it must use a connection that claimed
/// the resource with its highest token. Run it with `execute_batch`; running it again changes nothing.
///
/// `sql/sqlite/sticky.sql` lists the writes that it does not stop.
///
/// # Errors
/// [`Error::Argument`] or [`Error::Name`] with the name that is not valid.
pub fn sticky(table: &str, resource: &str) -> Result<String> {
    ResourceId::new(resource)?;
    let literal = format!("'{}'", resource.replace('\'', "''"));
    let one = |event: &&str| {
        let names = [
            ("trigger", trigger(table, event)?),
            ("event", (*event).to_owned()),
            ("table", identifier(table)?),
            ("resource", literal.clone()),
        ];
        Ok(fill(TEMPLATE, &names))
    };
    EVENTS.iter().map(one).collect()
}

/// Returns the SQL that removes the triggers of [`sticky`].
///
/// # Errors
/// [`Error::Argument`] if the name of the table is not valid.
pub fn unstick(table: &str) -> Result<String> {
    let one = |event: &&str| {
        Ok(format!(
            "DROP TRIGGER IF EXISTS {};\n",
            trigger(table, event)?
        ))
    };
    EVENTS.iter().map(one).collect()
}

/// Converts the error of your own statement: [`Error::Rejected`] if a trigger of [`sticky`] caused it.
///
/// ```
/// # use palisade_fence::sqlite::{MIGRATIONS, claim, sticky, why};
/// # use palisade_core::Token;
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let db = rusqlite::Connection::open_in_memory()?;
/// # for (_, sql) in MIGRATIONS { db.execute_batch(sql)?; }
/// # db.execute_batch("CREATE TABLE orders (id TEXT, total INTEGER)")?;
/// # db.execute_batch(&sticky("orders", "orders")?)?;
/// # let tx = db.unchecked_transaction()?;
/// # claim(&tx, "orders", Token::FIRST)?;
/// tx.execute("UPDATE orders SET total = 5 WHERE id = '17'", [])
///     .map_err(|error| why(&tx, "orders", error))?;
/// # Ok(())
/// # }
/// ```
pub fn why(tx: &Connection, resource: &str, error: rusqlite::Error) -> Error {
    match (show(tx, resource), shown_token(tx, resource)) {
        (Ok(state), Ok(presented)) => {
            let highest = state.and_then(|state| state.highest());
            rejection(resource, error, presented, highest)
        }
        _ => error.into(),
    }
}

/// Converts an error, and records a rejection for the operator. A trigger's message cannot contain a number, so the tokens
/// are passed in.
pub(super) fn rejection(
    resource: &str,
    error: rusqlite::Error,
    presented: Option<Token>,
    highest: Option<Token>,
) -> Error {
    let words = error.to_string();
    let reject = match (presented, highest) {
        (Some(presented), Some(highest)) if words.contains("palisade stale:") => {
            Reject::Stale { presented, highest }
        }
        (_, Some(highest)) if words.contains("palisade tokenless:") || unregistered(&words) => {
            Reject::Tokenless { highest }
        }
        _ => return error.into(),
    };
    audit::reject(resource, None, reject)
}

/// Replaces each `{name}` in a template with the text of that name.
pub(super) fn fill(template: &str, names: &[(&str, String)]) -> String {
    let mut filled = String::with_capacity(template.len());
    let mut rest = template;
    while let Some((before, behind)) = rest.split_once('{') {
        let Some((name, behind)) = behind.split_once('}') else {
            break;
        };
        filled.push_str(before);
        let given = names.iter().find(|(known, _)| *known == name);
        filled.push_str(given.map_or("", |(_, text)| text));
        rest = behind;
    }
    filled + rest
}

/// The resource in a trigger of [`sticky`].
pub(super) fn resource_of(trigger: &str) -> Option<String> {
    let (_, literal) = trigger.split_once("palisade_token('")?;
    let (literal, _) = literal.split_once("') IS NULL")?;
    Some(literal.replace("''", "'"))
}

fn trigger(table: &str, event: &str) -> Result<String> {
    identifier(&format!("palisade_sticky_{}_{table}", event.to_lowercase()))
}

/// Quotes a name for SQL.
pub(super) fn identifier(name: &str) -> Result<String> {
    valid_name(name, 255)?;
    Ok(format!("\"{}\"", name.replace('"', "\"\"")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_cannot_end_the_statement() {
        let sql = sticky("a\"b", "it's").unwrap();
        assert!(sql.contains("ON \"a\"\"b\" BEGIN"), "{sql}");
        assert!(sql.contains("palisade_token('it''s')"), "{sql}");
        assert_eq!(resource_of(&sql).as_deref(), Some("it's"));
        assert!(sticky("", "r").is_err());
        assert!(sticky("t", "").is_err());
        assert!(!sql.contains('{') && !sql.contains('}'), "{sql}");
    }
}
