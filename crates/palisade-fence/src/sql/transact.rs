//! A transaction that claims first by construction, whatever the driver.

use std::future::Future;
use std::time::Duration;

use palisade_core::fence::Pass;

use self::sealed::Tx as _;
use crate::admitted::Admitted;
use crate::error::{Error, Result};

/// Something that begins transactions: a connection or a pool. Only the drivers of this crate are.
pub trait Begin: sealed::Driver {}

impl<C: sealed::Driver> Begin for C {}

pub(crate) mod sealed {
    use super::{Admitted, Future, Pass, Result};

    /// The transactions of a driver, for any lifetime. If the closure of `transact` took a transaction of one certain
    /// lifetime, its future would not be `Send` to the compiler, which forgets lifetimes across an await:
    ///
    /// ```compile_fail
    /// struct Tx<'c>(&'c mut String);
    /// trait Begin { type Tx; fn begin(self) -> Self::Tx; }
    /// impl<'c> Begin for &'c mut String { type Tx = Tx<'c>; fn begin(self) -> Tx<'c> { Tx(self) } }
    /// async fn transact<C: Begin>(from: C, work: impl AsyncFnOnce(&mut C::Tx)) { work(&mut from.begin()).await; }
    /// fn send(_: impl Send) {}
    /// send(async { transact(&mut String::new(), async |tx| tx.0.clear()).await });
    /// ```
    pub trait Family {
        type Tx<'t>: Tx;
    }

    /// The driver's part. `Tx` is not declared here, because here it would need `Self: 't`, which a closure cannot promise.
    pub trait Driver: Family {
        /// Begins a transaction; `left_ms` is the rest of the lease.
        fn begin(
            &mut self,
            left_ms: Option<u64>,
        ) -> impl Future<Output = Result<<Self as Family>::Tx<'_>>> + Send;
    }

    /// A transaction, which rolls back when it is dropped.
    pub trait Tx: Sized {
        fn claim(
            &mut self,
            resource: &str,
            pass: Pass<'_>,
        ) -> impl Future<Output = Result<Admitted<()>>> + Send;

        fn end(self) -> impl Future<Output = Result<()>> + Send;

        /// Rolls back. If this fails, the connection is broken, and the server rolls back.
        fn undo(self) -> impl Future<Output = ()> + Send;
    }
}

/// Begins, claims, works, commits; rolls back after an error of the work or a rejection.
pub(crate) async fn transact<C, T, E, F>(
    mut connection: C,
    resource: &str,
    pass: Pass<'_>,
    left: Option<Duration>,
    work: F,
) -> Result<T, E>
where
    C: Begin,
    F: AsyncFnOnce(&mut C::Tx<'_>) -> Result<T, E>,
    E: From<Error>,
{
    let mut tx = connection.begin(left.map(left_ms)).await?;
    let done = match tx.claim(resource, pass).await {
        Err(error) => Err(error.into()),
        Ok(_) => work(&mut tx).await,
    };
    if done.is_ok() {
        tx.end().await?;
    } else {
        tx.undo().await;
    }
    done
}

/// Converts the rest of a lease to whole milliseconds, in the databases' range.
fn left_ms(left: Duration) -> u64 {
    const LONGEST_MS: u64 = 999_999_999;
    u64::try_from(left.as_millis()).map_or(LONGEST_MS, |ms| ms.clamp(1, LONGEST_MS))
}
