//! A transaction that claims first by construction.

use std::time::Duration;

use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Transaction, TxOpts};
use palisade_core::fence::Pass;

use super::guard;
use crate::admitted::Admitted;
use crate::error::{Error, Result};
use crate::sql::Driver;

/// Begins a transaction, claims the resource, does the work in it and commits (rule F2: nothing is read before the claim).
/// After an error of the work, or a rejection, the transaction is rolled back.
///
/// `left` is what is left of the lease: if this program stops for longer inside the transaction, MariaDB ends it; without
/// `left`, that is 10 s. Afterwards the connection has its own setting again. MySQL has no such bound but the connection's
/// `wait_timeout`. The work may run twice only if you call this twice: after
/// [`ErrorKind::Retry`](crate::ErrorKind::Retry) nothing took effect, and the whole call can be made again.
///
/// # Errors
/// [`Error::Rejected`] before the work begins; those of the work; errors of the database. A user without EXECUTE, and files
/// of the fence from before `palisade_end`, are errors at the commit: nothing took effect. After
/// [`ErrorKind::Unknown`](crate::ErrorKind::Unknown) it may have taken effect.
pub async fn transact<'p, T, E, F>(
    connection: &mut Conn,
    resource: &str,
    pass: impl Into<Pass<'p>>,
    left: Option<Duration>,
    work: F,
) -> Result<T, E>
where
    F: AsyncFnOnce(&mut Transaction<'_>) -> Result<T, E>,
    E: From<Error>,
{
    crate::sql::transact(connection, resource, pass.into(), left, work).await
}

impl<'c> Driver for &'c mut Conn {
    type Tx = Transaction<'c>;

    async fn begin(self, left_ms: Option<u64>) -> Result<Transaction<'c>> {
        let mut tx = self.start_transaction(TxOpts::default()).await?;
        tx.exec_drop("SET @palisade_lease_left_ms = ?", (left_ms,))
            .await?;
        Ok(tx)
    }

    async fn claim(
        tx: &mut Transaction<'c>,
        resource: &str,
        pass: Pass<'_>,
    ) -> Result<Admitted<()>> {
        guard::claim(tx, resource, pass).await
    }

    /// The procedure commits: between a commit and another statement this program could stop with the wrong bound.
    async fn commit(mut tx: Transaction<'c>) -> Result<()> {
        if let Err(error) = tx.query_drop("CALL palisade_end(TRUE)").await {
            // Else the transaction would keep its locks until the connection is used again.
            let _ = tx.rollback().await;
            return Err(error.into());
        }
        Ok(tx.commit().await?)
    }

    async fn roll_back(mut tx: Transaction<'c>) {
        let _ = tx.query_drop("CALL palisade_end(FALSE)").await;
        let _ = tx.rollback().await;
    }
}
