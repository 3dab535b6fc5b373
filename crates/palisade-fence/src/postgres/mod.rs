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
//! | writes to many rows or tables that belong together | the guard row: [`claim`], [`claim_all`], [`Guard::write`] |
//! | one row for each resource, one statement for each write | the token as its column: [`Column`], [`Records`] |
//! | code that may forget the fence | the trigger: `sql/postgres/0003_sticky.sql`, beside the guard row |
//!
//! Transactions of tokio-postgres (feature `postgres`) and connections of sqlx (feature `sqlx-postgres`) are
//! [`Session`]s; there is no other difference between them. [`MIGRATIONS`] are plain SQL;
//! `palisade fence install postgres` runs them.
//!
//! **A rejection ends your transaction.** It is [`Error::Rejected`], and the database has aborted the transaction: with `?`
//! you leave the function, and the dropped transaction rolls back, with all of its other work. Work that must persist, such
//! as a refund, needs its own transaction. The driver's error of a statement that a trigger rejected becomes the same
//! [`Error::Rejected`] with `Error::from`.
//!
//! **Isolation.** At READ COMMITTED (the default) a claim waits for the transaction that has the guard row
//! and then sees that transaction's writes, and so does every read after the claim. At REPEATABLE READ and
//! SERIALIZABLE the waiting transaction cannot see it, and the database aborts it instead:
//! it is [`ErrorKind::Retry`], nothing happened, begin again. This works because every operation writes
//! the guard row, even when the mark stays the same: with only a lock, such a transaction would continue with
//! an outdated view. A claim must be the **first** statement of its transaction: one that raises the mark after the
//! transaction has read the fenced table is [`Error::ReadBeforeClaim`]. `transact` claims first by construction.
//!
//! **Bounds.** A holder that stops inside its transaction is ended after 10 s, or what is left of its lease (`transact`
//! takes it); a claim waits for 20 s at most, and its error names the processes. [`Operator::blockers`] lists them,
//! [`Operator::unblock`] ends one.

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

/// Removes what [`MIGRATIONS`] made, and the triggers on the user's tables. Every token that was ever seen is forgotten.
pub const UNINSTALL: &str = include_str!("../../sql/postgres/uninstall.sql");
