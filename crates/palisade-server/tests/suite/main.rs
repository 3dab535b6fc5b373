//! The lock server through its network interfaces.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod net_access;
mod net_audit;
mod net_audit_grants;
mod net_bad_input;
mod net_bounds;
mod net_certificates;
mod net_connections;
mod net_delays;
mod net_elections;
mod net_forward;
mod net_growth;
mod net_grpc;
mod net_history;
mod net_http;
mod net_json;
mod net_jwt;
mod net_kinds_refused;
mod net_listen;
mod net_manual_clock;
mod net_metrics;
mod net_openapi;
mod net_options;
mod net_page;
mod net_permits;
mod net_quota;
mod net_sequencer;
mod net_session;
mod net_sets;
mod net_shared;
mod net_shares;
mod net_starting;
mod net_stop;
mod net_support;
mod net_tenant;
mod net_tls;
mod net_unix;
mod net_update;
mod net_vanished;
mod net_views;
mod net_waiting;
mod net_watch;
