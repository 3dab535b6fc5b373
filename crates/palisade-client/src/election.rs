//! Elections: the holder of an exclusive lock is the leader, and its metadata is the value that it announces.
//!
//! ```text
//!   campaign  = acquire with metadata      proclaim = change the value      resign = release
//!   leader    = show                       observe  = watch, and show after each change
//! ```
//!
//! The words are etcd's (rule E1). A value does not prove that its leader still leads: a leader's writes need a fence
//! and its token.

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
    /// The leader's client id.
    pub client: ClientId,
    /// The token of its grant, which rises with each leader.
    pub token: Token,
    /// The value that it announces.
    pub value: Option<Box<str>>,
}

impl Leader {
    fn of(view: LockView) -> Option<Leader> {
        // A shared lock has no leader.
        let holder = view.holder.filter(|_| view.reader_count == 0)?;
        Some(Leader {
            client: holder.client,
            token: holder.token,
            value: view.metadata,
        })
    }
}

impl Client {
    /// Returns the leader of an election: the holder of the lock `name`, and its value. `None` if nobody leads.
    ///
    /// # Errors
    /// Faults only.
    pub async fn leader(&self, name: &str) -> Result<Option<Leader>, Error> {
        self.show(name).await.map(Leader::of)
    }

    /// Observes an election: first the present leader, then each change (rule E3).
    ///
    /// # Errors
    /// Faults only; [`Fault::Unsupported`](crate::Fault::Unsupported) from an authority without watches.
    pub async fn observe(&self, name: &str) -> Result<Observer, Error> {
        let lock = LockName::new(name)?;
        // Watch before the first look, so that no change falls between them.
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

    /// Changes the value of a leader without a guard in this process; see [`Lease::proclaim`].
    ///
    /// # Errors
    /// Faults only.
    pub async fn proclaim(&self, grant: &GrantRef, value: &str) -> Result<Proclamation, Error> {
        self.repeat(|| self.service().proclaim(grant.clone(), value))
            .await
    }
}

impl Lease {
    /// Changes the value that this leader announces, its metadata: at most 256 bytes; an empty value removes it. The
    /// token stays the same, and observers of the lock receive the change.
    ///
    /// Call it again only after it has returned. A call retries inside, so of two concurrent calls either value may
    /// remain.
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

/// The leaders of an election, in order. It may skip leaders that were soon replaced, never goes back, and always ends
/// with the latest. After a broken connection it reconnects.
pub struct Observer {
    core: Arc<Core>,
    lock: LockName,
    watch: Watch,
    /// The leader shown last includes all changes up to this revision.
    revision: u64,
    /// Whether a later change arrived.
    changed: bool,
    last: Option<Option<Leader>>,
}

impl Observer {
    /// Returns the leader: at once the first time, then whenever the leader or its value changes. `None` means that
    /// nobody leads. Dropping the future loses no change.
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
