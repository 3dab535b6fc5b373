//! A transaction that always claims first.

use std::time::Duration;

use mysql_async::prelude::Queryable as _;
use mysql_async::{Conn, Transaction, TxOpts};
use palisade_core::fence::Pass;

use super::guard;
use crate::admitted::Admitted;
use crate::error::{Error, Result};
use crate::sql::{Driver, Family, Tx};

/// Begins a transaction, claims the resource, does the work in it and commits (rule F2: nothing is read before the claim).
/// After an error of the work, or a rejection, the transaction is rolled back.
///
/// `left` is the rest of the lease: if this program stops for longer inside the transaction, MariaDB ends it; `None`
/// means 10 s. Afterwards the connection has its own setting again. MySQL has no such bound except the connection's
/// `wait_timeout`. The work runs at most once in each call. After [`ErrorKind::Retry`](crate::ErrorKind::Retry) nothing
/// took effect, and you can repeat the whole call. Its future is `Send` where that of the work is, so a handler of axum
/// can await it.
///
/// # Errors
/// [`Error::Rejected`] before the work begins; the errors of the work; errors of the database. If the user lacks
/// EXECUTE, or the fence's schema is older than `palisade_end`, the commit fails and nothing took effect. After
/// [`ErrorKind::Unknown`](crate::ErrorKind::Unknown) the transaction may have taken effect.
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

impl Family for &mut Conn {
    type Tx<'t> = Transaction<'t>;
}

impl Driver for &mut Conn {
    async fn begin(&mut self, left_ms: Option<u64>) -> Result<Transaction<'_>> {
        let mut tx = self.start_transaction(TxOpts::default()).await?;
        tx.exec_drop("SET @palisade_lease_left_ms = ?", (left_ms,))
            .await?;
        Ok(tx)
    }
}

impl Tx for Transaction<'_> {
    async fn claim(&mut self, resource: &str, pass: Pass<'_>) -> Result<Admitted<()>> {
        guard::claim(self, resource, pass).await
    }

    /// The procedure commits and resets the bound, because this program could stop between a commit and a second
    /// statement.
    async fn end(mut self) -> Result<()> {
        if let Err(error) = self.query_drop("CALL palisade_end(TRUE)").await {
            // Otherwise the transaction would hold its locks until the connection is used again.
            let _ = self.rollback().await;
            return Err(error.into());
        }
        Ok(self.commit().await?)
    }

    async fn undo(mut self) {
        let _ = self.query_drop("CALL palisade_end(FALSE)").await;
        let _ = self.rollback().await;
    }
}
