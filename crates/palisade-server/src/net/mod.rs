//! The server's face: gRPC, HTTP/JSON and plain sessions on one port.
//!
//! ```text
//!                                 ┌─► plain ─► session ─┐
//!  TCP ─► listener ─► connection ─┼─► grpc ──► session ─┼─► convert ─► pipeline::Handle
//!         (cap)       (time-outs, │                     │
//!                      drain)     └─► http ─────────────┘
//! ```
//!
//! They share the port: a connection that opens with a zero byte is a plain session, one that opens
//! with the HTTP/2 preface speaks HTTP/2, any other HTTP/1.1, and the path decides who answers. Nothing
//! here orders, applies or syncs, and no operation gets a task of its own.

mod app;
mod connection;
mod convert;
mod grpc;
mod http;
mod listener;
mod metrics;
mod session;
mod settings;
mod watch;

pub use self::http::document as openapi;
pub use listener::{ServeError, serve};
pub use settings::{OutOfRange, Settings};
