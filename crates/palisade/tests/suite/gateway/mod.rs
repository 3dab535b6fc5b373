//! `palisade gateway` as a process in front of real services.

mod audit;
mod crash;
mod disguised;
mod paused;
mod paused_holder;
mod refused;
mod spelling;
mod streaming;
pub(crate) mod support;
pub(crate) mod upstream;
mod upstream_tls;
