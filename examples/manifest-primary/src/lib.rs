//! A primary that owns a manifest in S3: the list of the contents of a table, as databases on object stores
//! keep it. The holder of the lock is the primary. It knows the list, and swaps it for a longer one.
//!
//! ```text
//!   old   lock ─ claim ─ read ─ swap +a1 ✓ ─ lease checked: fine ─▓▓▓ frozen ▓▓▓──────────── swap +a2 ✗
//!                                                lease expires │
//!   new                                                        lock ─ claim ─ read ─ +b1 ✓ ─ +b2 ✓
//! ```
//!
//! The old primary checked its lease right before the swap, and the lease was valid; then its process was
//! frozen. Later it swaps in the list that it knows. Without a fence that list has none of the new primary's
//! entries, although they were acknowledged. With the fence the swap is rejected, and the old primary learns
//! that it is no longer the primary.
//!
//! A swap that compares the ETag alone would notice this case, but a primary that then reads again and
//! continues, as retry loops do, is a second primary. The fence says which of the two is the newer.

mod manifest;
mod primary;
mod scenario;

use std::error::Error;

pub use manifest::{Location, Manifest};
pub use primary::{PrimaryConfig, serve};
pub use scenario::{Outcome, run};

/// Whether swaps are fenced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Mode {
    /// A lock, a check of the lease, and a plain put.
    Unfenced,
    /// The lock's token is claimed at the manifest before it is read.
    Fenced,
}

impl Mode {
    /// The mode's name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Mode::Unfenced => "unfenced",
            Mode::Fenced => "fenced",
        }
    }

    /// The mode with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Mode> {
        [Mode::Unfenced, Mode::Fenced]
            .into_iter()
            .find(|mode| mode.as_str() == name)
    }
}

/// An error other than a swap that came too late.
pub type Failure = Box<dyn Error + Send + Sync>;
