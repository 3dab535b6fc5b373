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

mod buffers;
mod flow;
mod grpc;
mod in_flight;
mod plain;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use super::budget::SessionBudget;
use super::gate::{Gate, GatedPipeline};
use super::listening::Listens;
use super::phases::Phases;
use super::settings::Settings;

pub(super) use grpc::open;
pub(super) use plain::{refused, serve};

/// The state and the bounds that all sessions share.
pub(super) struct Sessions {
    pub(super) gate: Arc<Gate>,
    pub(super) pipeline: GatedPipeline,
    listens: Arc<Listens>,
    budget: Arc<SessionBudget>,
    phases: Phases,
    pub(super) meters: Arc<Meters>,
    /// How many run on the pipeline's own thread.
    pub(super) near: u64,
    /// The bounds of one: operations, bytes, and both in one frame.
    operations: usize,
    bytes: usize,
    pub(super) frame_operations: usize,
    pub(super) frame_bytes: usize,
}

/// Counters of sessions.
#[derive(Debug, Default)]
pub(super) struct Meters {
    pub(super) sessions: AtomicU64,
    pub(super) sessions_near: AtomicU64,
    pub(super) sessions_opened: AtomicU64,
}

impl Sessions {
    pub(super) fn new(
        gate: Arc<Gate>,
        pipeline: GatedPipeline,
        listens: Arc<Listens>,
        budget: Arc<SessionBudget>,
        phases: Phases,
        settings: &Settings,
    ) -> Sessions {
        Sessions {
            gate,
            pipeline,
            listens,
            budget,
            phases,
            meters: Arc::default(),
            near: settings.sessions_near,
            operations: settings.session_operations,
            bytes: settings.session_bytes,
            frame_operations: settings.frame_operations,
            frame_bytes: settings.frame_bytes,
        }
    }

    pub(super) fn meters(&self) -> Arc<Meters> {
        Arc::clone(&self.meters)
    }
}
