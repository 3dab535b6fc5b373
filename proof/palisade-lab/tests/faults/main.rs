//! A program of its own: it measures and disturbs the machine for minutes, so little may run beside it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod attack;
mod chaos;
mod porcupine;
