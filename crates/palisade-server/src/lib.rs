//! The lock server: the pipeline that orders and applies, and its faces.
//!
//! * [`pipeline`] – one thread that orders, stamps, applies, syncs and answers. No sockets, no files.
//! * `durable` (feature) – the pipeline on a write-ahead log.
//! * `net` (feature) – gRPC and HTTP/JSON on one port.

#[cfg(feature = "durable")]
pub mod durable;
#[cfg(feature = "net")]
pub mod net;
pub mod pipeline;
