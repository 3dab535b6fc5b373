//! The program as people start it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod authority_suite;
mod broken_authority;
mod cli_authorities;
mod cli_fence;
mod cli_help;
mod cli_input;
mod cli_locks;
mod common;
mod data_directory;
mod demo;
mod exposure;
mod gateway;
mod judges;
mod open_files;
mod run_job;
mod run_lost;
mod run_redlock;
mod run_refused;
mod run_secrets;
mod run_terminal;
