//! Fences, which refuse the late write of a paused holder at the resource.
//!
//! No lock service can stop two processes from both believing that they hold a lock: one of them may have been paused
//! past the end of its lease. The lease saves work; the fence keeps data safe. A **fence** at the resource stores the
//! highest fencing token that it has seen, and refuses every lower one, in one atomic and durable step with the write.
//!
//! ```text
//!   lease.pass() ──► claim ──► read ──► write         each of them may be refused: a newer holder has claimed
//!                    └ raises the fence, durably, before the first read
//! ```
//!
//! * **The same rule everywhere.** Every fence decides as [`palisade_core::fence`] does, which 1,131 test vectors
//!   describe, and passes one public suite (`conformance`) against the real resource.
//! * **Your connection, your transaction.** A fence works on the driver's own types; your code keeps control of them.
//! * **A refusal cannot be overlooked.** It is an [`Error`], and one `?` ends the work of a stale holder.
//! * **Nothing is silent.** Every rejection is logged and counted once ([`audit`]). If the pass is a lease's
//!   (`lease.pass()`), the authority hears of a late write, too, and its history shows it.
//!
//! # Resources
//!
//! | module | feature | fences |
//! |---|---|---|
//! | [`memory`] | `memory` (default) | a value or objects in this process: [`memory::Guarded`], [`memory::Ratchet`], [`memory::Store`] |
//! | `postgres` | `postgres`, `sqlx-postgres` | PostgreSQL, in your transaction with tokio-postgres or sqlx |
//! | `mysql` | `mysql` | MySQL and MariaDB, in your transaction with mysql_async |
//! | `sqlite` | `sqlite` | SQLite, in your transaction with rusqlite |
//! | `redis` | `redis` | Redis and Valkey, by Lua scripts on your connection |
//! | `object_store` | `object-store` | S3-compatible stores, GCS and Azure, by conditional puts |
//! | `dynamodb` | `dynamodb` | DynamoDB: an item with its fence, or a guard item in a transaction |
//! | `files` | `files` | the files of a folder, by `flock` and atomic renames |
//! | `http` | `http` | HTTP and gRPC services, by a tower layer in front of them; `palisade gateway` is built on it |
//! | `store` | `store` | objects that have no store yet: the durable one under `palisade store` |
//!
//! Further features: `sequencer` verifies signed tokens without asking the authority; `conformance` is the suite that
//! every fence must pass, including your own.
//!
//! # Example
//!
//! Claim first, then read, then write:
//!
//! ```
//! use palisade_core::Token;
//! use palisade_fence::{Edit, Fence, StoreLimits, Pass, Rule, Write, enter, memory};
//!
//! async fn sell(orders: &impl Fence, pass: Pass<'_>, seat: &[u8]) -> palisade_fence::Result<()> {
//!     let orders = enter(orders, pass).await?; // first: raise the fence
//!     let mut sold = orders.read("/sold").await?.value.unwrap_or_default(); // then read
//!     sold.extend_from_slice(seat);
//!     orders.write(Write::new("/sold", Edit::Put(&sold))).await?; // refused if a newer holder has claimed
//!     Ok(())
//! }
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let orders = memory::Store::new(Rule::CLAIM, StoreLimits::DEFAULT).resource("orders")?;
//! let (old, new) = (Token::new(33)?, Token::new(34)?); // lease.token()
//! sell(&orders, Pass::new(new), b"12A ").await?;
//!
//! let late = sell(&orders, Pass::new(old), b"12B ").await.unwrap_err(); // back from a pause
//! assert!(late.rejected().is_some());
//! assert!(late.to_string().starts_with("token 33 is stale: 33 < 34"));
//! # Ok(())
//! # }
//! # tokio::runtime::Builder::new_current_thread().build().unwrap().block_on(example()).unwrap();
//! ```
//!
//! # Errors
//!
//! All fences return one [`Error`]. [`Error::kind`] says what to do next, [`Error::rejected`] why the fence refused,
//! and [`source`](std::error::Error::source) is the driver's error. If your own error type wraps it, [`rejection`]
//! finds the refusal. In `palisade_client` a denied *lock* can be a value, because a held lock is a normal answer. A
//! refused *write* is always an error, because it must never pass for a successful one:
//!
//! ```compile_fail
//! #![deny(unused_must_use)] // on by default, as a warning
//! # use palisade_fence::{Edit, Fence, Pass, Write};
//! async fn forgets(seat: &impl Fence, pass: Pass<'_>) -> palisade_fence::Result<()> {
//!     seat.write(pass, Write::new("/passenger", Edit::Put(b"Alice"))).await; // without `?`
//!     Ok(())
//! }
//! ```
//!
//! # What is public
//!
//! Everything that this page lists, and the types re-exported from [`palisade_core`]. Undocumented items are internal.
//! For fences in other languages, the repository's `docs/reference/fence-formats.md` describes the stored formats.

#![cfg_attr(docsrs, feature(doc_cfg))]

mod account;
mod admin;
mod admitted;
pub mod audit;
mod claimed;
#[cfg(feature = "conformance")]
pub mod conformance;
#[cfg(feature = "dynamodb")]
pub mod dynamodb;
mod error;
mod fence;
#[cfg(feature = "files")]
pub mod files;
#[cfg(any(
    feature = "dynamodb",
    feature = "mysql",
    feature = "object-store",
    feature = "postgres",
    feature = "sqlite",
    feature = "sqlx-postgres"
))]
#[cfg_attr(
    not(any(
        feature = "mysql",
        feature = "postgres",
        feature = "sqlite",
        feature = "sqlx-postgres"
    )),
    allow(
        dead_code,
        unreachable_pub,
        reason = "only the SQL fences use all of it"
    )
)]
mod guard_row;
#[cfg(feature = "http")]
pub mod http;
#[cfg(any(feature = "files", feature = "sqlite"))]
mod lock_holder;
#[cfg(feature = "memory")]
pub mod memory;
#[cfg(feature = "mysql")]
pub mod mysql;
mod name;
#[cfg(feature = "object-store")]
pub mod object_store;
#[cfg(any(feature = "memory", feature = "store"))]
mod objects;
#[cfg(any(feature = "postgres", feature = "sqlx-postgres"))]
pub mod postgres;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(feature = "sequencer")]
pub mod sequencer;
#[cfg(any(
    feature = "mysql",
    feature = "postgres",
    feature = "sqlite",
    feature = "sqlx-postgres"
))]
mod sql;
#[cfg(feature = "sqlite")]
pub mod sqlite;
#[cfg(any(feature = "dynamodb", feature = "object-store"))]
mod stamped;
#[cfg(feature = "store")]
pub mod store;

pub use account::{Account, Fate};
pub use admin::{Admin, Door, FencedTable, Listed};
pub use admitted::Admitted;
pub use claimed::{Claimed, enter, enter_all};
pub use error::{Error, ErrorKind, Result, rejection};
pub use fence::{Edit, Fence, Write};
#[cfg(any(feature = "files", feature = "sqlite"))]
pub use lock_holder::LockHolder;
pub use name::{Invalid, ObjectPath, PathFault, ResourceId};
#[cfg(any(feature = "memory", feature = "store"))]
pub use objects::{StoreLimits, View};
pub use palisade_core::Code;
pub use palisade_core::fence::{
    DEFAULT_MAX_JUMP, FenceRecord, FenceState, FloorTooLow, Late, Mark, Mode, Op, Pass, Rearm,
    Reject, Report, Reporter, Rule, Sequence, Verdict, Written,
};
