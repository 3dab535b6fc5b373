//! The client.

use std::sync::Arc;
use std::time::Duration;

use palisade_core::{AuthorityId, GrantRef, LockName, LockView, Token, Ttl};

use crate::acquire::LockRequest;
use crate::clock::{BootClock, Clock};
use crate::error::Error;
use crate::fault::Fault;
use crate::identity::ClientIds;
use crate::inner::Inner;
use crate::keeper::Keeper;
use crate::kind::{Exclusive, Semaphore, Set, Shared};
use crate::lease::Lease;
use crate::listing::Listing;
use crate::options::Options;
use crate::retry::repeat_until;
use crate::schedule::Upgrading;
use crate::service::{
    LockService, Operation, Released, Renewal, Reopened, Resized, Revocation, SequencerAnswer,
    Status,
};
use crate::state::Core;
use crate::watch::Watch;

/// Requests locks from one authority. Cloning is cheap, and all clones are the same client.
///
/// One background task renews all leases of a client. It starts with the first request, on that request's Tokio
/// runtime, which needs I/O and time enabled, and runs as long as the client or any of its leases exists. If that
/// runtime ends first, the next request starts the task on its own runtime, provided that the authority is a Palisade
/// server or in process. With other authorities, every later request fails.
#[derive(Clone, Debug)]
pub struct Client {
    inner: Arc<Inner>,
}

impl Client {
    /// Creates a client for any authority.
    ///
    /// # Errors
    /// [`Fault::Unavailable`] if the system has no random bytes.
    pub fn new(service: Arc<dyn LockService>) -> Result<Client, Error> {
        Client::with(service, Arc::new(BootClock), &Options::default())
    }

    /// Creates a client of any authority with the given clock and settings.
    ///
    /// # Errors
    /// As [`Client::new`].
    pub fn with(
        service: Arc<dyn LockService>,
        clock: Arc<dyn Clock>,
        options: &Options,
    ) -> Result<Client, Error> {
        let keeper = Keeper::new(service, clock, options);
        let inner = Inner {
            keeper: Arc::new(keeper),
            identity: ClientIds::new()?,
        };
        Ok(Client {
            inner: Arc::new(inner),
        })
    }

    /// Connects to the Palisade server at `url`: `palisade://host[:port]` (7420 by default), `http://host:port`,
    /// `https://host:port` or `unix:///path`, or several of these with commas between them for a cluster; see
    /// [`connect`](crate::connect()). `palisade_authorities::client` also connects to other systems.
    ///
    /// # Errors
    /// [`Fault::Invalid`] for an invalid address, [`Fault::Unreachable`] if nothing answers there.
    pub async fn connect(url: &str) -> Result<Client, Error> {
        Client::connect_with(url, Options::default()).await
    }

    /// Connects to the Palisade server at `url` with the given settings.
    ///
    /// # Errors
    /// As [`Client::connect`].
    pub async fn connect_with(url: &str, options: Options) -> Result<Client, Error> {
        let service = crate::connect(url, &options).await?;
        Client::with(service, Arc::new(BootClock), &options)
    }

    /// Creates a client with its own authority, in this process's memory: for tests, and for tasks of one process that
    /// must exclude each other. Clones share the authority; a second call creates a second authority.
    ///
    /// # Errors
    /// [`Fault::Unavailable`] if the authority's thread could not be started.
    #[cfg(feature = "in-process")]
    pub fn in_process() -> Result<Client, Error> {
        Client::new(Arc::new(crate::in_process::InProcess::start()?))
    }

    /// Returns the id of the authority that grants the locks. A fence accepts the tokens of one authority only.
    #[must_use]
    pub fn authority(&self) -> &AuthorityId {
        self.service().authority()
    }

    /// Starts a request to hold the lock `name` exclusively. A name is 1 – 255 bytes of printable ASCII.
    pub fn lock(&self, name: &str) -> LockRequest {
        LockRequest::new(&self.inner, LockName::new(name), Exclusive::default())
    }

    /// Starts a request to hold the lock `name` as a reader. Readers hold it together and exclude writers. A reader
    /// waits behind a writer that asked before it. [`Client::downgrade`] turns a writer into a reader; only a reader
    /// that asked [`for_update`](LockRequest::for_update) can become the writer.
    ///
    /// Readers that overlap, with no writer between them, share one fencing token, so a fence never refuses one reader
    /// because of another. A resource must not accept writes from readers.
    pub fn lock_shared(&self, name: &str) -> LockRequest<Shared> {
        LockRequest::new(&self.inner, LockName::new(name), Shared::default())
    }

    /// Starts a request for a permit of the semaphore `name`, which has `of` permits: 1 – 64. While the semaphore is in
    /// use, a request with another number is an error that names both.
    ///
    /// ```no_run
    /// # async fn call(client: palisade_client::Client) -> Result<(), palisade_client::Error> {
    /// let lease = client.semaphore("gpu", 5).permits(2).acquire().await?;
    /// for key in lease.slot_keys() {
    ///     // Claim each at the fence, with `lease.token()`.
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn semaphore(&self, name: &str, of: u32) -> LockRequest<Semaphore> {
        let kind = Semaphore { permits: 1, of };
        LockRequest::new(&self.inner, LockName::new(name), kind)
    }

    /// Starts a request for 1 – 64 distinct locks at once: all or none, in one step, under one lease and one fencing
    /// token. A waiting request holds nothing, so two such requests never deadlock.
    ///
    /// The grant is one guard for each lock, sorted by name. Each can be released early. Claim all resources before the
    /// first read.
    pub fn locks(&self, names: impl IntoIterator<Item = impl AsRef<str>>) -> LockRequest<Set> {
        let names = names.into_iter().map(|name| LockName::new(name.as_ref()));
        LockRequest::of_set(&self.inner, names.collect())
    }

    /// Turns a writer into a reader in one step, with a new token: no other writer gets the lock in between, and the
    /// readers next in the queue are granted with it. Once a reader has claimed, the fence refuses delayed writes of
    /// the former writer.
    ///
    /// The lease stays the same. A lease that is shared already is returned unchanged. The writer's guard ends first:
    /// if the downgrade fails, the lock is released.
    ///
    /// # Errors
    /// As [`LockRequest::acquire`]; [`Fault::Unsupported`](crate::Fault) from an authority without shared locks.
    pub async fn downgrade(&self, writer: Lease) -> Result<Lease, Error> {
        if writer.mode().is_shared() {
            return Ok(writer);
        }
        let request = self.lock_shared(writer.lock()).under(&writer);
        writer.no_longer_holds();
        request.wait(Duration::ZERO).acquire().await
    }

    /// Turns the reader in mode update ([`LockRequest::for_update`]) into the writer in one step, with a new token. The
    /// request goes ahead of the queue and waits up to `wait` for the other readers; new readers wait behind it. The
    /// lease stays the same. When the upgrade succeeds, the returned guard replaces the reader's.
    ///
    /// Dropping the future gives the upgrade up, and the reader keeps its grant. If the upgrade was already granted,
    /// the reader's guard is lost and the lock is released.
    ///
    /// # Errors
    /// As [`LockRequest::acquire`]. [`Error::Held`] names a reader that blocked the upgrade; this reader's guard still
    /// holds. [`Error::Lost`] if this reader's guard was lost meanwhile; a grant that came later is released.
    /// [`Fault::Invalid`](crate::Fault) for a lease in another mode. After a fault with an unknown outcome, the upgrade
    /// is given up in the background, as if the future had been dropped.
    pub async fn upgrade(&self, reader: &Lease, wait: Duration) -> Result<Lease, Error> {
        // Until the reader's guard has ended: the authority may tell of its end before it answers.
        let _under_way = Upgrading::new(reader.kept());
        let request = LockRequest::upgrade(&self.inner, reader);
        let writer = request.wait(wait).acquire().await;
        reader.check()?;
        let writer = writer?;
        reader.no_longer_holds();
        Ok(writer)
    }

    /// Returns the holder of a lock and the number of waiters.
    ///
    /// # Errors
    /// Faults only.
    pub async fn show(&self, lock: &str) -> Result<LockView, Error> {
        let lock = LockName::new(lock)?;
        self.repeat(|| self.service().show(lock.clone())).await
    }

    /// Lists the held locks whose names start with `prefix`, page by page.
    #[must_use]
    pub fn list(&self, prefix: &str) -> Listing {
        Listing::new(Arc::clone(self.core()), prefix)
    }

    /// Watches the locks whose names start with `prefix` for changes from now on.
    ///
    /// # Errors
    /// Faults only.
    pub async fn watch(&self, prefix: &str) -> Result<Watch, Error> {
        Watch::open(Arc::clone(self.core()), prefix, None).await
    }

    /// Watches for changes after `revision`, as far back as the authority still stores them.
    ///
    /// # Errors
    /// Faults only.
    pub async fn watch_after(&self, prefix: &str, revision: u64) -> Result<Watch, Error> {
        Watch::open(Arc::clone(self.core()), prefix, Some(revision)).await
    }

    /// Takes a lock from its holder, as an operator. `token` must be the token of the current grant, so that a later
    /// grant is not revoked by mistake. The holder may still believe that it holds the lock; once the next holder has
    /// claimed, the fence refuses its writes.
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
        self.repeat(|| self.service().revoke(lock.clone(), token, reason))
            .await
    }

    /// Opens a lock that a lock-delay or an at-least-for keeps closed after its last grant. It does not stop any work
    /// of the former holder.
    ///
    /// # Errors
    /// Faults only.
    pub async fn reopen(&self, lock: &str, reason: &str) -> Result<Reopened, Error> {
        let lock = LockName::new(lock)?;
        self.repeat(|| self.service().reopen(lock.clone(), reason))
            .await
    }

    /// Sets a semaphore's number of permits: 1 – 64. When the number falls, holders keep their slots, and the new
    /// number takes effect as slots come free. A waiting request for more permits than remain is refused.
    ///
    /// # Errors
    /// Faults only; [`Fault::Invalid`] if the lock is in use without permits.
    pub async fn resize(&self, lock: &str, permits: u32) -> Result<Resized, Error> {
        let lock = LockName::new(lock)?;
        self.repeat(|| self.service().resize(lock.clone(), permits))
            .await
    }

    /// Renews a grant that has no guard in this process; see [`Lease::detach`](crate::Lease::detach).
    ///
    /// # Errors
    /// Faults only.
    pub async fn renew(&self, grant: &GrantRef, ttl: Option<Ttl>) -> Result<Renewal, Error> {
        self.repeat(|| self.service().renew(grant.clone(), ttl))
            .await
    }

    /// Requests a sequencer for a grant that has no guard in this process; see
    /// [`Lease::sequencer`](crate::Lease::sequencer).
    ///
    /// # Errors
    /// Faults only.
    pub async fn sequencer(&self, grant: &GrantRef) -> Result<SequencerAnswer, Error> {
        self.repeat(|| self.service().sequencer(grant.clone()))
            .await
    }

    /// Releases a grant that has no guard in this process.
    ///
    /// # Errors
    /// Faults only.
    pub async fn release(&self, grant: &GrantRef) -> Result<Released, Error> {
        self.repeat(|| self.service().release(grant.clone())).await
    }

    /// Returns the status that the authority reports.
    ///
    /// # Errors
    /// Faults only.
    pub async fn status(&self) -> Result<Status, Error> {
        self.repeat(|| self.service().status()).await
    }

    /// Returns how many reports of refused late writes did not reach the authority: they were too many, or it was not there,
    /// or it takes none. See [`Lease::pass`](crate::Lease::pass).
    #[must_use]
    pub fn reports_dropped(&self) -> u64 {
        self.core().reports.dropped()
    }

    /// Waits until the reports of refused late writes were sent, at most for a quarter of a second. A program that ends after
    /// a refusal calls this last; otherwise the end of its runtime drops what is queued.
    pub async fn reports_sent(&self) {
        self.core().reports.sent(self.core()).await;
    }

    /// Returns the underlying authority, for operations without a method here.
    #[must_use]
    pub fn service(&self) -> &Arc<dyn LockService> {
        &self.core().service
    }

    pub(crate) fn keeper(&self) -> &Arc<Keeper> {
        &self.inner.keeper
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        self.keeper().core()
    }

    pub(crate) async fn repeat<'a, T>(
        &'a self,
        attempt: impl FnMut() -> Operation<'a, T>,
    ) -> Result<T, Error> {
        let core = self.core();
        let until = core.clock.now().after(core.patience);
        repeat_until(core, until, attempt)
            .await
            .map_err(Fault::into)
    }
}
