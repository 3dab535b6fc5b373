//! The history of locks: one row for each grant, from its request to its end, with the late writes that were refused.
//!
//! ```text
//!   events, in the order of the log ──► Ledger::take ──► rows in memory ──► commit, now and then ──► history.redb
//!   reports of refused writes       ──► Ledger::refused ────────────────────────────────────────────►     │
//!                                                              Reader::page ◄── any thread, at any time ──┘
//! ```
//!
//! A grant that begins and ends between two commits is written once, as an ended row. A commit also writes the grants that
//! last, so everything up to its revision is in the file; the log has what came later, and a kill loses nothing. Nothing here decides anything:
//! remove the file, and nothing but the past is lost. The machine knows who holds a lock now; the history knows who did.
//!
//! A lack is never silent: each range of events that it did not see is a [`Gap`] with its reason, and a
//! grant whose end is in one is ended as [`How::Unseen`].

mod codec;
mod ended;
mod ledger;
mod look;
mod pending;
mod reader;
mod row;
#[cfg(test)]
mod tests;

pub use ledger::{Bounds, Error, Ledger, LedgerOwner};
pub use look::{HistorySummary, look};
pub use reader::{Cursor, Page, Query, Reader};
pub use row::{End, Gap, GapReason, HoldMode, How, LateRefusal, Row};
