//! Access files, identities and decisions, from outside.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod access;
mod jwt;
