//! A transaction that always claims first.

use palisade_core::fence::Pass;
use rusqlite::{Connection, Transaction, TransactionBehavior};

use super::busy;
use super::guard::claim;
use crate::error::Error;

/// Begins a transaction with the write lock, claims the resource, does the work in it and commits (rule F2: nothing is read
/// before the claim). After an error of the work, or a rejection, the transaction is rolled back.
///
/// # Errors
/// [`Error::Rejected`] before the work begins; those of the work; errors of the database. After
/// [`ErrorKind::Retry`](crate::ErrorKind::Retry) nothing took effect, and the whole call can be made again.
pub fn transact<'p, T, E: From<Error>>(
    connection: &mut Connection,
    resource: &str,
    pass: impl Into<Pass<'p>>,
    work: impl FnOnce(&Transaction<'_>) -> Result<T, E>,
) -> Result<T, E> {
    let begun = Transaction::new_unchecked(connection, TransactionBehavior::Immediate);
    let tx = begun.map_err(|error| busy::error(connection, resource, error))?;
    claim(&tx, resource, pass)?;
    let done = work(&tx)?;
    tx.commit().map_err(Error::from)?;
    Ok(done)
}
