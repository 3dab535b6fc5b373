//! `palisade gateway` as a process in front of real services.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod counted;
mod crash;
mod disguised;
mod paused;
mod refused;
mod spelling;
mod story;
mod streaming;
mod support;
mod upstream;
