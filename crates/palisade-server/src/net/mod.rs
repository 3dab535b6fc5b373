//! The server's interfaces: gRPC, HTTP/JSON and plain sessions on one port.
//!
//! ```text
//!                                 ┌─► plain ─► session ─┐
//!  crate::shell (connections, ────┼─► grpc ──► session ─┼─► convert ─► pipeline::Handle
//!  bounds, time-outs, drain)      │                     │
//!                                 └─► http ─────────────┘
//! ```
//!
//! All share the port: a connection that starts with a zero byte is a plain session, one that starts with the HTTP/2
//! preface speaks HTTP/2, any other HTTP/1.1, and the path selects the handler. Nothing here orders, applies or syncs,
//! and no operation gets its own task.

mod audit;
mod budget;
mod calls;
mod cluster;
mod convert;
mod error;
mod forward;
mod gate;
mod grpc;
mod grpc_status;
mod grpc_stream;
mod history;
mod http;
mod interfaces;
mod issuer;
mod lease_keys;
mod listening;
mod listings;
mod metrics;
mod notice;
mod phases;
mod places;
mod quota;
mod ranked;
mod ranking;
mod recorder;
mod reply;
mod rules;
mod secrets;
mod sequencer;
mod serve;
mod session;
mod settings;
mod shares;
mod starting;
mod traces;
mod watch;
mod watchers;

pub use self::http::document as openapi;
pub use cluster::{Changing, Cluster, ClusterNotChanged, Losing, MembershipChange};
pub use error::ServeError;
pub use lease_keys::{LOCK_TOKEN_FILE, lock_token_fingerprint};
pub use secrets::ClusterSecret;
pub use sequencer::{KEY_FILE, KeyFileError, SequencerKeys};
pub use serve::{Serving, Shutdown, serve};
pub use settings::{HistorySettings, OutOfRange, PastEvents, ReadPast, Settings, ShownCounter};
pub use starting::{check, while_starting};
