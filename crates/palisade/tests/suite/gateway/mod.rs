//! `palisade gateway` as a process in front of real services.

mod audit;
mod crash;
mod disguised;
mod paused;
mod paused_holder;
mod refused;
mod spelling;
mod streaming;
mod support;
mod upstream;
