//! The chores as cargo calls them.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod bans;
mod equal_programs;
mod not_run;
mod root;
mod tools;
