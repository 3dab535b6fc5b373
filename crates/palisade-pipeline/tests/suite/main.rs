//! The pipeline from outside: callers, watchers, elections, and the authority on a log that fails or crashes.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod crash;
mod election;
mod log_idle;
mod pipeline;
