//! The faces of the lock server; what decides is in `palisade-pipeline`.
//!
//! * [`net`] – gRPC and HTTP/JSON on one port.
//! * [`shell`] – connections, bounds and time-outs of every HTTP port, also of the store and the
//!   gateway.
//!
//! This crate is internal to Palisade: its API changes without notice.

pub mod memory;
pub mod net;
pub mod shell;
