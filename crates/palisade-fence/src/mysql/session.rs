//! The state of the connection for the triggers: session variables.
//!
//! MySQL has no transaction variables. These variables stay until the connection claims again, is reset or is
//! closed. The triggers compare them with the guard row, under its lock, so that a token that has become
//! stale is still rejected.

use std::collections::BTreeMap;

use mysql_async::Transaction;
use mysql_async::consts::StatusFlags;
use mysql_async::prelude::Queryable as _;
use palisade_core::Token;

use super::rows::int;
use crate::sql::Fault;

/// Checks that the last statement ran in a transaction. A statement that commits implicitly, such as CREATE
/// TABLE, ends the transaction.
pub(super) fn in_transaction(tx: &Transaction<'_>) -> Result<(), Fault> {
    let flags = tx.last_ok_packet().map(|ok| ok.status_flags());
    match flags.is_some_and(|flags| flags.contains(StatusFlags::SERVER_STATUS_IN_TRANS)) {
        true => Ok(()),
        false => Err(Fault::NoTransaction),
    }
}

/// Shows the triggers of token columns (`palisade_check_column`) the token under which this connection will
/// write. Only tables with such triggers need it; it stays until the next call.
///
/// # Errors
/// Faults of the database.
pub async fn show_token(tx: &mut Transaction<'_>, token: Token) -> Result<(), Fault> {
    let arguments = (int(token.get()),);
    Ok(tx
        .exec_drop("SET @palisade_column_token = ?", arguments)
        .await?)
}

/// The tokens that this connection shows, by resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ShownTokens(BTreeMap<String, String>);

impl ShownTokens {
    /// Parses lines of a name, a tab and a token.
    pub(super) fn parse(text: &str) -> ShownTokens {
        let lines = text.lines().filter_map(|line| line.split_once('\t'));
        ShownTokens(lines.map(|(a, b)| (a.to_owned(), b.to_owned())).collect())
    }

    /// Sets or removes the token of a resource; returns whether that changed anything.
    pub(super) fn set(&mut self, resource: &str, token: Option<Token>) -> bool {
        let token = token.map(|token| token.to_string());
        if self.0.get(resource) == token.as_ref() {
            return false;
        }
        match token {
            Some(token) => self.0.insert(resource.to_owned(), token),
            None => self.0.remove(resource),
        };
        true
    }

    pub(super) async fn send(&self, tx: &mut Transaction<'_>) -> Result<(), Fault> {
        let lines = self
            .0
            .iter()
            .map(|(name, token)| format!("{name}\t{token}\n"));
        let text = format!("\n{}", lines.collect::<String>());
        Ok(tx.exec_drop("SET @palisade_tokens = ?", (text,)).await?)
    }
}
