//! The fences, each against its real resource.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

#[cfg(any(feature = "mysql", feature = "postgres"))]
mod adds;
#[cfg(feature = "dynamodb")]
mod dynamodb;
#[cfg(feature = "files")]
mod files;
#[cfg(all(feature = "mysql", feature = "postgres", feature = "sqlx-postgres"))]
mod handlers;
mod heard;
#[cfg(any(
    feature = "dynamodb",
    feature = "mysql",
    feature = "object-store",
    feature = "postgres"
))]
mod held;
mod http;
#[cfg(feature = "mysql")]
#[path = "mysql/mod.rs"]
mod mariadb;
mod memory;
#[cfg(feature = "mysql")]
#[allow(clippy::duplicate_mod, reason = "the same tests against two servers")]
mod mysql;
#[cfg(feature = "object-store")]
mod object_store;
#[cfg(any(
    feature = "files",
    feature = "mysql",
    feature = "postgres",
    feature = "sqlite"
))]
mod paused;
#[cfg(all(feature = "postgres", feature = "sqlx-postgres"))]
mod postgres;
#[cfg(feature = "redis")]
mod redis;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod sequencers;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "sqlite"))]
mod sql;
#[cfg(feature = "sqlite")]
mod sqlite;
mod two_steps;
#[cfg(any(
    feature = "mysql",
    feature = "postgres",
    feature = "redis",
    feature = "sqlite"
))]
mod vectors;
