//! The timeline picture of `palisade demo`: recorded events in, one SVG or one HTML page out.
//!
//! ```text
//! JSON lines of every process → merge → Act ┬→ axis   (ms → x, crowded moments stretched)
//!                                           ├→ layout (lanes, bars, arrows, labels: a Scene of plain data)
//!                                           └→ svg / html (a Scene written down; escaping lives here)
//! ```
//!
//! Everything is pure: no clock, no file, no randomness. Equal acts give equal bytes. What the picture claims is
//! computed from the events (whether an update was lost is compared, not believed), so that it cannot flatter the run.

mod axis;
mod geometry;
mod html;
mod layout;
mod legend;
mod model;
mod scene;
mod sign;
mod spans;
mod style;
mod svg;
#[cfg(test)]
mod tests;

pub(crate) use html::html;
pub(crate) use model::{
    Act, ActName, Admission, Answer, Event, Message, Operation, OperationKind, Outcome, Request,
    RequestKind, Update, merge,
};
pub(crate) use svg::svg;
