//! Real servers of other systems for tests, and a relay that cuts and delays connections.
//!
//! ```
//! use palisade_testbed::Redis;
//!
//! let redis = Redis::start(&["--appendonly", "yes", "--appendfsync", "always"]);
//! println!("{}", redis.url());
//! redis.kill(); // SIGKILL, to the whole process group
//! redis.start_again(); // the same data and port
//! ```
//!
//! Each server has its own folder and ports on 127.0.0.1. It stops when its value is dropped, and also when
//! the test's process ends in any way: a thread that lives as long as the process starts the servers, with
//! the parent-death signal set. The next process removes the folders of dead processes.
//!
//! `shared()` starts one server for all tests of a process; each test must use its own names there.
//!
//! If a server is not installed, the test fails and names the Debian package. The functions block and are for
//! tests only: a failure panics with the reason.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "for tests only: a test fails by panicking, and a server that never serves must not hang it"
)]

mod disk;
mod folder;
pub mod growth;
mod instance;
mod members;
mod program;
mod proxy;
mod servers;
mod tools;

pub use disk::{SmallDisk, run};
pub use folder::keep_in;
pub use instance::{Instance, answers_with};
pub use members::{Etcd, ZooKeeper};
pub use program::Program;
pub use proxy::{Direction, Proxy};
pub use servers::{LenientUpstream, MariaDb, Moto, MySql, Nats, PgBouncer, Postgres, Redis};
pub use tools::{postgres_programs, python_tool};
