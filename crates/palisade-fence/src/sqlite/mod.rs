//! SQLite: the fence on the user's own connection, in the user's own transaction.
//!
//! ```text
//!   BEGIN ─ claim ─ read ─ write ─ COMMIT      one transaction of yours: the raise of the fence and
//!           │                                  the effect are durable together, or neither (F1, F4)
//!           └ UPDATE palisade_fence … RETURNING → GuardRow::decide → UPDATE, if it changed
//!             └ takes the file's one write lock, so no other write between claim and COMMIT
//! ```
//!
//! ```
//! use palisade_core::Token;
//! use palisade_fence::sqlite;
//! use rusqlite::{Connection, TransactionBehavior};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let mut db = Connection::open_in_memory()?; // yours is a file
//! for (_, sql) in sqlite::MIGRATIONS {
//!     db.execute_batch(sql)?;
//! }
//! db.execute_batch("CREATE TABLE totals (total INTEGER NOT NULL); INSERT INTO totals VALUES (0)")?;
//!
//! let token = Token::FIRST; // lease.token()
//! let tx = db.transaction_with_behavior(TransactionBehavior::Immediate)?;
//! sqlite::claim(&tx, "orders", token)?; // first: raise the fence
//! let total: i64 = tx.query_one("SELECT total FROM totals", [], |row| row.get(0))?; // then read
//! tx.execute("UPDATE totals SET total = ?1", [total + 1])?;
//! tx.commit()?;
//! # Ok(())
//! # }
//! ```
//!
//! | data | use |
//! |---|---|
//! | related writes to many rows or tables | the guard row: [`claim`], [`claim_all`], [`Guard::write`] |
//! | one row for each resource, one statement for each write | the token as its column: [`Column`], [`Records`] |
//! | code that may forget the fence | the triggers: [`sticky`], [`Column::sticky`] |
//!
//! All functions take a `&rusqlite::Connection`, to which a `Transaction` derefs; outside a transaction they
//! return [`Error::NoTransaction`]. [`MIGRATIONS`] are plain SQL for `execute_batch` or the `sqlite3` shell.
//! All of them block: an async program must call them where blocking is allowed.
//!
//! **A rejection ends your transaction.** The fence returns [`Error::Rejected`]: leave the function with `?`, and the
//! dropped transaction rolls back. Work that must persist, such as a refund, needs its own transaction.
//!
//! **Locks.** SQLite locks the file, not rows. A claim takes the write lock, even when the mark stays the same, so the
//! pessimistic forms differ from the optimistic ones only in when they take it. Use `BEGIN IMMEDIATE`, which takes it
//! before anything else. With the plain `BEGIN` (deferred), a transaction that has read before it claims may see an
//! older state, and SQLite ends such a claim with `SQLITE_BUSY_SNAPSHOT` in WAL mode, or holds off the writer in the
//! rollback journal's mode. A claim that is the **first** statement avoids both; it waits as long as `busy_timeout`
//! says (rusqlite: 5 s) and is [`ErrorKind::Retry`] afterwards; on Linux the error names the process that holds the
//! lock. [`transact`] always claims first. A process that is stopped inside its transaction holds the file until it
//! ends; an operator can end it ([`Operator::unblock`], `palisade fence unblock`).
//!
//! **One file.** The guard rows are in the file with which the connection was opened. Data in an attached file has no
//! fence: open that file, and attach the other one.
//!
//! **Durability** is that of the file: with `PRAGMA synchronous = FULL`, SQLite's own default, an
//! acknowledged COMMIT is on stable storage (rule F1). With `NORMAL` in WAL mode a power cut may roll back
//! the last commits, fence and data together: the file stays consistent, but an acknowledged claim can be
//! lost, so use FULL. The file must not be on a network file system that fakes locks. A copy made with `cp`
//! during a write is no backup: use `VACUUM INTO` or the backup API, which include both fence and data.

#[cfg(doc)]
use crate::{Error, ErrorKind};

mod busy;
mod column;
mod guard;
mod operator;
mod records;
mod rows;
mod sticky;
mod token_function;
mod transact;

pub use crate::guard_row::Numbered;
pub use crate::sql::Strategy;
pub use column::Column;
pub use guard::{Guard, claim, claim_all};
pub use operator::Operator;
pub use records::Records;
pub use sticky::{sticky, unstick, why};
pub use transact::transact;

/// The schema, as plain SQL: file name and text, in the order in which to run them. Running them again
/// changes nothing. The triggers on your own tables come from [`sticky`] and [`Column::sticky`].
pub const MIGRATIONS: &[(&str, &str)] = &[
    (
        "0001_guard_row.sql",
        include_str!("../../sql/sqlite/0001_guard_row.sql"),
    ),
    (
        "0002_resource_records.sql",
        include_str!("../../sql/sqlite/0002_resource_records.sql"),
    ),
];

/// Removes everything that [`MIGRATIONS`] created, except the data in `resource_records`. Drop the triggers on your
/// tables first ([`unstick`]). All fences are lost.
pub const UNINSTALL: &str = "DROP TABLE IF EXISTS palisade_fence;\n";
