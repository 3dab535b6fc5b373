//! A worker's notes for the demo, one line each.

use std::io::{self, Write as _};

use crate::demo::recorder::Note;
use crate::demo::timeline::TimelineEvent;

/// Why a worker gives up: a sentence.
pub(super) type GaveUp = String;

pub(super) fn words(error: impl std::fmt::Display) -> GaveUp {
    format!("{error:#}")
}

pub(super) fn record(event: TimelineEvent) -> Result<(), GaveUp> {
    send(&Note::Record { event })
}

pub(super) fn send(note: &Note) -> Result<(), GaveUp> {
    print(note).map_err(words)
}

/// Sends one line to the demo at once.
pub(super) fn print(note: &Note) -> io::Result<()> {
    let mut out = io::stdout().lock();
    serde_json::to_writer(&mut out, note)?;
    out.write_all(b"\n")?;
    out.flush()
}
