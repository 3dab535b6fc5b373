//! The state of the connection for the triggers: session variables.
//!
//! MySQL has no transaction variables. These variables stay until the connection claims again, is reset or is
//! closed. The triggers compare them with the guard row, under its lock, so that a token that has become
//! stale is still rejected.

use mysql_async::Transaction;
use mysql_async::consts::StatusFlags;
use mysql_async::prelude::Queryable as _;
use palisade_core::Token;

use super::rows::int;
use crate::error::{Error, Result};

/// Checks that the last statement ran in a transaction. A statement that commits implicitly, such as CREATE
/// TABLE, ends the transaction.
pub(super) fn in_transaction(tx: &Transaction<'_>) -> Result<()> {
    let flags = tx.last_ok_packet().map(|ok| ok.status_flags());
    if flags.is_some_and(|flags| flags.contains(StatusFlags::SERVER_STATUS_IN_TRANS)) {
        Ok(())
    } else {
        Err(Error::NoTransaction)
    }
}

/// Sets the token under which this connection writes, for the triggers of token columns (`palisade_check_column`). Only
/// tables with such triggers need it. It stays until the next call.
///
/// # Errors
/// Errors of the database.
pub async fn show_token(tx: &mut Transaction<'_>, token: Token) -> Result<()> {
    let arguments = (int(token.get()),);
    Ok(tx
        .exec_drop("SET @palisade_column_token = ?", arguments)
        .await?)
}
