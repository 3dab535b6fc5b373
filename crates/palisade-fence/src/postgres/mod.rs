//! PostgreSQL: the fence on the user's own connection, in the user's own transaction.
//!
//! ```text
//!   BEGIN ─ claim ─ read ─ write ─ COMMIT      one transaction of yours: the raise of the fence and
//!           │                                  the effect are durable together, or neither (F1, F4)
//!           └ SELECT palisade_claim(…): the functions in the database decide, for every language
//! ```
//!
//! | data | use |
//! |---|---|
//! | related writes to many rows or tables | the guard row: [`claim`], [`claim_all`], [`Guard::write`] |
//! | one row for each resource, one statement for each write | the token as its column: [`Column`], [`Records`] |
//! | code that may forget the fence | the trigger: `sql/postgres/0003_sticky.sql`, beside the guard row |
//!
//! A [`Session`] is a transaction of tokio-postgres (feature `postgres`) or a connection of sqlx (feature
//! `sqlx-postgres`); everything else is the same. [`MIGRATIONS`] are plain SQL; `palisade fence install postgres` runs
//! them.
//!
//! **A rejection ends your transaction.** The fence returns [`Error::Rejected`], and the database has aborted the
//! transaction: leave the function with `?`, and the dropped transaction rolls back all of its work. Work that must
//! persist, such as a refund, needs its own transaction. If a trigger rejects a statement, `Error::from` turns the
//! driver's error into the same [`Error::Rejected`].
//!
//! **Isolation.** At READ COMMITTED (the default) a claim waits for the transaction that holds the guard row. The claim
//! and every later read then see that transaction's writes. At REPEATABLE READ and SERIALIZABLE the waiting transaction
//! could not see them, so the database aborts it: the error is [`ErrorKind::Retry`], nothing happened, and you begin
//! again. This works because every operation writes the guard row, even if the mark stays the same; with a lock alone,
//! the transaction would continue with an outdated view. A claim must be the **first** statement of its transaction: if
//! it raises the mark after the transaction has read the fenced table, the error is [`Error::ReadBeforeClaim`].
//! `transact` always claims first.
//!
//! **Bounds.** If a holder stops inside its transaction, the server ends the session after 10 s, or after the rest of
//! the lease if `transact` got it. A claim waits for 20 s at most, and its error names the blocking processes.
//! [`Operator::blockers`] lists them, [`Operator::unblock`] ends one.

#[cfg(doc)]
use crate::{Error, ErrorKind};

mod column;
mod error;
mod guard;
mod operator;
mod records;
mod session;
#[cfg(feature = "sqlx-postgres")]
mod sqlx_driver;
#[cfg(feature = "postgres")]
mod tokio_driver;
mod transact;

pub use crate::guard_row::Numbered;
pub use crate::sql::{Begin, Strategy};
pub use column::{Column, KeyType};
pub use guard::{Guard, claim, claim_all};
pub use operator::{Blocker, Operator};
pub use records::Records;
pub use session::Session;
pub use transact::transact;

/// The schema, as plain SQL: file name and text, in the order in which to run them, in one transaction. Running them
/// again changes nothing. They upgrade an older version and refuse to replace a newer one.
pub const MIGRATIONS: &[(&str, &str)] = &[
    (
        "0000_version.sql",
        include_str!("../../sql/postgres/0000_version.sql"),
    ),
    (
        "0001_guard_row.sql",
        include_str!("../../sql/postgres/0001_guard_row.sql"),
    ),
    (
        "0002_resource_records.sql",
        include_str!("../../sql/postgres/0002_resource_records.sql"),
    ),
    (
        "0003_sticky.sql",
        include_str!("../../sql/postgres/0003_sticky.sql"),
    ),
    (
        "0004_functions.sql",
        include_str!("../../sql/postgres/0004_functions.sql"),
    ),
];

/// Removes everything that [`MIGRATIONS`] created, and the triggers on the user's tables. All fences are lost.
pub const UNINSTALL: &str = include_str!("../../sql/postgres/uninstall.sql");
