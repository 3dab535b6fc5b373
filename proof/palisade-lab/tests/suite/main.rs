//! Simulation, exhaustive search, the history checker and the decoders.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod cluster;
mod decoders;
mod exhaust;
mod history;
mod sim;
