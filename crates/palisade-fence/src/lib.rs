//! Fences for resources: the end of the chain, where the late write of a paused holder is refused.
//!
//! ```text
//!   lease.token() ──► Pass ──► claim ──► read ──► write        any of them may answer Rejected:
//!                              │                               a newer holder has claimed
//!                              └ raises the fence, durably, before the first read
//! ```
//!
//! No lock service can stop two processes from both believing they hold a lock. The lease saves work;
//! the fence keeps data safe. The decision is [`palisade_core::fence`]; this crate carries it out at a
//! resource, in one atomic, durable step with the effect (rule F1).
//!
//! * [`Fence`] is the interface of every resource, [`Checked`] its answer, and [`Admin`] the interface for
//!   operators; every rejection is logged and counted ([`audit`]).
//! * [`memory`] – inside this process: a lock-free [`memory::Ratchet`], a [`memory::Guarded`] value and
//!   an object store for tests.
//! * `store` – the durable object store under `palisade store` (feature `store`).
//! * `http` – a tower layer in front of HTTP and gRPC services (feature `http`).
//! * `postgres` – PostgreSQL, in the user's own transaction (features `postgres` and `sqlx-postgres`).
//! * `redis` – Redis, by Lua scripts on the user's own connection (feature `redis`).
//! * `files` – the files of a folder (feature `files`).
//! * `mysql` – MySQL and MariaDB, in the user's own transaction (feature `mysql`).
//! * `sqlite` – SQLite, on the user's own connection (feature `sqlite`).
//! * `dynamodb` – DynamoDB: one item with its fence, or a guard item in a transaction (feature `dynamodb`).
//! * `object_store` – S3-compatible stores, GCS and Azure (feature `object-store`).
//! * `conformance` – the suite that every fence must pass (feature `conformance`).
//!
//! A denial is a value, [`Checked::Rejected`]; `Err` is for faults only: a disk that failed, a bound that was
//! reached, a name that is not valid. [`FaultKind`] says what to do about a fault.

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
pub use fence::{Change, Fence, Write};
#[cfg(any(feature = "files", feature = "sqlite"))]
pub use lock_holder::LockHolder;
pub use name::{Invalid, ObjectPath, PathFault, ResourceId};
#[cfg(any(feature = "memory", feature = "store"))]
pub use objects::{Limits, View};
pub use palisade_core::Code;
pub use palisade_core::fence::{
    DEFAULT_MAX_JUMP, FenceRecord, FenceState, FloorTooLow, Mark, Mode, Op, Pass, Rearm, Reject,
    Rule, Sequence, Verdict, Written,
};
