//! The traces in which locks were granted, for requests that show a lock, and for the trace of its holder.
//!
//! The node that granted has them in memory only: after a restart, and when another node leads, a lock that is held has
//! none. A grant after a wait has the trace of the request that waited; a renewal changes nothing. Only the latest
//! grants with a trace are stored.

use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use palisade_core::{ClientId, Granted, LockName, LockView, Token};

use crate::shell::{TraceId, TraceParent};
use palisade_pipeline::Request;

/// By the number that names the grant.
#[derive(Default)]
pub(super) struct Traces(Mutex<BTreeMap<Token, TraceId>>);

/// A request as its trace describes it.
pub(super) struct TracedRequest {
    parent: TraceParent,
    /// Of several, the first.
    lock: LockName,
    client: ClientId,
}

impl TracedRequest {
    /// `None` for a request that is in no trace, or that asks for no lock.
    pub(super) fn of(extensions: &http::Extensions, request: &Request) -> Option<TracedRequest> {
        let parent = *extensions.get::<TraceParent>()?;
        let Request::Acquire(wish) = request else {
            return None;
        };
        Some(TracedRequest {
            parent,
            lock: wish.lock.clone(),
            client: wish.client.clone(),
        })
    }
}

impl Traces {
    /// Keeps the trace of a request that was granted a lock, if it has one. If the trace is recorded, the log has the
    /// grant beside it.
    pub(super) fn keep(&self, asked: Option<TracedRequest>, granted: &Granted) {
        let Some(TracedRequest {
            parent,
            lock,
            client,
        }) = asked
        else {
            return;
        };
        if parent.sampled {
            tracing::info!(
                lock = lock.as_str(),
                client_id = client.as_str(),
                fencing_token = granted.token.get(),
                grant_id = granted.shared.map(|id| id.0.get()),
                "granted"
            );
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

/// The number of stored traces: some megabytes.
const KEPT: usize = 1 << 16;
