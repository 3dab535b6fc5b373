//! The picture of `palisade demo`: recorded events in, one SVG or one HTML page out.
//!
//! ```text
//! records of every process ─► merge ─► Act ─► spans and steps ─► chart (lanes) ─► picture: SVG, HTML
//! ```
//!
//! Nothing here reads a clock or a file: equal acts give equal bytes. What the picture claims is computed from the
//! events (whether an update was lost, and which write was dangerous), so that it cannot flatter the run.

mod chart;
mod model;
mod picture;
mod spans;
mod style;
#[cfg(test)]
mod tests;
mod words;

pub(crate) use model::{
    Act, ActName, Admission, Answer, Content, Event, Lease, Message, Operation, OperationKind,
    Outcome, Period, Request, RequestKind, Update, merge,
};
pub(crate) use picture::{html, svg};
pub(crate) use words::{duration, label};
