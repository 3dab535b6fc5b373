//! The HTTP shell: the common part of every port of this project, before and after the handlers.
//!
//! ```text
//!           ┌─ Shell::serve ─┐   ┌──────────── connection ────────────┐
//!  TCP ───► │ accept     tls │──►│ first byte ─► HTTP/1.1 or HTTP/2    │
//!  Unix ──► │ total and per  │   │   │ head time-out, idle time-out    │
//!           │ address, within│   │   │ host: Host, :authority, Origin  │──► Router
//!           │ the descriptors│   │   │ body: bytes, time, budget       │
//!           │ keep-alive     │   │   │ answer: time, budget            │
//!           └────────────────┘   │   └► Service::serve_own (a protocol │
//!                                │      that is not HTTP)              │
//!                                └────────────────────────────────────┘
//! ```
//!
//! The lock server, the store and the gateway are a [`Service`] each and bring a router; nothing here knows their
//! answers. A connection runs over any [`Transport`]: with [`Settings::tls`] that is TLS, and no handler sees a
//! difference.
//!
//! A Unix socket ([`Listen`]) has the same bounds, and lacks the parts that concern a network: TLS, because nobody is
//! between the two processes; keep-alive and user time-out, because the kernel closes the connections of a process that is
//! gone; and the check of host names, because no browser can connect.

mod accept;
mod activity;
mod answer;
mod body;
mod budget;
mod connection;
mod descriptors;
mod error;
mod headers;
mod hosts;
mod lifetime;
mod listen;
mod nonce;
mod service;
mod settings;
mod slots;
mod socket;
mod state;
mod tls;
mod trace;

pub use accept::Shell;
pub use body::{BodyError, read};
pub use error::Error;
pub use headers::remove_hop_by_hop;
pub use hosts::Hosts;
pub use lifetime::Lifetime;
pub use listen::{BindError, Listen, Listeners};
pub use service::{
    CertificateOver, ExchangeKind, Origin, Peer, PeerIdentity, Service, Transport, refusal,
};
pub use settings::{OutOfRange, Settings};
pub use socket::prepare;
pub use state::{Meters, Phase};
pub use tls::keep_reloading;
pub(crate) use tls::{FAREWELL, farewell};
pub use trace::{SpanId, TraceId, TraceParent};
