//! The HTTP fence: what it answers, what waits for what, and the suite through it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod answers;
mod conforms;
mod flight;
mod grpc;
mod support;
