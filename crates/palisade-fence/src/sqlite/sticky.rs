//! Triggers that stop code without a token. They call the function of [`token_function`](super::token_function).

use palisade_core::Token;
use palisade_core::fence::Reject;
use rusqlite::{Connection, Error};

use super::guard::show;
use super::token_function::{shown_token, unregistered};
use crate::audit;
use crate::name::ResourceId;
use crate::sql::{Fault, valid_name};

const TEMPLATE: &str = include_str!("../../sql/sqlite/sticky.sql");
const EVENTS: [&str; 3] = ["INSERT", "UPDATE", "DELETE"];

/// Returns the SQL that makes a table sticky (rule F9): every write to it must use a connection that claimed
/// the resource with its highest token. Run it with `execute_batch`; running it again changes nothing.
///
/// `sql/sqlite/sticky.sql` describes what it does not stop.
///
/// # Errors
/// [`Fault::Argument`] or [`Fault::Invalid`] with the name that is not valid.
pub fn sticky(table: &str, resource: &str) -> Result<String, Fault> {
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
/// [`Fault::Argument`] if the name of the table is not valid.
pub fn unstick(table: &str) -> Result<String, Fault> {
    let one = |event: &&str| {
        Ok(format!(
            "DROP TRIGGER IF EXISTS {};\n",
            trigger(table, event)?
        ))
    };
    EVENTS.iter().map(one).collect()
}

/// Returns the rejection if a trigger of [`sticky`] caused this error of your own statement.
///
/// # Errors
/// Every other error, as a fault.
pub fn why(tx: &Connection, resource: &str, error: Error) -> Result<Reject, Fault> {
    match (show(tx, resource), shown_token(tx, resource)) {
        (Ok(state), Ok(presented)) => {
            let highest = state.and_then(|state| state.highest());
            rejection(resource, error, presented, highest)
        }
        _ => Err(error.into()),
    }
}

/// Converts an error into a rejection and records it for the operator. A trigger's message cannot contain a
/// number, so the tokens are passed in.
pub(super) fn rejection(
    resource: &str,
    error: Error,
    presented: Option<Token>,
    highest: Option<Token>,
) -> Result<Reject, Fault> {
    let words = error.to_string();
    let reject = match (presented, highest) {
        (Some(presented), Some(highest)) if words.contains("palisade stale:") => {
            Reject::Stale { presented, highest }
        }
        (_, Some(highest)) if words.contains("palisade tokenless:") || unregistered(&words) => {
            Reject::Tokenless { highest }
        }
        _ => return Err(error.into()),
    };
    audit::rejected(resource, None, &reject);
    Ok(reject)
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

fn trigger(table: &str, event: &str) -> Result<String, Fault> {
    identifier(&format!("palisade_sticky_{}_{table}", event.to_lowercase()))
}

/// Quotes a name for SQL.
pub(super) fn identifier(name: &str) -> Result<String, Fault> {
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
