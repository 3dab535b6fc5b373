//! TLS for Palisade's servers and clients, by rustls with the provider *ring*, TLS 1.2 and 1.3.
//!
//! Internal to Palisade, without a promise of compatibility: programs use `palisade-client`, `palisade-authorities` and
//! `palisade-fence`.
//!
//! ```text
//!   files ─► Server (certificate, key, CA of the clients) ─► accept ─┐
//!              └ reload: all files are checked, then taken together  ├─► a stream
//!   files ─► Client (CA, own certificate and key) ───────► connect ──┘
//! ```
//!
//! * [`Server`] – what a port presents and whom it trusts; reloaded while it serves.
//! * [`Client`] – which servers a client trusts and what it presents. With feature `connector`, also for HTTP clients.
//! * [`explain`] – why a handshake failed, and what to do about it.
//! * `issue` (feature) – a private CA for tests and home networks.
//!
//! Two providers of rustls in one build make its default ambiguous, so the provider is named here and nowhere else.
//! Sessions are never resumed: a resumed session would not show its client certificate again, and so would outlive the
//! CA that vouched for it.

mod client;
#[cfg(feature = "connector")]
mod connector;
mod explain;
mod files;
#[cfg(feature = "issue")]
pub mod issue;
mod provider;
mod server;

pub use client::{Client, ClientFiles, Stream};
#[cfg(feature = "connector")]
pub use connector::{Connector, Io};
pub use explain::{Flags, PORT, explain, explain_to};
pub use files::Error;
pub use server::{Certificate, Reloaded, Server, ServerFiles};
pub use tokio_rustls::server::TlsStream as Accepted;

/// The first byte of a connection that opens with TLS.
pub const FIRST_BYTE: u8 = 0x16;
