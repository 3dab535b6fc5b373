//! Nodes that talk over TCP on this machine.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod cluster;
mod peers;
mod peers_tls;
mod recovery;
