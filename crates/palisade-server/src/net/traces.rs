//! The traces in which locks were granted, for whoever looks at a lock or for the trace of its holder.
//!
//! They are kept in memory by the node that granted, and in no log: after a restart, and when another node leads, a lock
//! that is held has none. A grant after a wait has the trace of the request that waited; a renewal changes nothing. Kept
//! are the latest grants that had one.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use palisade_core::{Granted, LockView, Token};

use crate::shell::{TraceId, TraceParent};

/// By the number that names the grant.
#[derive(Default)]
pub(super) struct Traces(Mutex<BTreeMap<Token, TraceId>>);

impl Traces {
    /// Keeps the trace of a request that was granted a lock, if it has one. If the trace is recorded, the log has the
    /// token beside it.
    pub(super) fn keep(&self, extensions: &http::Extensions, granted: &Granted) {
        let Some(parent) = extensions.get::<TraceParent>() else {
            return;
        };
        if parent.sampled {
            tracing::info!(fencing_token = granted.token.get(), "granted");
        }
        let mut kept = self.lock();
        kept.insert(granted.number(), parent.trace);
        if kept.len() > KEPT {
            kept.pop_first();
        }
    }

    /// The trace in which a lock was granted to its holder, of several readers the oldest.
    pub(super) fn of(&self, view: &LockView) -> Option<TraceId> {
        let number = match view.readers.first() {
            Some(reader) => reader.id.0,
            None => view.holder.as_ref()?.token,
        };
        self.lock().get(&number).copied()
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<Token, TraceId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// How many are kept: some megabytes.
const KEPT: usize = 1 << 16;
