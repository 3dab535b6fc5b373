//! A transaction that always claims first.

use std::time::Duration;

use palisade_core::fence::Pass;

use super::guard;
use super::session::{Arg, Session};
use crate::admitted::Admitted;
use crate::error::{Error, Result};
use crate::sql::{Begin, Driver};

const LEASE_LEFT: &str = "SELECT set_config('palisade.lease_left_ms', $1, true)::text";

/// Begins a transaction, claims the resource, does the work in it and commits (rule F2: nothing is read before the claim).
/// After an error of the work, or a rejection, the transaction is rolled back.
///
/// It takes a `&mut tokio_postgres::Client`, or sqlx's `&PgPool` or `&mut PgConnection`. `left` is the rest of the
/// lease: if this program stops for longer inside the transaction, the server ends it; `None` means 10 s. The work runs
/// at most once in each call. After [`ErrorKind::Retry`](crate::ErrorKind::Retry) nothing took effect, and you can
/// repeat the whole call.
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
    F: AsyncFnOnce(&mut C::Tx) -> Result<T, E>,
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

/// Implements one driver: the type that begins a transaction, the transaction's type, and the call.
macro_rules! driver {
    ($lifetime:lifetime, $connection:ty, $tx:ty, $begin:path) => {
        impl<$lifetime> Driver for $connection {
            type Tx = $tx;

            async fn begin(self, left_ms: Option<u64>) -> Result<$tx> {
                began($begin(self).await?, left_ms).await
            }

            async fn claim(tx: &mut $tx, resource: &str, pass: Pass<'_>) -> Result<Admitted<()>> {
                guard::claim(tx, resource, pass).await
            }

            async fn commit(tx: $tx) -> Result<()> {
                Ok(tx.commit().await?)
            }

            async fn roll_back(tx: $tx) {
                let _ = tx.rollback().await;
            }
        }
    };
}

#[cfg(feature = "postgres")]
driver!(
    'c,
    &'c mut tokio_postgres::Client,
    tokio_postgres::Transaction<'c>,
    tokio_postgres::Client::transaction
);
#[cfg(feature = "sqlx-postgres")]
driver!(
    'c,
    &'c mut sqlx::PgConnection,
    sqlx::Transaction<'c, sqlx::Postgres>,
    sqlx::Connection::begin
);
#[cfg(feature = "sqlx-postgres")]
driver!(
    'c,
    &'c sqlx::PgPool,
    sqlx::Transaction<'static, sqlx::Postgres>,
    sqlx::PgPool::begin
);
