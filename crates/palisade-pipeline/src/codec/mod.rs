//! How log entries and snapshots are written as bytes.
//!
//! ```text
//!   batch     version │ at │ wall │ command │ command │ …            one frame of the log
//!   snapshot  version │ record │ record │ …                          (each record: length, body)
//!             Both are written in the lowest version that expresses them (`version`).
//!   command   tag │ fields       numbers are LEB128, texts and optional parts carry their length
//!   record    tag │ fields       or a bit in a flags byte, keys and ids are 16 bytes
//! ```
//!
//! Checksums protect integrity in the log; this module only refuses bytes that it cannot read. It
//! trusts nothing that it reads: names are checked again, and lengths are bounded by the bytes that
//! are there.

mod command;
mod reader;
mod snapshot;
#[cfg(test)]
mod tests;
mod version;
mod writer;

pub use command::{
    BatchPoint, decode_batch, encode_by, encode_command, encode_head, place, stamp, take_back,
};
pub use reader::Malformed;
pub use snapshot::{decode_record, encode_record, part};
#[cfg(any(test, feature = "testing"))]
pub use version::NEXT;
pub use version::{VERSION, newest_version, version_needed};
