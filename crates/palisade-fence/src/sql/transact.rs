//! A transaction that claims first by construction, whatever the driver.

use std::future::Future;
use std::time::Duration;

use palisade_core::fence::Pass;

use crate::admitted::Admitted;
use crate::error::{Error, Result};

/// Something that begins transactions: a connection or a pool. Only the drivers of this crate are.
pub trait Begin: Sized + sealed::Driver {}

impl<C: sealed::Driver> Begin for C {}

pub(crate) mod sealed {
    use super::{Admitted, Future, Pass, Result};

    /// The driver's part.
    pub trait Driver {
        /// A transaction, which rolls back when it is dropped.
        type Tx;

        /// Begins a transaction; `left_ms` is the rest of the lease.
        fn begin(self, left_ms: Option<u64>) -> impl Future<Output = Result<Self::Tx>> + Send;

        fn claim(
            tx: &mut Self::Tx,
            resource: &str,
            pass: Pass<'_>,
        ) -> impl Future<Output = Result<Admitted<()>>> + Send;

        fn commit(tx: Self::Tx) -> impl Future<Output = Result<()>> + Send;

        /// Rolls back. If this fails, the connection is broken, and the server rolls back.
        fn roll_back(tx: Self::Tx) -> impl Future<Output = ()> + Send;
    }
}

/// Begins, claims, works, commits; rolls back after an error of the work or a rejection.
pub(crate) async fn transact<C, T, E, F>(
    connection: C,
    resource: &str,
    pass: Pass<'_>,
    left: Option<Duration>,
    work: F,
) -> Result<T, E>
where
    C: Begin,
    F: AsyncFnOnce(&mut C::Tx) -> Result<T, E>,
    E: From<Error>,
{
    let mut tx = connection.begin(left.map(left_ms)).await?;
    let done = match C::claim(&mut tx, resource, pass).await {
        Err(error) => Err(error.into()),
        Ok(_) => work(&mut tx).await,
    };
    if done.is_ok() {
        C::commit(tx).await?;
    } else {
        C::roll_back(tx).await;
    }
    done
}

/// Converts the rest of a lease to whole milliseconds, in the databases' range.
fn left_ms(left: Duration) -> u64 {
    const LONGEST_MS: u64 = 999_999_999;
    u64::try_from(left.as_millis()).map_or(LONGEST_MS, |ms| ms.clamp(1, LONGEST_MS))
}
