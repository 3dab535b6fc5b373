//! The client: where locks are asked for.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use palisade_core::holder::Caution;
use palisade_core::{AuthorityId, GrantRef, LockName, LockView, Span, Token, Ttl};

use crate::acquire::LockRequest;
use crate::clock::{BootClock, Clock};
use crate::errand::insist;
use crate::error::Error;
use crate::fault::Fault;
use crate::identity::Identity;
use crate::keeper::Keeper;
use crate::listing::Listing;
use crate::service::{LockService, Operation, Released, Renewal, Revocation, Status};
use crate::watch::Watch;

/// Asks one authority for locks. Cloning is cheap, and the clones are one client.
///
/// One background task renews all leases of a client. It starts with the first request, on the
/// Tokio runtime (with I/O and time enabled) that request runs on, and lives as long as the client
/// or any of its leases does.
#[derive(Clone, Debug)]
pub struct Client {
    inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) keeper: Arc<Keeper>,
    pub(crate) identity: Identity,
}

/// How a client behaves; plain values.
#[derive(Clone, Debug)]
pub struct Options {
    /// Connections to the server, over which requests are spread; where there are connections.
    /// One serves hundreds of thousands of operations a second.
    pub connections: usize,
    /// How much holders distrust clocks and themselves.
    pub caution: Caution,
    /// How long an operation is repeated while the authority does not answer (a waiting request: on
    /// top of its wait).
    pub patience: Duration,
}

impl Default for Options {
    fn default() -> Options {
        Options {
            connections: 1,
            caution: Caution::DEFAULT,
            patience: Duration::from_secs(5),
        }
    }
}

impl Client {
    /// A client of any authority.
    ///
    /// # Errors
    /// [`Fault::Unavailable`] if the system has no random bytes.
    pub fn new(service: Arc<dyn LockService>) -> Result<Client, Error> {
        Client::with(service, Arc::new(BootClock), &Options::default())
    }

    /// A client of any authority, with its own clock and settings.
    ///
    /// # Errors
    /// As [`Client::new`].
    pub fn with(
        service: Arc<dyn LockService>,
        clock: Arc<dyn Clock>,
        options: &Options,
    ) -> Result<Client, Error> {
        let keeper = Keeper::new(
            service,
            clock,
            options.caution,
            Span::from(options.patience),
        );
        let inner = Inner {
            keeper: Arc::new(keeper),
            identity: Identity::new()?,
        };
        Ok(Client {
            inner: Arc::new(inner),
        })
    }

    /// Connects to the authority at `url`: `palisade://host[:port]` or `http://host:port` for a
    /// Palisade server (port 7420 unless given after `palisade://`), or another system: see
    /// [`connect`](crate::connect()).
    ///
    /// # Errors
    /// [`Fault::Invalid`] for an address that cannot be meant, [`Fault::Unavailable`] if nothing
    /// answers there.
    pub async fn connect(url: &str) -> Result<Client, Error> {
        Client::connect_with(url, Options::default()).await
    }

    /// Connects to the authority at `url` with settings of the caller's choice.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub async fn connect_with(url: &str, options: Options) -> Result<Client, Error> {
        let service = crate::connect(url, &options).await?;
        Client::with(service, Arc::new(BootClock), &options)
    }

    /// A client of an authority of its own, inside this process and in memory only: for tests and for
    /// tasks of one process. Clones share it; a second call makes a second authority.
    ///
    /// # Errors
    /// [`Fault::Unavailable`] if its thread could not be started.
    #[cfg(feature = "in-process")]
    pub fn in_process() -> Result<Client, Error> {
        Client::new(Arc::new(crate::in_process::InProcess::start()?))
    }

    /// Which authority grants here. A fence is bound to it.
    #[must_use]
    pub fn authority(&self) -> &AuthorityId {
        self.service().authority()
    }

    /// Begins a wish for the lock called `name`: 1 – 255 bytes of printable ASCII.
    pub fn lock(&self, name: &str) -> LockRequest {
        LockRequest::new(Arc::clone(&self.inner), name)
    }

    /// Who holds a lock, and how many wait.
    ///
    /// # Errors
    /// Faults only.
    pub async fn show(&self, lock: &str) -> Result<LockView, Error> {
        let lock = LockName::new(lock)?;
        self.insist(|| self.service().show(lock.clone())).await
    }

    /// The locks that are held and whose names start with `prefix`, page by page.
    #[must_use]
    pub fn list(&self, prefix: &str) -> Listing {
        Listing::new(Arc::clone(self.inner.keeper.core()), prefix)
    }

    /// Changes of the locks whose names start with `prefix`, from now on.
    ///
    /// # Errors
    /// Faults only.
    pub async fn watch(&self, prefix: &str) -> Result<Watch, Error> {
        Watch::open(Arc::clone(self.inner.keeper.core()), prefix, None).await
    }

    /// Changes after the one with this revision, as far back as the authority still has them.
    ///
    /// # Errors
    /// Faults only.
    pub async fn watch_after(&self, prefix: &str, revision: u64) -> Result<Watch, Error> {
        Watch::open(Arc::clone(self.inner.keeper.core()), prefix, Some(revision)).await
    }

    /// Takes a lock from its holder. `token` is the one it must be held with: proof that the
    /// operator looked. The holder may still believe that it holds; its fence will refuse it once
    /// the next holder has claimed.
    ///
    /// # Errors
    /// Faults only.
    pub async fn revoke(
        &self,
        lock: &str,
        token: Token,
        reason: &str,
    ) -> Result<Revocation, Error> {
        let lock = LockName::new(lock)?;
        self.insist(|| self.service().revoke(lock.clone(), token, reason))
            .await
    }

    /// Renews a grant that has no guard here (another process holds it, see
    /// [`Lease::detach`](crate::Lease::detach)).
    ///
    /// # Errors
    /// Faults only.
    pub async fn renew(&self, grant: &GrantRef, ttl: Option<Ttl>) -> Result<Renewal, Error> {
        self.insist(|| self.service().renew(grant.clone(), ttl))
            .await
    }

    /// Releases a grant that has no guard here.
    ///
    /// # Errors
    /// Faults only.
    pub async fn release(&self, grant: &GrantRef) -> Result<Released, Error> {
        self.insist(|| self.service().release(grant.clone())).await
    }

    /// What the authority says about itself.
    ///
    /// # Errors
    /// Faults only.
    pub async fn status(&self) -> Result<Status, Error> {
        self.insist(|| self.service().status()).await
    }

    /// The authority itself, for what has no method here.
    #[must_use]
    pub fn service(&self) -> &Arc<dyn LockService> {
        &self.inner.keeper.core().service
    }

    async fn insist<'a, T>(
        &'a self,
        attempt: impl FnMut() -> Operation<'a, T>,
    ) -> Result<T, Error> {
        let core = self.inner.keeper.core();
        let until = core.clock.now().after(core.patience);
        insist(core, until, attempt).await.map_err(Fault::into)
    }
}

impl fmt::Debug for Inner {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let authority = self.keeper.core().service.authority();
        f.debug_struct("Client")
            .field("authority", authority)
            .finish_non_exhaustive()
    }
}
