//! The machine, the fence rule and their values from outside.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod deadlines;
mod exact_semantics;
mod growth;
mod hostile;
mod model;
mod snapshot;
mod values;
mod vectors;
mod world;
