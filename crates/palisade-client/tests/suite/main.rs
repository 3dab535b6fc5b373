//! The client and every authority that it can talk to.

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
#[cfg(all(
    feature = "conformance",
    feature = "etcd",
    feature = "in-process",
    feature = "palisade"
))]
mod etcd;
mod holder_rules;
#[cfg(all(feature = "etcd", feature = "redis", feature = "zookeeper"))]
mod leaders;
#[cfg(feature = "postgres")]
mod pooler;
#[cfg(all(
    feature = "conformance",
    feature = "postgres",
    feature = "in-process",
    feature = "palisade"
))]
mod postgres;
#[cfg(all(feature = "conformance", feature = "redis"))]
mod redis;
#[cfg(feature = "redlock")]
mod redlock;
#[cfg(all(feature = "in-process", feature = "palisade"))]
mod runtimes;
mod support;
mod upgrades;
#[cfg(all(
    feature = "conformance",
    feature = "zookeeper",
    feature = "in-process",
    feature = "palisade"
))]
mod zookeeper;
