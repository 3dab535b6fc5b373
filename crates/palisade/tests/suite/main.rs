//! The program as users start it.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod access;
mod authority_suite;
mod behind_proxy;
mod broken_authority;
mod cli_authorities;
mod cli_fence;
mod cli_fence_k8s;
mod cli_help;
mod cli_input;
mod cli_locks;
mod cli_unblock;
mod cluster;
mod cluster_cut_off;
mod cluster_refused;
mod cluster_restore;
mod cluster_silent;
mod cluster_tls;
#[cfg(feature = "testing")]
mod cluster_versions;
mod cluster_waits;
mod common;
mod config;
mod data_directory;
mod demo;
mod doctor;
mod elect;
mod exposure;
#[cfg(feature = "testing")]
mod failed_assertion;
mod gateway;
mod golden;
mod history;
mod open_files;
mod openapi;
mod otlp;
mod page;
mod pages;
mod reports;
mod restarts;
mod run_freeze;
mod run_job;
mod run_lost;
mod run_metadata;
mod run_patience;
mod run_redlock;
mod run_refused;
mod run_secrets;
mod run_terminal;
mod run_told;
mod sequencers;
mod service;
mod sets;
mod stolen_log;
mod tfstate;
mod tls;
mod traces;
mod unix_socket;
