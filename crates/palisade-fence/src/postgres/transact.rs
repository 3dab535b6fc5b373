//! A transaction that always claims first.

use std::time::Duration;

use palisade_core::fence::Pass;

use super::guard;
use super::session::{Arg, Session};
use crate::admitted::Admitted;
use crate::error::{Error, Result};
use crate::sql::{Begin, Driver, Family, Tx};

const LEASE_LEFT: &str = "SELECT set_config('palisade.lease_left_ms', $1, true)::text";

/// Begins a transaction, claims the resource, does the work in it and commits (rule F2: nothing is read before the claim).
/// After an error of the work, or a rejection, the transaction is rolled back.
///
/// It takes a `&mut tokio_postgres::Client`, or sqlx's `&PgPool` or `&mut PgConnection`. `left` is the rest of the
/// lease: if this program stops for longer inside the transaction, the server ends it; `None` means 10 s. The work runs
/// at most once in each call. After [`ErrorKind::Retry`](crate::ErrorKind::Retry) nothing took effect, and you can
/// repeat the whole call. Its future is `Send` where that of the work is, so a handler of axum can await it.
///
/// ```no_run
/// # #[cfg(feature = "postgres")] mod example {
/// # use palisade_core::Token;
/// # use palisade_fence::postgres::transact;
/// # async fn add(client: &mut tokio_postgres::Client, token: Token) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// transact(client, "orders", token, None, async |tx| {
///     let total: i64 = tx.query_one("SELECT total FROM orders", &[]).await?.get(0);
///     tx.execute("UPDATE orders SET total = $1", &[&(total + 5)]).await?;
///     Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
/// })
/// .await?;
/// # Ok(())
/// # }
/// # }
/// ```
///
/// # Errors
/// [`Error::Rejected`] before the work begins; the errors of the work; errors of the database. After
/// [`ErrorKind::Unknown`](crate::ErrorKind::Unknown) the transaction may have taken effect.
pub async fn transact<'p, C, T, E, F>(
    connection: C,
    resource: &str,
    pass: impl Into<Pass<'p>>,
    left: Option<Duration>,
    work: F,
) -> Result<T, E>
where
    C: Begin,
    F: AsyncFnOnce(&mut C::Tx<'_>) -> Result<T, E>,
    E: From<Error>,
{
    crate::sql::transact(connection, resource, pass.into(), left, work).await
}

/// Passes the rest of the lease to the server, if it is known.
async fn began<S: Session>(mut tx: S, left_ms: Option<u64>) -> Result<S> {
    if let Some(left) = left_ms {
        let left = left.to_string();
        tx.run(LEASE_LEFT, &[Arg::Text(Some(&left))]).await?;
    }
    Ok(tx)
}

/// Implements one kind of transaction.
macro_rules! transaction {
    ($tx:ty) => {
        impl Tx for $tx {
            async fn claim(&mut self, resource: &str, pass: Pass<'_>) -> Result<Admitted<()>> {
                guard::claim(self, resource, pass).await
            }

            async fn end(self) -> Result<()> {
                Ok(self.commit().await?)
            }

            async fn undo(self) {
                let _ = self.rollback().await;
            }
        }
    };
}

/// Implements one driver: the type that begins a transaction, the transaction's type, and the call.
macro_rules! driver {
    ($connection:ty, $lifetime:lifetime, $tx:ty, $begin:expr) => {
        impl Family for $connection {
            type Tx<$lifetime> = $tx;
        }

        impl Driver for $connection {
            async fn begin(&mut self, left_ms: Option<u64>) -> Result<<Self as Family>::Tx<'_>> {
                began($begin(self).await?, left_ms).await
            }
        }
    };
}

#[cfg(feature = "postgres")]
transaction!(tokio_postgres::Transaction<'_>);
#[cfg(feature = "postgres")]
driver!(
    &mut tokio_postgres::Client,
    't,
    tokio_postgres::Transaction<'t>,
    tokio_postgres::Client::transaction
);
#[cfg(feature = "sqlx-postgres")]
transaction!(sqlx::Transaction<'_, sqlx::Postgres>);
#[cfg(feature = "sqlx-postgres")]
driver!(
    &mut sqlx::PgConnection,
    't,
    sqlx::Transaction<'t, sqlx::Postgres>,
    <sqlx::PgConnection as sqlx::Connection>::begin
);
#[cfg(feature = "sqlx-postgres")]
driver!(
    &sqlx::PgPool,
    't,
    sqlx::Transaction<'t, sqlx::Postgres>,
    sqlx::PgPool::begin
);
