//! A transaction that claims first by construction.

use palisade_core::fence::Pass;
use rusqlite::{Connection, Transaction, TransactionBehavior};

use super::busy;
use super::guard::claim;
use crate::checked::Checked;
use crate::sql::Fault;

/// Begins a transaction with the write lock, claims the resource, does the work in it and commits (rule F2: nothing is read
/// before the claim). After an error of the work, or a rejection, the transaction is rolled back.
///
/// # Errors
/// Those of the work, and faults of the database. After [`FaultKind::Retry`](crate::FaultKind::Retry) nothing took effect,
/// and the whole call can be made again.
pub fn transact<'p, T, E: From<Fault>>(
    connection: &mut Connection,
    resource: &str,
    pass: impl Into<Pass<'p>>,
    work: impl FnOnce(&Transaction<'_>) -> Result<T, E>,
) -> Result<Checked<T>, E> {
    let begun = Transaction::new_unchecked(connection, TransactionBehavior::Immediate);
    let tx = begun.map_err(|error| busy::fault(connection, resource, error))?;
    match claim(&tx, resource, pass)? {
        Checked::Rejected(reject) => Ok(Checked::Rejected(reject)),
        Checked::Admitted(admitted) => {
            let done = work(&tx)?;
            tx.commit().map_err(Fault::from)?;
            Ok(Checked::admitted(done, admitted.highest))
        }
    }
}
