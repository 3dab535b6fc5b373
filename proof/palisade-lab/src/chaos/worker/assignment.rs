//! A worker's task.

use serde::{Deserialize, Serialize};

use crate::chaos::kind::LockKind;

/// A worker's task; its process gets it as one argument, in JSON.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(in crate::chaos) struct Assignment {
    /// Unique in its world; elements begin with it.
    pub(in crate::chaos) name: String,
    /// The authority's URL.
    pub(in crate::chaos) authority: String,
    /// The resource's address.
    pub(in crate::chaos) store: String,
    pub(in crate::chaos) ttl_ms: u64,
    /// The shortest and the longest thinking time.
    pub(in crate::chaos) think_ms: (u64, u64),
    pub(in crate::chaos) lanes: Vec<(usize, LockKind)>,
    /// Whether its first operation at the resource is a claim and its reads carry the token.
    pub(in crate::chaos) claims: bool,
    /// How many elements to add under one grant, each with its own write.
    pub(in crate::chaos) adds_per_grant: u64,
    /// The extra bytes of each element.
    pub(in crate::chaos) padding: usize,
    /// Whether each call to a resource is reported, for the history of resources.
    pub(in crate::chaos) records: bool,
    pub(in crate::chaos) seed: u64,
}
