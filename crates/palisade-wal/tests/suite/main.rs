//! The log on simulated and real directories.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod common;
mod copies;
mod crash;
mod damage;
mod directory;
mod full;
mod golden;
mod live_source;
mod member;
mod opening;
