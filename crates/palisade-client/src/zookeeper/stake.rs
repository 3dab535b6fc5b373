//! What a request has at the ensemble: perhaps a node, and the time after which it must not have it any
//! more.
//!
//! A session goes on for as long as its process does, renewed or not. A lease must not: a node whose
//! lease nobody renews is deleted by this side when its time is over. (A process that is stopped cannot
//! do that, and there the session expires.)

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use palisade_core::{Timestamp, Token, Ttl};
use tokio_util::sync::CancellationToken;
use zookeeper_client::{Client, Error};

use super::node::Node;
use super::{ensemble, fault, node, queue};
use crate::clock::{BootClock, Clock as _};
use crate::fault::Fault;

/// The requests of this service that may have something, by their ids.
#[derive(Default)]
pub(super) struct Stakes(Arc<Mutex<HashMap<[u8; 16], Arc<Stake>>>>);

/// One of them.
pub(super) struct Stake {
    session: Arc<Client>,
    directory: String,
    request: String,
    ttl: Ttl,
    /// When it ends unless it is renewed, on the boot clock.
    ends: AtomicU64,
    forgotten: CancellationToken,
    /// Its node, once it was granted.
    node: OnceLock<Node>,
}

impl Stakes {
    pub(super) fn get(&self, request: &[u8; 16]) -> Option<Arc<Stake>> {
        let stakes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        stakes.get(request).cloned()
    }

    /// Begins one, or goes on with the one there is in the same session.
    pub(super) fn begin(
        &self,
        request: &[u8; 16],
        session: &Arc<Client>,
        directory: &str,
        ttl: Ttl,
    ) -> Arc<Stake> {
        if let Some(stake) = self.get(request)
            && Arc::ptr_eq(&stake.session, session)
        {
            stake.goes_on(BootClock.now());
            return stake;
        }
        self.forget(request);
        let stake = Arc::new(Stake {
            session: Arc::clone(session),
            directory: directory.to_owned(),
            request: node::hex(request),
            ttl,
            ends: AtomicU64::new(BootClock.now().after(ttl.span()).as_nanos()),
            forgotten: CancellationToken::new(),
            node: OnceLock::new(),
        });
        let mut stakes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        stakes.insert(*request, Arc::clone(&stake));
        drop(stakes);
        let (stakes, id, watched) = (Arc::clone(&self.0), *request, Arc::clone(&stake));
        tokio::spawn(async move {
            if watched.outlast().await {
                let mut stakes = stakes.lock().unwrap_or_else(PoisonError::into_inner);
                stakes.remove(&id);
            }
        });
        stake
    }

    /// Nothing is left of it.
    pub(super) fn forget(&self, request: &[u8; 16]) {
        let mut stakes = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(stake) = stakes.remove(request) {
            stake.forgotten.cancel();
        }
    }
}

impl Stake {
    pub(super) fn ttl(&self) -> Ttl {
        self.ttl
    }

    /// It was granted with this node.
    pub(super) fn granted(&self, node: Node) {
        let _ = self.node.set(node);
    }

    /// Gives up what it was granted, if it was with this token (or whichever); `None` if nothing is
    /// known of that, otherwise whether it was still there.
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

    /// It lasts its full time from this instant.
    pub(super) fn goes_on(&self, from: Timestamp) {
        let ends = from.after(self.ttl.span()).as_nanos();
        self.ends.fetch_max(ends, Ordering::AcqRel);
    }

    fn ends(&self) -> Timestamp {
        Timestamp::from_nanos(self.ends.load(Ordering::Acquire))
    }

    /// A round trip to the leader that finds the node; the token, or `None` if it is gone.
    pub(super) async fn renew(&self, token: Option<Token>) -> Result<Option<Token>, Fault> {
        ensemble::connected(&self.session)?;
        let sent = BootClock.now();
        if sent >= self.ends() {
            return Ok(None);
        }
        // In one session both are carried out in this order.
        let (synced, found) = tokio::join!(
            async { self.session.sync(&self.directory).await.map_err(fault::of) },
            queue::own(&self.session, &self.directory, &self.request)
        );
        synced?;
        let found = found?.map(|node| node.token);
        let found = found.filter(|found| token.is_none_or(|token| token == *found));
        if found.is_some() {
            self.goes_on(sent);
        }
        Ok(found)
    }

    /// Deletes whatever it has.
    pub(super) async fn sweep(&self) -> Result<(), Fault> {
        if self.session.state().is_terminated() {
            // Its nodes went with the session.
            return Ok(());
        }
        queue::sweep(&self.session, &self.directory, &self.request).await
    }

    /// Waits until it is over and deletes what it has; `false` if it was forgotten before.
    async fn outlast(&self) -> bool {
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
                    tracing::debug!(%fault, "a node whose lease is over is still there");
                    tokio::time::sleep(AGAIN).await;
                }
                Err(_) => return true,
            }
        }
    }
}

const AGAIN: std::time::Duration = std::time::Duration::from_millis(100);
