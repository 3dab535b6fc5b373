//! A transaction that claims first by construction.

use std::time::Duration;

use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Transaction, TxOpts};
use palisade_core::fence::Pass;

use super::guard::claim;
use crate::checked::Checked;
use crate::sql::{Fault, left_ms};

/// Begins a transaction, claims the resource, does the work in it and commits (rule F2: nothing is read before the claim).
/// After an error of the work, or a rejection, the transaction is rolled back.
///
/// `left` is what is left of the lease: if this program stops for longer inside the transaction, MariaDB ends it; without
/// `left`, that is 10 s. MySQL has no such bound but the connection's `wait_timeout`. The work may run twice only if you
/// call this twice: after [`FaultKind::Retry`](crate::FaultKind::Retry) nothing took effect, and the whole call can be made
/// again.
///
/// # Errors
/// Those of the work, and faults of the database. After [`FaultKind::Unknown`](crate::FaultKind::Unknown) it may have taken
/// effect.
pub async fn transact<'p, T, E, F>(
    connection: &mut Conn,
    resource: &str,
    pass: impl Into<Pass<'p>>,
    left: Option<Duration>,
    work: F,
) -> Result<Checked<T>, E>
where
    F: AsyncFnOnce(&mut Transaction<'_>) -> Result<T, E>,
    E: From<Fault>,
{
    let begun = connection.start_transaction(TxOpts::default()).await;
    let mut tx = begun.map_err(Fault::from)?;
    let left = left.map(left_ms);
    tx.exec_drop("SET @palisade_lease_left_ms = ?", (left,))
        .await
        .map_err(Fault::from)?;
    let done = match claim(&mut tx, resource, pass).await {
        Err(fault) => Err(fault.into()),
        Ok(Checked::Rejected(reject)) => Ok(Checked::Rejected(reject)),
        Ok(Checked::Admitted(admitted)) => match work(&mut tx).await {
            Err(error) => Err(error),
            Ok(done) => {
                tx.commit().await.map_err(Fault::from)?;
                return Ok(Checked::admitted(done, admitted.highest));
            }
        },
    };
    // If this fails, the connection is broken, and the server rolls back. The first error says more.
    let _ = tx.rollback().await;
    done
}
