//! MySQL and MariaDB: the fence in the user's own transaction.
//!
//! ```text
//!   BEGIN ─ claim ─ read ─ write ─ COMMIT      one transaction of yours: the raise of the fence and
//!           │                                  the effect are durable together, or neither (F1, F4)
//!           └ CALL palisade_judge: locks the guard row, decides, writes it
//! ```
//!
//! ```no_run
//! use mysql_async::prelude::Queryable as _;
//! use mysql_async::{Conn, Opts, TxOpts};
//! use palisade_core::Token;
//! use palisade_fence::mysql;
//!
//! # async fn add(token: Token) -> Result<(), Box<dyn std::error::Error>> {
//! let opts = Opts::from_url("mysql://shop@127.0.0.1/shop?client_found_rows=true")?;
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
//! | data | use |
//! |---|---|
//! | related writes to many rows or tables | the guard row: [`claim`], [`claim_all`], [`Guard::write`] |
//! | one row for each resource, one statement for each write | the token as its column: [`Column`], [`Records`] |
//! | code that may forget the fence | the triggers: `sql/mysql/0003_sticky.sql`, [`show_token`] |
//!
//! All functions take a `mysql_async::Transaction`. A statement in it that commits implicitly (CREATE, ALTER, TRUNCATE,
//! LOCK TABLES) ends it unnoticed; the fence's next step is then [`Error::NoTransaction`]. All tables must be InnoDB:
//! other engines have no transactions, and do not report it. [`MIGRATIONS`] are plain SQL, each file one query of
//! several statements. The last one contains the procedures that decide, for programs in any language.
//!
//! **A rejection ends your transaction.** The fence returns [`Error::Rejected`]: leave the function with `?`, and the
//! dropped transaction rolls back all of its work. Work that must persist, such as a refund, needs its own transaction.
//! If a trigger rejects a statement, `Error::from` turns the driver's error into the same [`Error::Rejected`].
//!
//! **Isolation.** At REPEATABLE READ, the default, plain reads see the state at the transaction's *first*
//! plain read, whatever was locked since. A claim that is the **first** statement is safe: it waits for the
//! transaction that has the guard row, and the first read comes after it. If the transaction had read before,
//! it would compute from a state that the last holder has changed since; the claim detects that by the row's
//! version, or by the server's own error where `innodb_snapshot_isolation` is on (MariaDB from 11.6), and
//! returns [`Error::ReadBeforeClaim`]. READ COMMITTED and SERIALIZABLE do not have this problem. The column
//! forms write the row itself, and read it back under its lock; other reads in that transaction need a guard
//! row.
//!
//! [`transact`] always claims first.
//!
//! **Bounds.** A claim waits for `innodb_lock_wait_timeout` (50 s by default), which is [`ErrorKind::Retry`]. If a
//! holder stops inside its transaction, MariaDB ends the connection after 10 s, or after the rest of the lease
//! ([`transact`] takes it; other programs set `@palisade_lease_left_ms`). This bound belongs to the session, and a bare
//! COMMIT does not reset it: [`transact`], or `CALL palisade_end(TRUE)`, commits and restores the connection's own
//! setting. MySQL ends the connection after its `wait_timeout`, 8 hours by default: set it in the URL. If the holder
//! stops while the server sends it a result, the server ends the connection after `net_write_timeout` (60 s).
//! [`blockers`] names the transactions that have a guard row, and [`unblock`] ends one.
//!
//! **Deadlocks** and lock timeouts are [`ErrorKind::Retry`]: roll back and begin again. Guard rows are locked in name
//! order, so claims alone never deadlock. Error 1615 is also [`ErrorKind::Retry`]: while somebody replaces procedures
//! or triggers in any database of the server, it may fail to prepare a statement again.
//!
//! **Durability** depends on the server: `innodb_flush_log_at_trx_commit = 1`, the default, and with
//! replication `sync_binlog = 1`. With 0 or 2 a crash loses the last commits, including claims. A replica is
//! for observers: claims and reads that feed writes go to the primary, and after a fail-over to a replica
//! that lagged, the fence must be re-armed ([`Operator`]) with a fresh token.

#[cfg(doc)]
use crate::{Error, ErrorKind};

mod blockers;
mod column;
mod guard;
mod operator;
mod records;
mod rows;
mod session;
mod sticky;
mod transact;

pub use crate::guard_row::Numbered;
pub use crate::sql::Strategy;
pub use blockers::{Blocker, blockers, unblock};
pub use column::Column;
pub use guard::{Guard, claim, claim_all};
pub use operator::Operator;
pub use records::Records;
pub use session::show_token;
pub use sticky::{sticky, unstick};
pub use transact::transact;

/// The schema, as plain SQL: file name and text, in the order in which to run them. Running them again
/// changes nothing. [`sticky`] makes the triggers on your own tables.
pub const MIGRATIONS: &[(&str, &str)] = &[
    (
        "0000_version.sql",
        include_str!("../../sql/mysql/0000_version.sql"),
    ),
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
    (
        "0004_procedures.sql",
        include_str!("../../sql/mysql/0004_procedures.sql"),
    ),
];

/// Removes everything that [`MIGRATIONS`] created, as one query of several statements. Drop the triggers on your tables
/// first ([`unstick`]). All fences are lost.
pub const UNINSTALL: &str = include_str!("../../sql/mysql/uninstall.sql");
