//! The server's face: gRPC, HTTP/JSON and plain sessions on one port.
//!
//! ```text
//!                                 ┌─► plain ─► session ─┐
//!  crate::shell (connections, ────┼─► grpc ──► session ─┼─► convert ─► pipeline::Handle
//!  bounds, time-outs, drain)      │                     │
//!                                 └─► http ─────────────┘
//! ```
//!
//! They share the port: a connection that opens with a zero byte is a plain session, one that opens
//! with the HTTP/2 preface speaks HTTP/2, any other HTTP/1.1, and the path decides who answers. Nothing
//! here orders, applies or syncs, and no operation gets a task of its own.

mod app;
mod budget;
mod convert;
mod grpc;
mod grpc_stream;
mod http;
mod listings;
mod metrics;
mod serve;
mod session;
mod settings;
mod watch;

pub use self::http::document as openapi;
pub use serve::{ServeError, serve};
pub use settings::{OutOfRange, Settings};
