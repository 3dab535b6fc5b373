//! The history of locks: one row for each grant, from its request to its end, with the late writes that were refused.
//!
//! ```text
//!   events, in the order of the log ──► Ledger::take ──► rows in memory ──► commit, once a second ──► history.redb
//!   reports of refused writes       ──► Ledger::refused ┘                                                 │
//!                                                              Reader::page ◄── any thread, at any time ──┘
//! ```
//!
//! A grant that begins and ends between two commits is written once, as an ended row. Nothing here decides anything:
//! remove the file, and nothing but the past is lost. The machine knows who holds a lock now; the history knows who did.
//!
//! A lack is never silent: each range of events that it did not see is a [`Gap`] with its reason, and a
//! grant whose end is in one is ended as [`How::Unseen`].

mod codec;
mod ledger;
mod look;
mod pending;
mod reader;
mod row;
#[cfg(test)]
mod tests;

pub use ledger::{Bounds, Error, Ledger, Owner};
pub use look::{Look, look};
pub use reader::{Cursor, Page, Query, Reader};
pub use row::{End, Gap, How, Mode, Refusal, Row, Why};
