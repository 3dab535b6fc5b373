//! Clean histories: clients in front of the real machine, on a network that delays and loses messages.
//!
//! ```text
//!   client ── call ──► Arrive ──► Machine::apply ──► Back ──► client's next step
//!               │         └ lost        └ Settled later    └ lost: it retries, abandons or forgets
//! ```
//!
//! Time is virtual and one seed determines everything, so a history is one that a real authority could have produced,
//! and equal seeds give equal histories.

mod client;
mod shape;
mod simulation;

pub use shape::Shape;

use palisade_core::Entry;

use super::event::{Event, Header};

/// The events of one clean history.
#[must_use]
pub fn clean(seed: u64, shape: Shape) -> Vec<Event> {
    simulation::Simulation::new(seed, shape).run_history()
}

/// The authority's log of that history: every entry, including those that changed nothing.
#[must_use]
pub fn log(seed: u64, shape: Shape) -> Vec<Entry> {
    simulation::Simulation::new(seed, shape).run_log()
}

/// A clean history as text, one event per line.
#[must_use]
pub fn clean_text(seed: u64, shape: Shape) -> String {
    text(&clean(seed, shape))
}

/// Events as the lines of a file.
#[must_use]
pub fn text(events: &[Event]) -> String {
    let mut text = Header::default().to_line();
    text.push('\n');
    for event in events {
        text.push_str(&event.to_line());
        text.push('\n');
    }
    text
}
