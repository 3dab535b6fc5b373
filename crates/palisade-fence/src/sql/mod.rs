//! The common part of the fences in SQL databases: which rows to lock, and how their content decides. It is
//! independent of any database and driver.
//!
//! ```text
//!   claims ──► in_name_order ──► the backend locks the rows ──► decide_all ──► DecidedRow: the next rows
//!                                                                └ rejected: nothing is written
//! ```

#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlx-postgres"))]
mod answer;
mod column;
mod decision;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlx-postgres"))]
#[cfg_attr(
    not(any(feature = "postgres", feature = "sqlx-postgres")),
    allow(unreachable_pub, reason = "MySQL has one driver and names no trait")
)]
mod transact;

pub(crate) use column::{bound, check_column, judge, valid_id, valid_name};
pub use decision::Strategy;
#[cfg(feature = "sqlite")]
pub(crate) use decision::decide_all;
pub(crate) use decision::{in_name_order, recordable};

#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlx-postgres"))]
pub(crate) use answer::StatementError;
#[cfg(any(feature = "postgres", feature = "sqlx-postgres"))]
pub use transact::Begin;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlx-postgres"))]
pub(crate) use transact::{
    sealed::{Driver, Family, Tx},
    transact,
};

use crate::error::{Error, ErrorKind};

/// The connection or the driver failed.
pub(crate) fn unreachable(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    let what = "the connection to the database failed";
    Error::failed(ErrorKind::Unknown, what, error)
}

/// The token in the words of the database's routines, `token N is stale: N < M`.
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlx-postgres"))]
pub(crate) fn stale_token(message: &str) -> Option<palisade_core::Token> {
    let (before, _) = message.split_once(" is stale: ")?;
    let number = before.rsplit(' ').next()?.parse().ok()?;
    palisade_core::Token::new(number).ok()
}
