//! The client, which makes requests for locks.

use std::sync::Arc;
use std::time::Duration;

use palisade_core::{AuthorityId, Ending, GrantRef, LockName, LockView, Span, Token, Ttl};

use crate::acquire::LockRequest;
use crate::clock::{BootClock, Clock};
use crate::error::{Error, Loss};
use crate::fault::Fault;
use crate::identity::Identity;
use crate::inner::Inner;
use crate::keeper::Keeper;
use crate::kind::{Exclusive, Semaphore, Set, Shared};
use crate::lease::Lease;
use crate::listing::Listing;
use crate::options::Options;
use crate::retry::repeat_until;
use crate::service::{
    LockService, Operation, Released, Renewal, Reopened, Resized, Revocation, Sequencer, Status,
};
use crate::state::Core;
use crate::watch::Watch;

/// Requests locks from one authority. Cloning is cheap, and all clones are the same client.
///
/// One background task renews all leases of a client. It starts with the first request, on that request's
/// Tokio runtime (with I/O and time enabled), and runs as long as the client or any of its leases exists. If that
/// runtime ends before, a client of a Palisade server or in process goes on with the next request, on that one's runtime;
/// other authorities refuse requests from then on.
#[derive(Clone, Debug)]
pub struct Client {
    inner: Arc<Inner>,
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

    /// Connects to the Palisade server at `url`: `palisade://host[:port]` (7420 by default), `http://host:port`,
    /// `https://host:port` or `unix:///path`, or several of these with commas between them for a cluster; see
    /// [`connect`](crate::connect()). `palisade_authorities::client` takes the URLs of other systems, too.
    ///
    /// # Errors
    /// [`Fault::Invalid`] for an address that is not valid, [`Fault::Unreachable`] if nothing
    /// answers there.
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

    /// Creates a client with its own authority, inside this process and in memory only: for tests and for
    /// tasks of one process. Clones share the authority; a second call creates a second authority.
    ///
    /// # Errors
    /// [`Fault::Unavailable`] if the authority's thread could not be started.
    #[cfg(feature = "in-process")]
    pub fn in_process() -> Result<Client, Error> {
        Client::new(Arc::new(crate::in_process::InProcess::start()?))
    }

    /// The id of the authority that grants the locks. A fence is bound to it.
    #[must_use]
    pub fn authority(&self) -> &AuthorityId {
        self.service().authority()
    }

    /// Begins a request for the lock called `name`, to hold it alone: 1 – 255 bytes of printable ASCII.
    pub fn lock(&self, name: &str) -> LockRequest {
        LockRequest::new(&self.inner, LockName::new(name), Exclusive::default())
    }

    /// Begins a request for the lock called `name` as a reader: readers hold it together, and only writers are kept out.
    /// A reader waits behind a writer that asked before it. A lease that holds the lock as a writer becomes a reader by
    /// [`Client::downgrade`]; a reader cannot become a writer, but for the one that asked
    /// [`for_update`](LockRequest::for_update).
    ///
    /// The readers of one phase have one fencing token, so a fence refuses none of them because of another, and
    /// admits what is older or newer as always. A resource must not take writes from readers.
    pub fn lock_shared(&self, name: &str) -> LockRequest<Shared> {
        LockRequest::new(&self.inner, LockName::new(name), Shared::default())
    }

    /// Begins a request for a permit of the semaphore called `name`, which has `of` of them: 1 – 64. The number is in
    /// force while the semaphore is in use, and a request with another one is refused, naming both.
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

    /// Begins a request for 1 – 64 locks at once, each name once, in any order: all or none, in one step, under one lease
    /// and one fencing token. Nothing is held while it waits, so two such requests never wait for each other.
    ///
    /// It is granted as a guard for each lock, in the order of their names. Each may be released early. Claim all
    /// resources before the first read.
    pub fn locks(&self, names: impl IntoIterator<Item = impl AsRef<str>>) -> LockRequest<Set> {
        let names = names.into_iter().map(|name| LockName::new(name.as_ref()));
        LockRequest::of_set(&self.inner, names.collect())
    }

    /// Makes a writer a reader, in one step and with a new number: no other writer gets the lock in between, and readers
    /// that wait right behind it come in. The writer's own delayed writes are fenced once a reader has claimed.
    ///
    /// The lease stays the same, and a reader's guard is returned as it is. The writer's guard is given up first: should this fail, the lock is released.
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

    /// Makes the reader in mode update ([`LockRequest::for_update`]) the writer, in one step and with a new number. The
    /// request goes ahead of the queue and waits for the other readers alone, up to `wait`; new readers wait behind it. The
    /// lease stays the same. The reader's guard ends with the upgrade, and the writer's takes its place.
    ///
    /// Dropping the future gives the upgrade up: the reader keeps its grant. If the upgrade was granted by then, the reader's
    /// guard is lost, and then the lock is released.
    ///
    /// # Errors
    /// As [`LockRequest::acquire`]: after [`Error::Held`], which names a reader that was in the way, the reader's guard holds
    /// as before. [`Error::Lost`] if the reader's guard was lost meanwhile; a grant that came later is given back.
    /// [`Fault::Invalid`](crate::Fault) for a lease in another mode. After a fault whose outcome is unknown the upgrade is
    /// given up in the background, as if the future had been dropped.
    pub async fn upgrade(&self, reader: &Lease, wait: Duration) -> Result<Lease, Error> {
        let request = LockRequest::upgrade(&self.inner, reader);
        let writer = request.wait(wait).acquire().await;
        if let Err(lost) = reader.check() {
            // The upgrade itself supersedes the reader's grant, and a renewal may have been told so first.
            let by_itself = writer.is_ok() && lost.why == Loss::Ended(Ending::Superseded);
            if !by_itself {
                return Err(lost.into());
            }
        }
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

    /// The locks that are held and whose names start with `prefix`, page by page.
    #[must_use]
    pub fn list(&self, prefix: &str) -> Listing {
        Listing::new(Arc::clone(self.core()), prefix)
    }

    /// Watches changes of the locks whose names start with `prefix`, from now on.
    ///
    /// # Errors
    /// Faults only.
    pub async fn watch(&self, prefix: &str) -> Result<Watch, Error> {
        Watch::open(Arc::clone(self.core()), prefix, None).await
    }

    /// Watches changes after the one with this revision, as far back as the authority still has them.
    ///
    /// # Errors
    /// Faults only.
    pub async fn watch_after(&self, prefix: &str, revision: u64) -> Result<Watch, Error> {
        Watch::open(Arc::clone(self.core()), prefix, Some(revision)).await
    }

    /// Takes a lock from its holder. `token` must be the token of the current grant; it proves that the
    /// operator has looked. The holder may still believe that it holds the lock; the fence refuses its writes
    /// once the next holder has claimed.
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

    /// Opens a lock that is closed after its last grant, by a lock-delay or an at-least-for. What the former holder may still
    /// be doing goes on.
    ///
    /// # Errors
    /// Faults only.
    pub async fn reopen(&self, lock: &str, reason: &str) -> Result<Reopened, Error> {
        let lock = LockName::new(lock)?;
        self.repeat(|| self.service().reopen(lock.clone(), reason))
            .await
    }

    /// Gives a semaphore another number of permits: 1 – 64. When the number falls, holders keep their slots, and the new
    /// number takes effect as slots come free; a waiting request for more than there are is refused.
    ///
    /// # Errors
    /// Faults only; [`Fault::Invalid`] if the lock is in use without permits.
    pub async fn resize(&self, lock: &str, permits: u32) -> Result<Resized, Error> {
        let lock = LockName::new(lock)?;
        self.repeat(|| self.service().resize(lock.clone(), permits))
            .await
    }

    /// Renews a grant that has no guard in this process (another process holds it, see
    /// [`Lease::detach`](crate::Lease::detach)).
    ///
    /// # Errors
    /// Faults only.
    pub async fn renew(&self, grant: &GrantRef, ttl: Option<Ttl>) -> Result<Renewal, Error> {
        self.repeat(|| self.service().renew(grant.clone(), ttl))
            .await
    }

    /// Signs what a holder without a guard in this process holds; see [`Lease::sequencer`](crate::Lease::sequencer).
    ///
    /// # Errors
    /// Faults only.
    pub async fn sequencer(&self, grant: &GrantRef) -> Result<Sequencer, Error> {
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

    /// The underlying authority, for operations that have no method here.
    #[must_use]
    pub fn service(&self) -> &Arc<dyn LockService> {
        &self.core().service
    }

    pub(crate) fn core(&self) -> &Arc<Core> {
        self.inner.keeper.core()
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
