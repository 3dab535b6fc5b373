//! A program of its own: it measures and disturbs the whole machine, so nothing else may run beside it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod attack;
mod chaos;
