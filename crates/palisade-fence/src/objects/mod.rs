//! Resources, their fences and their objects in one plain value. The in-memory store locks it; the durable store logs
//! it.
//!
//! ```text
//!   Request ──► Table::plan ──► Plan::Admit(Record) ──► (log, sync) ──► Table::apply
//!                             └ Plan::Repeat, Plan::Reject: nothing to do but to answer
//! ```
//!
//! A [`Record`] contains the result, not the request, so a replay never decides again.

mod request;
mod table;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use palisade_core::fence::{FenceRecord, FenceState};

#[cfg(any(feature = "files", feature = "object-store", feature = "store", test))]
pub(crate) use request::Alter;
#[cfg(any(feature = "memory", feature = "store"))]
pub(crate) use request::Credentials;
#[cfg(feature = "http")]
pub(crate) use request::Numbered;
#[cfg(feature = "files")]
pub(crate) use request::digest;
pub(crate) use request::{Operation, Request};
#[cfg(feature = "store")]
pub(crate) use table::Record;
pub(crate) use table::{Plan, ResourceTable};

use crate::name::ObjectPath;

/// The bytes of an object; cloning shares them.
pub(crate) type Bytes = Arc<Vec<u8>>;

/// The limits of a store. An operation beyond one is an error that names it; nothing is truncated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoreLimits {
    /// The largest object in bytes.
    pub object_bytes: u64,
    /// The largest size of the whole store in bytes, including names and fences, because the store is in memory.
    pub total_bytes: u64,
}

impl StoreLimits {
    /// Objects up to 16 MiB, a store up to 1 GiB.
    pub const DEFAULT: StoreLimits = StoreLimits {
        object_bytes: 16 << 20,
        total_bytes: 1 << 30,
    };
}

impl Default for StoreLimits {
    fn default() -> StoreLimits {
        StoreLimits::DEFAULT
    }
}

/// The state of one resource, for operators and observers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct View {
    /// The state of its fence.
    pub fence: FenceState,
    /// The number of its objects.
    pub objects: u64,
    /// The total number of bytes of its objects.
    pub bytes: u64,
}

/// The record of one resource. It outlives its last object: a fence is never collected (rule F4).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct StoredResource {
    pub(crate) fence: FenceRecord,
    pub(crate) objects: BTreeMap<ObjectPath, Bytes>,
    /// The total number of bytes of the objects.
    pub(crate) bytes: u64,
}
