//! A durable log of opaque payloads, with snapshots and a directory that has an identity.
//!
//! Internal to Palisade, without a promise of compatibility: programs use `palisade-client`, `palisade-authorities` and
//! `palisade-fence`.
//!
//! ```text
//!   caller's batch ──commit──▶ one frame, one fdatasync ──▶ log-…1.seg  log-…9.seg  next.seg
//!                                                            (sealed)     (active)   (being zeroed)
//!                                                               │
//!   Compactor, any thread: newest snapshot + sealed frames ─────┘──▶ snap-…8.snap, then the sealed segments go
//! ```
//!
//! One writer thread owns a [`Wal`]; [`Wal::commit`] returns when its payload is on stable storage. The log knows
//! nothing of sockets, async or the meaning of payloads. The format on disk is drawn in `docs/reference/wal-format.md`.
//!
//! ```
//! use palisade_wal::{CreateOptions, Options, Seq, Wal};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let home = tempfile::tempdir()?;
//! # let dir = home.path();
//! let opened = Wal::open_or_create(dir, &CreateOptions::default(), &Options::default())?;
//! let mut state = Vec::new();
//! assert!(opened.snapshot()?.is_none()); // else: load it first
//! opened.replay(|_seq: Seq, payload: &[u8]| {
//!     state.extend_from_slice(payload);
//!     Ok::<(), std::io::Error>(())
//! })?;
//! let mut wal = opened.into_wal();
//! wal.reserve(5)?; // a full disk is met here
//! state.extend_from_slice(b"batch");
//! let seq = wal.commit(b"batch")?; // on stable storage now
//! assert_eq!(seq.get(), 1);
//! wal.close()?;
//! # Ok(())
//! # }
//! ```
//!
//! Guarantees:
//!
//! - every payload that `commit` acknowledged is there after any crash, in order and without gaps;
//! - a torn tail (an end that is no whole frame) is cut off and reported, damage to anything that is known to
//!   be synced is refused with file and offset, never skipped;
//! - a failed write or sync poisons the log: it is never retried, because the kernel marks the pages
//!   clean after a failed fsync and the next one lies (Rebello et al., "Can Applications Recover from
//!   fsync Failures?", 2020);
//! - a full disk is discovered by [`Wal::reserve`], before the caller has applied anything;
//! - a directory is opened once at a time, by its own identity: never twice, never as a copy, never as an
//!   older copy put back in place;
//! - a directory that is removed, renamed or replaced while it is open poisons its log.

mod backup;
mod compact;
mod error;
mod frame;
mod id;
mod identity;
mod look;
mod member;
mod open;
mod opening;
mod options;
mod prepare;
mod promise;
mod recover;
mod restore_in_place;
mod segment;
mod snapshot;
mod storage;
#[cfg(feature = "testing")]
pub mod testing;
mod writer;

use std::fmt;
use std::num::NonZeroU64;
use std::sync::{Mutex, MutexGuard, PoisonError};

pub use backup::{
    CopyReport, Observed, backup, backup_on, backup_state_on, observe, restore, restore_on,
};
pub use compact::{Compacted, Compactor, Fold, PreparationWatch};
pub use error::{CommitError, CompactError, Damage, Full, OpenError, ReadError, ReplayError};
pub use id::Id;
pub use identity::{DirectoryKind, Identity};
pub use look::{check_in_place, identity, opened_by};
pub use member::{Conversion, Purpose, purpose};
pub use open::{Opened, foreign_names};
pub use options::{CreateOptions, Options, Preparation};
pub use promise::{node, promise_node};
pub use recover::{RecoveryReport, TornTail};
pub use restore_in_place::InPlace;
pub use snapshot::{SnapshotReader, SnapshotWriter};
pub use storage::{DirStorage, File, FileId, OpenMode, Storage};
pub use writer::Wal;

/// The largest payload of one frame, in bytes.
pub const MAX_PAYLOAD: usize = 64 << 20;

/// The position of a frame in the log: 1 for the first, +1 for each commit, never reused.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Seq(NonZeroU64);

impl Seq {
    pub(crate) const FIRST: Seq = Seq(NonZeroU64::MIN);

    /// The sequence number `raw`, or nothing for 0, which is no frame's.
    pub fn new(raw: u64) -> Option<Seq> {
        NonZeroU64::new(raw).map(Seq)
    }

    /// The number itself.
    pub fn get(self) -> u64 {
        self.0.get()
    }
}

impl fmt::Display for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl fmt::Debug for Seq {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Seq({})", self.0)
    }
}

/// Locks a mutex. Its data stay valid at every step, so that a panicked holder does not matter.
fn hold<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
