//! MySQL and MariaDB: the fence in the user's own transaction.
//!
//! ```text
//!   BEGIN ─ claim ─ read ─ write ─ COMMIT      one transaction of yours: the raise of the fence and
//!           │                                  the effect are durable together, or neither (F1, F4)
//!           └ SELECT … palisade_fence … FOR UPDATE → GuardRow → Rule::decide → UPDATE
//! ```
//!
//! ```no_run
//! use mysql_async::prelude::Queryable as _;
//! use mysql_async::{Conn, Opts, TxOpts};
//! use palisade_core::Token;
//! use palisade_fence::mysql;
//!
//! # async fn add(token: Token) -> Result<(), mysql::Refused> {
//! let opts = Opts::from_url("mysql://shop@127.0.0.1/shop?client_found_rows=true").map_err(mysql_async::Error::from)?;
//! let mut db = Conn::new(opts).await?;
//! for (_, sql) in mysql::MIGRATIONS {
//!     db.query_drop(*sql).await?;
//! }
//!
//! let mut tx = db.start_transaction(TxOpts::default()).await?;
//! mysql::claim(&mut tx, "orders", token).await?; // first: raise the fence
//! let total: Option<i64> = tx.query_first("SELECT total FROM totals").await?; // then read
//! tx.exec_drop("UPDATE totals SET total = ?", (total.unwrap_or(0) + 1,)).await?;
//! tx.commit().await?;
//! # Ok(())
//! # }
//! ```
//!
//! | what you have | what to take |
//! |---|---|
//! | writes to many rows or tables that belong together | the guard row: [`claim`], [`claim_all`], [`Guard::write`] |
//! | one row for each resource, one statement for each write | the token as its column: [`Column`], [`Records`] |
//! | code that you do not trust to remember | the triggers: `sql/mysql/0003_sticky.sql`, [`show_token`] |
//!
//! Everything takes a `mysql_async::Transaction`. A statement in it that commits by itself (CREATE, ALTER,
//! TRUNCATE, LOCK TABLES) ends it behind your back; the fence's next step is then
//! [`Fault::NoTransaction`]. All tables must be InnoDB: other engines have no transactions, and say
//! nothing. [`MIGRATIONS`] are plain SQL, each file one query of several statements.
//!
//! **A rejection ends your transaction.** [`Refused::Rejected`] comes as the `Err` side so that `?`
//! leaves the function and the transaction rolls back. Work that must survive, such as a refund, goes
//! into a transaction of its own.
//!
//! **Isolation.** At REPEATABLE READ, the default, plain reads see the state of the transaction's *first*
//! plain read, whatever was locked since. A claim that is the **first** statement is safe: it waits for the
//! transaction that has the guard row, and the first read comes after it. Had you read before, you would
//! compute from a state that the last holder has changed since; the claim finds that out by the row's
//! version and is [`Fault::ReadBeforeClaim`] (or the server's own error 1020 where
//! `innodb_snapshot_isolation` is on). READ COMMITTED and SERIALIZABLE have no such trap. The column
//! forms write the row itself and are read back under its lock; what else you read in that transaction
//! is for a guard row to protect.
//!
//! **Deadlocks** and lock timeouts are [`Fault::is_retryable`]: roll back and begin again. Guard rows are
//! locked in name order, so claims alone never wait for each other in a circle.
//!
//! **Durability** is the server's: `innodb_flush_log_at_trx_commit = 1`, the default, and with
//! replication `sync_binlog = 1`. With 0 or 2 a crash forgets the last commits, and a claim among them. A
//! replica is for observers: claims and reads that feed writes go to the primary, and after a fail-over to
//! a replica that lagged the fence is re-armed ([`Operator`]) with a fresh token.

mod column;
mod guard;
mod operator;
mod records;
mod session;
mod told;

pub use crate::guard_row::{Corrupt, Numbered};
pub use crate::sql::{Entry, Fault, Refused, Strategy};
pub use column::Column;
pub use guard::{Guard, claim, claim_all};
pub use operator::Operator;
pub use records::Records;
pub use session::show_token;

/// The schema, as plain SQL: file name and text, in the order to run them. Running them again changes
/// nothing. The triggers on tables of your own are in the words at the head of the last one.
pub const MIGRATIONS: &[(&str, &str)] = &[
    (
        "0001_guard_row.sql",
        include_str!("../../sql/mysql/0001_guard_row.sql"),
    ),
    (
        "0002_resource_records.sql",
        include_str!("../../sql/mysql/0002_resource_records.sql"),
    ),
    (
        "0003_sticky.sql",
        include_str!("../../sql/mysql/0003_sticky.sql"),
    ),
];
