//! Settings of a log, and of a new one.

use std::time::Duration;

use crate::error::OpenError;
use crate::id::Id;
use crate::identity::{DirectoryKind, Identity};
use crate::storage::Storage;

/// The thread that fills the next segment with zeros.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Preparation {
    /// In a thread of the log, ahead of need. For servers.
    Background,
    /// In the caller's thread, when the segment is needed: every run makes the same calls in the same order.
    /// For simulations.
    Inline,
}

/// Settings of an open log. Plain values; none of them is recorded on disk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Options {
    /// The length of a segment: 4 KiB to 1 GiB. A frame that needs more gets a longer one.
    pub segment_bytes: u64,
    /// The length of a new directory's first segment, so that creating one takes no time: 4 KiB to
    /// `segment_bytes`. The second is prepared meanwhile.
    pub first_segment_bytes: u64,
    /// The thread that prepares segments.
    pub preparation: Preparation,
    /// How long the background waits after a failed preparation (a full disk) before it tries again.
    pub prepare_retry: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            segment_bytes: 16 << 20,
            first_segment_bytes: 1 << 20,
            preparation: Preparation::Background,
            prepare_retry: Duration::from_secs(1),
        }
    }
}

impl Options {
    /// Small segments, prepared inline: for tests and simulations.
    pub fn small(segment_bytes: u64) -> Options {
        Options {
            segment_bytes,
            first_segment_bytes: segment_bytes,
            preparation: Preparation::Inline,
            ..Options::default()
        }
    }

    pub(crate) fn check(&self) -> Result<(), OpenError> {
        in_range("segment_bytes", self.segment_bytes, 4 << 10, 1 << 30)?;
        in_range(
            "first_segment_bytes",
            self.first_segment_bytes,
            4 << 10,
            self.segment_bytes,
        )
    }
}

fn in_range(name: &'static str, value: u64, min: u64, max: u64) -> Result<(), OpenError> {
    if (min..=max).contains(&value) {
        Ok(())
    } else {
        Err(OpenError::InvalidOption {
            name,
            value,
            min,
            max,
        })
    }
}

/// The identity of a new directory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CreateOptions {
    /// The owner; random when not given.
    pub owner: Option<Id>,
    /// The incarnation; random when not given. Only a simulation, which must repeat itself, fixes it.
    pub incarnation: Option<Id>,
}

impl CreateOptions {
    pub(crate) fn identity(&self, storage: &dyn Storage) -> Result<Identity, OpenError> {
        let random = || Id::random(storage).map_err(OpenError::io("draw a random id"));
        let owner = self.owner.map_or_else(random, Ok)?;
        let incarnation = self.incarnation.map_or_else(random, Ok)?;
        Ok(Identity {
            owner,
            incarnation,
            kind: DirectoryKind::Live,
        })
    }
}
