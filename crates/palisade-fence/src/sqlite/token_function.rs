//! The SQL function `palisade_token`: the token that a connection shows the triggers.
//!
//! SQLite has neither transaction variables nor session variables, and a trigger cannot see temporary tables.
//! It can call a function that the connection has registered: the claim registers `palisade_token` and sets
//! the token. So the connection remembers the token, not the transaction. The trigger compares it with the
//! guard row, under the write lock, so that a token that has become stale is still rejected.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use palisade_core::Token;
use rusqlite::functions::{Context, FunctionFlags};
use rusqlite::{Connection, params};

use super::rows::int;
use crate::error::Result;

/// Sets or removes the connection's token at a resource.
pub(super) fn show_token(tx: &Connection, resource: &str, token: Option<Token>) -> Result<()> {
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

/// The connection's token at a resource, if it has claimed one.
pub(super) fn shown_token(tx: &Connection, resource: &str) -> Result<Option<Token>> {
    let mut statement = match tx.prepare_cached("SELECT palisade_token(?1)") {
        Err(error) if unregistered(&error.to_string()) => return Ok(None),
        prepared => prepared?,
    };
    let shown: Option<i64> = statement.query_row([resource], |row| row.get(0))?;
    Ok(shown.and_then(|number| Token::new(u64::try_from(number).ok()?).ok()))
}

/// Whether an error says that the connection has no such function.
pub(super) fn unregistered(words: &str) -> bool {
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
