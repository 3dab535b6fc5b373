//! TLS 1.2 and 1.3 for Palisade's servers and clients, with rustls and the provider *ring*.
//!
//! This crate is internal and may change in any release. Programs use `palisade-client`, `palisade-authorities` and
//! `palisade-fence`.
//!
//! ```text
//!   files ─► Server (certificate, key, CA of the clients) ─► accept ─┐
//!              └ reload: all files are checked, then taken together  ├─► a stream
//!   files ─► TlsClient (CA, own certificate and key) ────► connect ──┘
//! ```
//!
//! * [`Server`]: the certificate of a port and the CAs that it trusts, which it can reload while it serves.
//! * [`TlsClient`]: the CAs that a client trusts and its own certificate; with feature `connector`, also for HTTP clients.
//! * [`explain`]: why a handshake failed, and the remedy.
//! * `issue` (feature): a private CA for tests and home networks.
//!
//! Only this crate names the provider, because rustls has no default if a build contains two. Sessions are never
//! resumed: a resumed session would not present its client certificate again, and could outlive the trust in its CA.

mod client;
#[cfg(feature = "connector")]
mod connector;
mod explain;
mod files;
#[cfg(feature = "issue")]
pub mod issue;
mod provider;
mod server;

pub use client::{ClientFiles, Stream, TlsClient};
#[cfg(feature = "connector")]
pub use connector::{Connector, Io};
pub use explain::{Flags, PORT, explain, explain_to};
pub use files::Error;
pub use server::{Certificate, Reloaded, Server, ServerFiles};
pub use tokio_rustls::server::TlsStream as Accepted;

/// The first byte of a TLS connection.
pub const FIRST_BYTE: u8 = 0x16;
