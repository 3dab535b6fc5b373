//! The messages of Palisade on the wire.
//!
//! Internal to Palisade, without a promise of compatibility: programs use `palisade-client`, `palisade-authorities` and
//! `palisade-fence`.
//!
//! * [`v1`] – the gRPC interface, generated from `proto/palisade/v1/palisade.proto`.
//! * [`frames`] – the same session's messages on a bare TCP connection, for the fast path.
//! * [`borrowed`] – those of them that most frames consist of, without a copy.
//! * [`json`] – the bodies of the HTTP interface.
//! * [`options`] – the options of a grant, in the messages and in the bodies.
//! * [`codes`] – how both carry the codes of [`Code`].
//!
//! Nothing here knows the machine behind it; the server translates.

pub mod borrowed;
pub mod codes;
pub mod frames;
pub mod json;
pub mod options;

pub use palisade_core::Code;

/// The generated gRPC types, client and server.
#[allow(
    missing_docs,
    unreachable_pub,
    clippy::allow_attributes_without_reason,
    reason = "generated: the .proto carries the documentation"
)]
pub mod v1 {
    tonic::include_proto!("palisade.v1");
}

/// The compiled .proto, for gRPC reflection.
pub const FILE_DESCRIPTOR_SET: &[u8] =
    include_bytes!(concat!(env!("OUT_DIR"), "/palisade.v1.descriptors"));
