//! Resources, their fences and their objects as one plain value: what the in-memory store locks and
//! the durable store logs.
//!
//! ```text
//!   Request ──► Table::plan ──► Plan::Admit(Record) ──► (log, sync) ──► Table::apply
//!                             └ Plan::Repeat, Plan::Reject: nothing to do but to answer
//! ```
//!
//! A [`Record`] says what *became* so, not what was asked: a replay never decides anything again.

mod digest;
mod request;
mod table;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use palisade_core::fence::FenceState;

#[cfg(feature = "files")]
pub(crate) use digest::digest;
#[cfg(any(feature = "files", feature = "object-store", feature = "store", test))]
pub(crate) use request::Alter;
#[cfg(any(feature = "memory", feature = "store"))]
pub(crate) use request::Credentials;
#[cfg(feature = "http")]
pub(crate) use request::Numbered;
pub(crate) use request::{Ask, Request};
#[cfg(feature = "store")]
pub(crate) use table::Record;
pub(crate) use table::{Plan, Table};

use crate::name::ObjectPath;

/// The bytes of an object; cloning shares them.
pub(crate) type Bytes = Arc<Vec<u8>>;

/// How much a store takes. What goes beyond is refused with the limit's name; nothing is cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest object in bytes.
    pub object_bytes: u64,
    /// Everything together, names and fences included: the store is kept in memory.
    pub total_bytes: u64,
}

impl Limits {
    /// Objects up to 16 MiB, a store up to 1 GiB.
    pub const DEFAULT: Limits = Limits {
        object_bytes: 16 << 20,
        total_bytes: 1 << 30,
    };
}

impl Default for Limits {
    fn default() -> Limits {
        Limits::DEFAULT
    }
}

/// What a store of objects cannot do. Fence and data stay as they were.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Fault {
    /// A name that is no name.
    #[error(transparent)]
    Invalid(#[from] crate::name::Invalid),
    /// The object would be larger than [`Limits::object_bytes`].
    #[error("the object would have {bytes} bytes; at most {max} are allowed (object_bytes)")]
    ObjectTooLarge {
        /// How large it would be.
        bytes: u64,
        /// The limit.
        max: u64,
    },
    /// A fence is not re-armed below where it stands.
    #[error(transparent)]
    FloorTooLow(#[from] palisade_core::fence::FloorTooLow),
    /// The store would be larger than [`Limits::total_bytes`].
    #[error("the store is full: {max} bytes are allowed in all (total_bytes)")]
    StorageFull {
        /// The limit.
        max: u64,
    },
}

/// What is known of one resource, for operators and observers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// What its fence keeps.
    pub fence: FenceState,
    /// How many objects it has.
    pub objects: u64,
    /// How many bytes they have together.
    pub bytes: u64,
}

/// What is kept for one resource. It outlives its last object: a fence is never collected (rule F4).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Resource {
    pub(crate) guard: Guard,
    pub(crate) objects: BTreeMap<ObjectPath, Bytes>,
    /// What the objects have together.
    pub(crate) bytes: u64,
}

/// A fence's state, and what its last numbered write said.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Guard {
    pub(crate) fence: FenceState,
    /// The digest of the write that had the last sequence number: a repeat must say the same.
    pub(crate) digest: Option<u64>,
}
