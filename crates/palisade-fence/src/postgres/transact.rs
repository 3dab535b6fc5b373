//! A transaction that claims first by construction.

use std::time::Duration;

use palisade_core::fence::Pass;
use tokio_postgres::{Client, Transaction};

use super::guard::claim;
use super::session::{Arg, sealed::Drives as _};
use crate::checked::Checked;
use crate::sql::{Fault, left_ms};

const LEASE_LEFT: &str = "SELECT set_config('palisade.lease_left_ms', $1, true)::text";

/// Begins a transaction, claims the resource, does the work in it and commits (rule F2: nothing is read before the claim).
/// After an error of the work, or a rejection, the transaction is rolled back.
///
/// `left` is what is left of the lease: if this program stops for longer inside the transaction, the server ends it. Without
/// it, that is 10 s. The work may run twice only if you call this twice: after [`FaultKind::Retry`](crate::FaultKind::Retry)
/// nothing took effect, and the whole call can be made again.
///
/// ```no_run
/// # use palisade_core::Token;
/// # use palisade_fence::postgres::transact;
/// # async fn add(client: &mut tokio_postgres::Client, token: Token) -> Result<(), Box<dyn std::error::Error + Send + Sync>> {
/// transact(client, "orders", token, None, async |tx| {
///     let total: i64 = tx.query_one("SELECT total FROM orders", &[]).await?.get(0);
///     tx.execute("UPDATE orders SET total = $1", &[&(total + 5)]).await?;
///     Ok::<_, Box<dyn std::error::Error + Send + Sync>>(())
/// })
/// .await?
/// .into_result()?;
/// # Ok(())
/// # }
/// ```
///
/// # Errors
/// Those of the work, and faults of the database. After [`FaultKind::Unknown`](crate::FaultKind::Unknown) it may have taken
/// effect.
pub async fn transact<'p, T, E, F>(
    client: &mut Client,
    resource: &str,
    pass: impl Into<Pass<'p>>,
    left: Option<Duration>,
    work: F,
) -> Result<Checked<T>, E>
where
    F: AsyncFnOnce(&mut Transaction<'_>) -> Result<T, E>,
    E: From<Fault>,
{
    let mut tx = client.transaction().await.map_err(Fault::from)?;
    if let Some(left) = left {
        let left = left_ms(left).to_string();
        tx.run(LEASE_LEFT, &[Arg::Text(Some(&left))]).await?;
    }
    match claim(&mut tx, resource, pass).await? {
        Checked::Rejected(reject) => Ok(Checked::Rejected(reject)),
        Checked::Admitted(admitted) => {
            let done = work(&mut tx).await?;
            tx.commit().await.map_err(Fault::from)?;
            Ok(Checked::admitted(done, admitted.highest))
        }
    }
}
