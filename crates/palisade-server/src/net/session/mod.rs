//! The fast path: one stream that carries any number of operations.
//!
//! ```text
//!  frame of requests ──► one submit ──► pipeline ──► answers, as they finish
//!        ▲                  ▲                             │
//!        │ counted          └── listings, one at a time   │
//!        │ before decoding                                │
//!  frame of replies  ◄── everything that is ready ◄───────┘
//! ```
//!
//! There are two forms with the same messages: [`grpc`], for any gRPC client, and [`plain`], frames on a bare
//! connection, which costs less than half. Both use [`flow::Flow`], which has no task and no lock per operation, and stops
//! reading from a client that does not read its replies.
//!
//! The bytes of each session are bounded, and so are those of all sessions together: an operation counts from before it
//! is decoded until its reply has left.

mod codec;
mod flow;
mod grpc;
mod in_flight;
mod plain;

pub(super) use codec::CountingCodec;
pub(super) use grpc::ReplyStream;
pub(super) use plain::{refused, serve};
