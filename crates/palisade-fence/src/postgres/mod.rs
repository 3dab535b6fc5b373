//! PostgreSQL: the fence on the user's own connection, in the user's own transaction.
//!
//! ```text
//!   BEGIN ─ claim ─ read ─ write ─ COMMIT      one transaction of yours: the raise of the fence and
//!           │                                  the effect are durable together, or neither (F1, F4)
//!           └ UPDATE palisade_fence … RETURNING → GuardRow → Rule::decide → UPDATE, if it changed
//! ```
//!
//! | what you have | what to take |
//! |---|---|
//! | writes to many rows or tables that belong together | the guard row: [`claim`], [`claim_all`], [`Guard::write`] |
//! | one row for each resource, one statement for each write | the token as its column: [`Column`], [`Records`] |
//! | code that you do not trust to remember | the trigger: `sql/postgres/0003_sticky.sql`, beside the guard row |
//!
//! Transactions of tokio-postgres (feature `postgres`) and connections of sqlx (feature
//! `sqlx-postgres`) are [`Session`]s; nothing else differs between them. [`MIGRATIONS`] are plain SQL;
//! `palisade fence install postgres` runs them.
//!
//! **A rejection ends your transaction.** [`Refused::Rejected`] comes as the `Err` side so that `?`
//! leaves the function and the transaction rolls back. Whatever else was done in it is gone too: work
//! that must survive, such as a refund, goes into a transaction of its own.
//!
//! **Isolation.** At READ COMMITTED (the default) a claim waits for the transaction that has the guard
//! row and then sees what that one committed, and so does everything read after the claim. At
//! REPEATABLE READ and SERIALIZABLE the waiting transaction cannot see it and the database ends it
//! instead: [`Fault::is_retryable`] is true, nothing happened, begin again. It works because every
//! operation writes the guard row, even when the mark stays: a mere lock would let such a transaction
//! go on with what it no longer sees. A claim is the **first** statement of its transaction.

mod column;
mod guard;
mod operator;
mod records;
mod session;
#[cfg(feature = "sqlx-postgres")]
mod through_sqlx;
#[cfg(feature = "postgres")]
mod through_tokio;
mod told;

pub use crate::guard_row::{Corrupt, Numbered};
pub use crate::sql::{Entry, Fault, Refused, Strategy};
pub use column::{Column, KeyType};
pub use guard::{Guard, claim, claim_all};
pub use operator::Operator;
pub use records::Records;
pub use session::Session;

/// The schema, as plain SQL: file name and text, in the order to run them. Running them again changes
/// nothing.
pub const MIGRATIONS: &[(&str, &str)] = &[
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
];
