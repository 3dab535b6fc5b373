//! The lock server's network interfaces; `palisade-pipeline` decides the requests.
//!
//! Internal to Palisade, without a promise of compatibility: programs use `palisade-client`, `palisade-authorities` and
//! `palisade-fence`.
//!
//! * [`net`] – gRPC and HTTP/JSON on one port.
//! * [`shell`] – connections, bounds and time-outs of every HTTP port, also of the store and the
//!   gateway.

pub mod memory;
pub mod net;
pub mod shell;
