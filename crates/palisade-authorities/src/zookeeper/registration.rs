//! The state of a request at the ensemble: possibly a node, and the time after which it must not have it any
//! more.
//!
//! A session continues as long as its process does, renewed or not. A lease must not: if a lease is not
//! renewed, this side deletes its node when its time is over. (A stopped process cannot do that; in that case
//! the session expires.)

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use palisade_core::{Timestamp, Token, Ttl};
use tokio_util::sync::CancellationToken;
use zookeeper_client::{Client, Error};

use super::node::QueueNode;
use super::{ensemble, fault, node};
use palisade_client::Fault;
use palisade_client::clock::{BootClock, Clock as _};

/// The requests of this service that may have a node, by their ids.
#[derive(Default)]
pub(super) struct Registrations(Arc<Mutex<HashMap<[u8; 16], Arc<Registration>>>>);

/// One request that may have a node.
pub(super) struct Registration {
    session: Arc<Client>,
    directory: String,
    request: String,
    ttl: Ttl,
    /// The instant at which it ends without a renewal, on the boot clock.
    ends: AtomicU64,
    forgotten: CancellationToken,
    /// The request's node, once it was granted.
    node: OnceLock<QueueNode>,
}

impl Registrations {
    pub(super) fn get(&self, request: &[u8; 16]) -> Option<Arc<Registration>> {
        let registrations = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        registrations.get(request).cloned()
    }

    /// Creates an entry, or returns the existing one of the same session.
    pub(super) fn begin(
        &self,
        request: &[u8; 16],
        session: &Arc<Client>,
        directory: &str,
        ttl: Ttl,
    ) -> Arc<Registration> {
        if let Some(registration) = self.get(request)
            && Arc::ptr_eq(&registration.session, session)
        {
            registration.extend(BootClock.now());
            return registration;
        }
        self.forget(request);
        let registration = Arc::new(Registration {
            session: Arc::clone(session),
            directory: directory.to_owned(),
            request: node::hex(request),
            ttl,
            ends: AtomicU64::new(BootClock.now().after(ttl.span()).as_nanos()),
            forgotten: CancellationToken::new(),
            node: OnceLock::new(),
        });
        let mut registrations = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        registrations.insert(*request, Arc::clone(&registration));
        drop(registrations);
        let (registrations, id, watched) =
            (Arc::clone(&self.0), *request, Arc::clone(&registration));
        tokio::spawn(async move {
            if watched.delete_when_over().await {
                let mut registrations =
                    registrations.lock().unwrap_or_else(PoisonError::into_inner);
                registrations.remove(&id);
            }
        });
        registration
    }

    /// Removes a request that has no node left.
    pub(super) fn forget(&self, request: &[u8; 16]) {
        let mut registrations = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(registration) = registrations.remove(request) {
            registration.forgotten.cancel();
        }
    }
}

impl Registration {
    pub(super) fn ttl(&self) -> Ttl {
        self.ttl
    }

    /// Records that the request was granted with this node.
    pub(super) fn granted(&self, node: QueueNode) {
        let _ = self.node.set(node);
    }

    /// Releases the request's grant, if it has this token (or any, with `None`). Returns `None` if no grant
    /// is known, otherwise whether the node still existed.
    pub(super) async fn release(&self, token: Option<Token>) -> Result<Option<bool>, Fault> {
        let node = self.node.get();
        let node = node.filter(|node| token.is_none_or(|token| token == node.token));
        let Some(node) = node.filter(|_| !self.session.state().is_terminated()) else {
            return Ok(None);
        };
        match self.session.delete(&node.path, None).await {
            Ok(()) => Ok(Some(true)),
            Err(Error::NoNode) => Ok(Some(false)),
            Err(error) => Err(fault::of(error)),
        }
    }

    /// Makes the lease last its full time from this instant.
    pub(super) fn extend(&self, from: Timestamp) {
        let ends = from.after(self.ttl.span()).as_nanos();
        self.ends.fetch_max(ends, Ordering::AcqRel);
    }

    fn ends(&self) -> Timestamp {
        Timestamp::from_nanos(self.ends.load(Ordering::Acquire))
    }

    /// Makes a round trip to the leader and looks for the node; returns the token, or `None` if the node is
    /// gone.
    pub(super) async fn renew(&self, token: Option<Token>) -> Result<Option<Token>, Fault> {
        ensemble::connected(&self.session)?;
        let sent = BootClock.now();
        if sent >= self.ends() {
            return Ok(None);
        }
        // In one session both are executed in this order.
        let (synced, found) = tokio::join!(
            async { self.session.sync(&self.directory).await.map_err(fault::of) },
            ensemble::own(&self.session, &self.directory, &self.request)
        );
        synced?;
        let found = found?.map(|node| node.token);
        let found = found.filter(|found| token.is_none_or(|token| token == *found));
        if found.is_some() {
            self.extend(sent);
        }
        Ok(found)
    }

    /// Deletes the request's nodes.
    pub(super) async fn sweep(&self) -> Result<(), Fault> {
        if self.session.state().is_terminated() {
            // Its nodes were deleted with the session.
            return Ok(());
        }
        ensemble::sweep(&self.session, &self.directory, &self.request).await
    }

    /// Waits until the lease is over and deletes its nodes; returns `false` if the request was removed
    /// before.
    async fn delete_when_over(&self) -> bool {
        loop {
            let ends = self.ends();
            tokio::select! {
                () = self.forgotten.cancelled() => return false,
                () = BootClock.sleep_until(ends) => {}
            }
            if BootClock.now() < self.ends() {
                continue;
            }
            match self.sweep().await {
                Ok(()) => return true,
                Err(fault) if fault.is_transient() => {
                    tracing::debug!(%fault, "a node whose lease has ended still exists");
                    tokio::time::sleep(AGAIN).await;
                }
                Err(_) => return true,
            }
        }
    }
}

const AGAIN: std::time::Duration = std::time::Duration::from_millis(100);
