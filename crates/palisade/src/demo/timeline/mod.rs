//! The picture of `palisade demo`: turns recorded events into an SVG or an HTML page.
//!
//! ```text
//! records of every process ─► merge ─► Act ─► spans and steps ─► chart (lanes) ─► picture: SVG, HTML
//! ```
//!
//! Nothing here reads a clock or a file: equal acts give equal bytes. The picture's claims (whether an update was lost,
//! which write was dangerous) are computed from the events, so it cannot show more than the run proved.

mod chart;
mod model;
mod picture;
mod spans;
#[cfg(test)]
mod tests;
mod words;

pub(crate) use model::{
    Act, ActName, ActOutcome, Content, LeaseChange, LockAnswer, LockMessage, LockMessageKind,
    Message, OperationKind, Period, ResourceMessage, Ruling, TimelineEvent, Update, merge,
};
pub(crate) use picture::{html, svg};
pub(crate) use words::{duration, label};
