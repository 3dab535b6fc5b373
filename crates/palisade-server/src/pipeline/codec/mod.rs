//! How log entries and snapshots are written as bytes.
//!
//! ```text
//!   batch     version │ at │ wall │ command │ command │ …            one frame of the log
//!             1: an entry ends all that is due; 2: a bounded part of it; 3: as 2, and a leader may change;
//!             4: as 3, and grants may be shared; 5: as 4, and commands may be those of principals; 9: and sets of locks;
//!             10: and mode update; 11: and a restore where there are readers; 12: and single requests that become orphans
//!   snapshot  version │ record │ record │ …                          (each record: length, body)
//!             1: no orphans; 2: perhaps some, and locks kept for them; 3: as 2, and shared grants;
//!             4: as 3, and records may belong to principals; 8: and sets: grants with one token, requests with one arrival;
//!             9: and grants in mode update; 10: and the next token at a restore; 11: as 10, behind a batch of version 12
//!             Both are written in the lowest version that expresses them (`version`).
//!   command   tag │ fields       numbers are LEB128, texts and optional parts carry their length
//!   record    tag │ fields       or a bit in a flags byte, keys and ids are 16 bytes
//! ```
//!
//! Integrity is the log's business (checksums); this module only refuses what it cannot read. Nothing
//! read here is trusted: names are checked again and lengths are bounded by what is there.

mod command;
mod reader;
mod snapshot;
#[cfg(test)]
mod tests;
mod version;
mod writer;

pub use command::{
    Place, decode_batch, encode_by, encode_command, encode_head, place, stamp, take_back,
};
pub use reader::Malformed;
pub use snapshot::{decode_record, encode_record, part};
pub use version::{
    BATCH_FLOOR, BATCH_VERSION, SNAPSHOT_VERSION, WITH_ORPHANS, WITH_PRINCIPALS, batch_version,
    newest_batch, newest_snapshot, snapshot_version, version_needed,
};
