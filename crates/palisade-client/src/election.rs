//! Elections: the holder of an exclusive lock is the leader, and its metadata is the value that it was elected with.
//!
//! ```text
//!   campaign  = acquire with metadata      proclaim = change the value      resign = release
//!   leader    = show                       observe  = watch, and show after each change
//! ```
//!
//! The words are etcd's (rule E1). A value is news about a leader, and no proof of one: what a leader writes goes through a
//! fence with its token.

use std::fmt;
use std::sync::Arc;

use palisade_core::{ClientId, GrantRef, LockName, LockView, Token};

use crate::client::Client;
use crate::error::Error;
use crate::lease::Lease;
use crate::retry::repeat_until;
use crate::schedule::NEVER;
use crate::service::{Notice, Proclamation};
use crate::state::Core;
use crate::watch::Watch;

/// The leader of an election, as of one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Leader {
    /// Who it is.
    pub client: ClientId,
    /// The token of its grant, which rises with each leader.
    pub token: Token,
    /// What it says about itself.
    pub value: Option<Box<str>>,
}

impl Leader {
    fn of(view: LockView) -> Option<Leader> {
        // The oldest of several holders leads nobody.
        let holder = view.holder.filter(|_| view.reader_count == 0)?;
        Some(Leader {
            client: holder.client,
            token: holder.token,
            value: view.metadata,
        })
    }
}

impl Client {
    /// Returns the leader of an election: who holds the lock called `name`, and what it says about itself.
    ///
    /// # Errors
    /// Faults only.
    pub async fn leader(&self, name: &str) -> Result<Option<Leader>, Error> {
        self.show(name).await.map(Leader::of)
    }

    /// Observes an election: the present leader first, and then each change (rule E3).
    ///
    /// # Errors
    /// Faults only; [`Fault::Unsupported`](crate::Fault::Unsupported) from an authority that announces no changes.
    pub async fn observe(&self, name: &str) -> Result<Observer, Error> {
        let lock = LockName::new(name)?;
        // From here on no change is missed, so what is shown after this is not older than the first change.
        let watch = self.watch(&lock).await?;
        Ok(Observer {
            core: Arc::clone(self.core()),
            lock,
            watch,
            revision: 0,
            changed: true,
            last: None,
        })
    }

    /// Changes what a holder without a guard in this process says about itself; see [`Lease::proclaim`].
    ///
    /// # Errors
    /// Faults only.
    pub async fn proclaim(&self, grant: &GrantRef, value: &str) -> Result<Proclamation, Error> {
        self.repeat(|| self.service().proclaim(grant.clone(), value))
            .await
    }
}

impl Lease {
    /// Changes what this holder says about itself, its metadata: at most 256 bytes. The token stays the same, and whoever
    /// observes the lock is told. An empty value takes back what was said.
    ///
    /// Call it again only after it has returned. It may be repeated inside, so of two calls at once either value may be
    /// the one that stays.
    ///
    /// # Errors
    /// Faults only; [`Fault::Invalid`](crate::Fault::Invalid) for a reader or a holder of permits.
    pub async fn proclaim(&self, value: &str) -> Result<Proclamation, Error> {
        let core = self.core();
        let until = core.clock.now().after(core.patience);
        let said = repeat_until(core, until, || {
            core.service.proclaim(self.grant().clone(), value)
        });
        said.await.map_err(Error::from)
    }
}

/// The leaders of an election, one after the other. It may skip some that were soon followed by others, never goes back,
/// and always gives the last one; a broken connection is reopened.
pub struct Observer {
    core: Arc<Core>,
    lock: LockName,
    watch: Watch,
    /// Changes up to this revision are part of what was shown.
    revision: u64,
    /// Whether there was a later one.
    changed: bool,
    last: Option<Option<Leader>>,
}

impl Observer {
    /// Returns the leader: at once the first time, and then whenever it is another one or says something else. `None`:
    /// nobody leads. It waits as long as nothing changes; dropping the future loses no change.
    ///
    /// # Errors
    /// Only faults that no reconnect cures.
    pub async fn next(&mut self) -> Result<Option<Leader>, Error> {
        loop {
            if self.changed {
                let (core, lock) = (&self.core, &self.lock);
                let view = repeat_until(core, NEVER, || core.service.show(lock.clone())).await?;
                let revision = view.revision.unwrap_or(self.revision);
                self.changed = false;
                let is_older = revision < self.revision;
                self.revision = self.revision.max(revision);
                let leader = Leader::of(view);
                if !is_older && self.last.as_ref() != Some(&leader) {
                    self.last = Some(leader.clone());
                    return Ok(leader);
                }
            }
            let notice = self.watch.next().await?;
            let concerns = match &notice {
                Notice::Change(event) => event.lock == self.lock,
                Notice::Missed { .. } => true,
            };
            self.changed = concerns && notice.revision() > self.revision;
        }
    }
}

impl fmt::Debug for Observer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Observer")
            .field("lock", &self.lock)
            .finish_non_exhaustive()
    }
}
