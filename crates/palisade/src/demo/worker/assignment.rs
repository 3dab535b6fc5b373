//! A worker's task.

use serde::{Deserialize, Serialize};

/// A worker's task; its process gets it as one argument, in JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::demo) struct Assignment {
    /// Its name, which is also its client id and the item that it adds.
    pub(in crate::demo) client: String,
    /// The lock server's URL.
    pub(in crate::demo) authority: String,
    /// The address and port for its requests to the store.
    pub(in crate::demo) store: String,
    /// How long its lease lasts without renewal.
    pub(in crate::demo) ttl_ms: u64,
    /// How long it waits for the lock.
    pub(in crate::demo) wait_ms: u64,
    /// When the act began.
    pub(in crate::demo) origin_nanos: u64,
    /// Whether its first operation at the store is a claim and its read carries the token.
    pub(in crate::demo) claims: bool,
    /// Where it waits for a line from the demo.
    pub(in crate::demo) breakpoint: Breakpoint,
}

/// Where a worker waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(in crate::demo) enum Breakpoint {
    /// Nowhere.
    Nowhere,
    /// After it has read the list.
    Read,
    /// Between the check of its lease and the write.
    Checked,
}

/// The demo's lock, and the resource and file that it guards.
pub(in crate::demo) const LOCK: &str = "orders";
pub(in crate::demo) const RESOURCE: &str = "storage:orders";
pub(in crate::demo) const FILE: &str = "/list.txt";
