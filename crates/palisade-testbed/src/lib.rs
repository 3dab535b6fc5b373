//! Real servers of other systems for tests, and a relay that gets in the way.
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
//! Each server has a folder and ports of its own on 127.0.0.1. It ends with its value, and with the
//! test's process however that ends: servers are started by a thread that lives as long as the process,
//! with the signal for a parent's death set, and folders of dead processes are swept away by the next.
//!
//! `shared()` starts one server for all tests of a process; give each test names of its own there.
//!
//! A server that is not installed is a failed test that names the Debian package. Blocking, and for
//! tests only: what cannot be done panics with the reason.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    clippy::disallowed_methods,
    reason = "for tests only: a test fails by panicking, and a server that never serves must not hang it"
)]

mod instance;
mod members;
mod place;
mod program;
mod proxy;
mod servers;

pub use instance::{Instance, says};
pub use members::{Etcd, ZooKeeper};
pub use place::keep_in;
pub use program::Program;
pub use proxy::{Direction, Proxy};
pub use servers::{MariaDb, Moto, Nats, PgBouncer, Postgres, Redis};
