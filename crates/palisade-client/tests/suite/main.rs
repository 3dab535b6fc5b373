//! The client, in process and over a network.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod acquiring;
#[cfg(all(feature = "in-process", feature = "palisade"))]
mod authorities;
#[cfg(feature = "palisade")]
mod cluster;
#[cfg(feature = "palisade")]
mod connections;
#[cfg(all(feature = "in-process", feature = "palisade"))]
mod handing_over;
mod holder_rules;
#[cfg(all(feature = "in-process", feature = "palisade"))]
mod notices;
mod reports;
#[cfg(all(feature = "in-process", feature = "palisade"))]
mod runtimes;
mod support;
#[cfg(feature = "in-process")]
mod testing;
mod upgrades;
