//! Directories that are closed and opened again.
//!
//! A program of its own: a process that another test is starting would still have the lock of a closed directory,
//! because it has every descriptor until it runs its program.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod restore;
mod snapshots;
