//! A program of its own: it keeps every core and the disk busy, which would delay a job with a short lease.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[path = "../suite/common/mod.rs"]
mod common;
mod crash_sigkill;
mod million_locks;
mod run_stopped;
mod server_process;
