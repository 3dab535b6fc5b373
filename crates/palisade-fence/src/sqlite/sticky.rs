//! Triggers that stop code without a token, and the token that a connection shows them.
//!
//! SQLite has neither transaction variables nor session variables, and a trigger cannot see temporary tables.
//! It can call a function that the connection has registered: the claim registers `palisade_token` and sets
//! the token. So the connection remembers the token, not the transaction. The trigger compares it with the
//! guard row, under the write lock, so that a token that has become stale is still rejected.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use palisade_core::Token;
use palisade_core::fence::Reject;
use rusqlite::functions::{Context, FunctionFlags};
use rusqlite::{Connection, Error, params};

use super::column::identifier;
use super::operator::show;
use super::rows::int;
use crate::audit;
use crate::name::ResourceId;
use crate::sql::Fault;

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
    match show(tx, resource) {
        Ok(state) => rejection(resource, error, state.and_then(|state| state.highest())),
        Err(_) => Err(error.into()),
    }
}

/// Converts an error into a rejection and records it for the operator. A trigger's message cannot contain a
/// number, so the highest token is passed in.
pub(super) fn rejection(
    resource: &str,
    error: Error,
    highest: Option<Token>,
) -> Result<Reject, Fault> {
    let words = error.to_string();
    let reject = match highest {
        Some(highest) if words.contains("palisade stale:") => Reject::Stale { highest },
        Some(highest) if words.contains("palisade tokenless:") || unregistered(&words) => {
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

/// Sets or removes the connection's token at a resource.
pub(super) fn show_token(
    tx: &Connection,
    resource: &str,
    token: Option<Token>,
) -> Result<(), Fault> {
    let token = token.map(|token| int(token.get()));
    let set_token = || {
        let mut statement = tx.prepare_cached("SELECT palisade_token(?1, ?2)")?;
        statement.query_row(params![resource, token], |_| Ok(()))
    };
    match set_token() {
        Err(error) if unregistered(&error.to_string()) => {
            register(tx)?;
            Ok(set_token()?)
        }
        other => Ok(other?),
    }
}

fn unregistered(words: &str) -> bool {
    words.contains("no such function: palisade_token")
}

/// Registers the functions: `palisade_token(resource)` returns the token, and
/// `palisade_token(resource, token)` sets it. Triggers and views cannot use the latter.
fn register(connection: &Connection) -> rusqlite::Result<()> {
    let tokens: Arc<Mutex<BTreeMap<String, i64>>> = Arc::default();
    let shown = Arc::clone(&tokens);
    let reading = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_INNOCUOUS;
    let get = move |call: &Context<'_>| {
        let resource: String = call.get(0)?;
        let shown = shown.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(shown.get(&resource).copied())
    };
    connection.create_scalar_function("palisade_token", 1, reading, get)?;
    let writing = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DIRECTONLY;
    let set = move |call: &Context<'_>| {
        let (resource, token): (String, Option<i64>) = (call.get(0)?, call.get(1)?);
        let mut tokens = tokens.lock().unwrap_or_else(PoisonError::into_inner);
        match token {
            Some(token) => tokens.insert(resource, token),
            None => tokens.remove(&resource),
        };
        Ok(token)
    };
    connection.create_scalar_function("palisade_token", 2, writing, set)
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
