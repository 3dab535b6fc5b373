//! Every other system that grants locks, as a real server.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[cfg(all(feature = "conformance", feature = "etcd"))]
mod etcd;
#[cfg(all(feature = "etcd", feature = "redis", feature = "zookeeper"))]
mod leaders;
#[cfg(feature = "postgres")]
mod pooler;
#[cfg(all(feature = "conformance", feature = "postgres"))]
mod postgres;
#[cfg(all(feature = "conformance", feature = "redis"))]
mod redis;
#[cfg(feature = "redlock")]
mod redlock;
mod support;
#[cfg(all(feature = "conformance", feature = "zookeeper"))]
mod zookeeper;
