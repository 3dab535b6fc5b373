//! The lock server: the pipeline that orders and applies, and its faces.
//!
//! Internal to Palisade, without a promise of compatibility: programs use `palisade-client` and `palisade-fence`.
//!
//! * [`pipeline`] – one thread that orders, stamps, applies, syncs and answers. No sockets, no files.
//! * `durable` (feature) – the pipeline on a write-ahead log.
//! * `net` (feature) – gRPC and HTTP/JSON on one port.
//! * `shell` (feature `net`) – connections, bounds and time-outs of every HTTP port, also of the store and the
//!   gateway.

#[cfg(feature = "durable")]
pub mod durable;
#[cfg(test)]
mod growth;
pub mod memory;
#[cfg(feature = "net")]
pub mod net;
pub mod pipeline;
#[cfg(feature = "net")]
pub mod shell;
