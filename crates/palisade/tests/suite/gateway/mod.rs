//! `palisade gateway` as a process in front of real services.

mod counted;
mod crash;
mod disguised;
mod paused;
mod refused;
mod spelling;
mod story;
mod streaming;
mod support;
mod upstream;
