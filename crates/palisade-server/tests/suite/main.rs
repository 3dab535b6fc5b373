//! The lock server: its pipeline, its log and its network interfaces.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod crash;
mod election;
mod log_idle;
#[cfg(feature = "net")]
mod net_access;
#[cfg(feature = "net")]
mod net_audit;
#[cfg(feature = "net")]
mod net_audit_grants;
#[cfg(feature = "net")]
mod net_bad_input;
#[cfg(feature = "net")]
mod net_bounds;
#[cfg(feature = "net")]
mod net_certificates;
#[cfg(feature = "net")]
mod net_connections;
#[cfg(feature = "net")]
mod net_delays;
#[cfg(feature = "net")]
mod net_elections;
mod net_forward;
#[cfg(feature = "net")]
mod net_growth;
#[cfg(feature = "net")]
mod net_grpc;
#[cfg(feature = "net")]
mod net_http;
#[cfg(feature = "net")]
mod net_json;
#[cfg(feature = "net")]
mod net_jwt;
#[cfg(feature = "net")]
mod net_kinds_refused;
#[cfg(feature = "net")]
mod net_manual_clock;
mod net_metrics;
#[cfg(feature = "net")]
mod net_openapi;
#[cfg(feature = "net")]
mod net_page;
#[cfg(feature = "net")]
mod net_permits;
#[cfg(feature = "net")]
mod net_quota;
#[cfg(feature = "net")]
mod net_sequencer;
mod net_session;
#[cfg(feature = "net")]
mod net_sets;
mod net_shared;
mod net_shares;
#[cfg(feature = "net")]
mod net_starting;
#[cfg(feature = "net")]
mod net_stop;
mod net_support;
mod net_tenant;
#[cfg(feature = "net")]
mod net_tls;
#[cfg(feature = "net")]
mod net_unix;
#[cfg(feature = "net")]
mod net_update;
#[cfg(feature = "net")]
mod net_vanished;
#[cfg(feature = "net")]
mod net_views;
#[cfg(feature = "net")]
mod net_waiting;
#[cfg(feature = "net")]
mod net_watch;
mod pipeline;
