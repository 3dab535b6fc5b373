//! Handshakes over loopback, with certificates made in the test.

#![allow(
    clippy::unwrap_used,
    clippy::disallowed_methods,
    reason = "a test fails by panicking, and makes certificates that are valid by the wall clock"
)]

mod handshakes;
mod reload;
mod support;
