//! Clean histories: clients on a network that delays and loses, in front of the real machine.
//!
//! ```text
//!   client ── call ──► Arrive ──► Machine::apply ──► Back ──► client's next step
//!               │         └ lost        └ Settled later    └ lost: it retries, gives up or forgets
//! ```
//!
//! Time is virtual and one seed drives everything, so what comes out is what a real authority may have
//! answered, and equal seeds give equal histories.

mod client;
mod stage;

pub use stage::Shape;

use palisade_core::Entry;

use super::event::{Event, Header};

/// The events of one clean history.
#[must_use]
pub fn clean(seed: u64, shape: Shape) -> Vec<Event> {
    stage::Stage::new(seed, shape).play()
}

/// What the authority's log would have of that history: every entry, also those that changed nothing.
#[must_use]
pub fn log(seed: u64, shape: Shape) -> Vec<Entry> {
    stage::Stage::new(seed, shape).play_log()
}

/// A clean history as text, a line each.
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
