//! Requests for a lock. However a request is given up, it leaves no lock behind.

use std::sync::Arc;
use std::time::Duration;

use palisade_core::{
    Ahead, ClientId, Delayed, Delays, Ending, Holder, Invalid, LeaseKey, LockMode, LockName,
    Others, Permits, RequestId, Span, Timestamp, Ttl, limits,
};

use crate::error::{Error, Loss, Lost};
use crate::fault::Fault;
use crate::inner::Inner;
use crate::lease::Lease;
use crate::pending::Pending;
use crate::random;
use crate::schedule::{Kept, KeptLease};
use crate::service::{AcquireRequest, Acquired, Under};

/// The default time to live of a lease: long enough to survive a restart of the server, short enough to wait
/// for after a holder has died.
pub const DEFAULT_TTL: Duration = Duration::from_secs(15);

/// The default time that a request waits in the queue, the same as for `palisade run`. A caller of `acquire`
/// expects to wait, as with any mutex; [`LockRequest::try_acquire`] does not wait. There is no unbounded
/// wait.
pub const DEFAULT_WAIT: Duration = Duration::from_secs(30);

/// A request for a lock, made by [`Client::lock`](crate::Client::lock).
///
/// Values out of range are refused when the request is sent, and the error states the range. Nothing is
/// clamped.
#[derive(Clone, Debug)]
#[must_use = "nothing is sent before `acquire`, `try_acquire` or `attempt`"]
pub struct LockRequest {
    inner: Arc<Inner>,
    lock: String,
    ttl: Duration,
    wait: Duration,
    client: Option<String>,
    metadata: Option<String>,
    under: Option<Parent>,
    /// Of an upgrade.
    reader: Option<Arc<Kept>>,
    mode: Mode,
    lock_delay: Duration,
    at_least_for: Duration,
    /// The other locks of a set.
    also: Vec<String>,
}

/// What kind of grant is asked for; permits are checked when the request is sent.
#[derive(Clone, Copy, Debug)]
enum Mode {
    Plain(LockMode),
    Permits { wanted: u32, of: u32 },
}

/// The lease that a grant is put under.
#[derive(Clone, Debug)]
struct Parent {
    key: LeaseKey,
    client: ClientId,
    /// The lease that is renewed for it, unless another client does that.
    kept: Option<Arc<KeptLease>>,
    /// Set if the parent was already lost when the caller named it.
    lost: Option<Lost>,
}

/// The outcomes of a request for a lock.
#[derive(Debug)]
#[non_exhaustive]
#[must_use = "dropping a granted lease releases the lock"]
pub enum Attempt<L = Lease> {
    /// The lock is held.
    Granted(L),
    /// Another client has it; `remaining` says when trying again makes sense.
    Held(Holder),
    /// Another request waits for it and comes first; `remaining` says when trying again makes sense.
    Behind(Ahead),
    /// Nobody has it, and nobody is granted it for `remaining` after its last grant.
    Delayed(Delayed),
    /// Too many requests are waiting; the text names the bound.
    QueueFull(Box<str>),
    /// The authority holds as many locks as it allows; the text names the bound.
    TooManyLocks(Box<str>),
    /// The authority has issued its last token.
    TokensExhausted,
}

impl LockRequest {
    pub(crate) fn new(inner: Arc<Inner>, lock: &str) -> LockRequest {
        LockRequest {
            inner,
            lock: lock.to_owned(),
            ttl: DEFAULT_TTL,
            wait: DEFAULT_WAIT,
            client: None,
            metadata: None,
            under: None,
            reader: None,
            mode: Mode::Plain(LockMode::Exclusive),
            lock_delay: Duration::ZERO,
            at_least_for: Duration::ZERO,
            also: Vec::new(),
        }
    }

    /// Sets how long the lease lasts without renewal: 100 ms – 24 h in whole milliseconds, [`DEFAULT_TTL`] by
    /// default. It bounds how long others wait after this process has died.
    pub fn ttl(mut self, ttl: Duration) -> LockRequest {
        self.ttl = ttl;
        self
    }

    /// Sets how long to wait in the lock's queue: up to 24 h, [`DEFAULT_WAIT`] by default, zero to try once.
    pub fn wait(mut self, wait: Duration) -> LockRequest {
        self.wait = wait;
        self
    }

    /// Sets the client id: 1 – 255 bytes of printable ASCII. A lock held by a client id is granted again to
    /// the same client id, with a higher token, and the former grant ends. So a restarted process gets its
    /// own lock back at once. Without a client id every request counts as a separate client.
    pub fn client_id(mut self, client: impl Into<String>) -> LockRequest {
        self.client = Some(client.into());
        self
    }

    /// Sets the text shown with the holder, at most 256 bytes.
    pub fn metadata(mut self, metadata: impl Into<String>) -> LockRequest {
        self.metadata = Some(metadata.into());
        self
    }

    /// Asks for the lock as a reader: readers hold it together, and only writers are kept out. A reader waits behind a
    /// writer that asked before it. A lease that holds the lock as a writer becomes a reader by this
    /// ([`Client::downgrade`](crate::Client::downgrade)); a reader cannot become a writer, but for the one that asked
    /// [`for_update`](LockRequest::for_update).
    ///
    /// The readers of one phase have one fencing token, so a fence refuses none of them because of another, and
    /// admits what is older or newer as always. A resource must not take writes from readers.
    pub fn shared(mut self) -> LockRequest {
        self.mode = Mode::Plain(LockMode::Shared);
        self
    }

    /// Asks for the lock in mode update: as a reader that may become the writer ([`Client::upgrade`](crate::Client::upgrade)).
    /// It reads together with other readers, and at most one at a time has this mode.
    pub fn for_update(mut self) -> LockRequest {
        self.mode = Mode::Plain(LockMode::Update);
        self
    }

    /// Asks for the upgrade of a grant in mode update.
    pub(crate) fn upgrade(mut self, reader: &Lease) -> LockRequest {
        self.mode = Mode::Plain(LockMode::Upgrade);
        self.reader = Some(Arc::clone(reader.kept()));
        self.under(reader)
    }

    /// Asks for `wanted` permits of a semaphore, all or none; [`PermitsRequest::of`] says how many it has.
    ///
    /// ```no_run
    /// # async fn call(client: palisade_client::Client) -> Result<(), palisade_client::Error> {
    /// let lease = client.lock("gpu").permits(2).of(5).acquire().await?;
    /// for key in lease.slot_keys() {
    ///     // Claim each at the fence, with `lease.token()`.
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn permits(self, wanted: u32) -> PermitsRequest {
        PermitsRequest {
            request: self,
            wanted,
        }
    }

    /// Keeps the lock closed for this long, 0 – 60 s in whole milliseconds, after the grant expired or an operator took
    /// it; not after a release. Meanwhile nobody is granted it, and who waits keeps the place. It is for resources
    /// that cannot be fenced: it gives what a holder has sent some time to arrive, and proves nothing. Only for an
    /// exclusive grant.
    pub fn lock_delay(mut self, delay: Duration) -> LockRequest {
        self.lock_delay = delay;
        self
    }

    /// Keeps the lock closed until this long after the grant, 0 – 24 h in whole milliseconds, however early it is
    /// released and whatever its time to live; nobody else is granted it before, and after a release this client
    /// neither. It is for a job that must not run twice within a period. The release says how long the lock stays
    /// closed ([`Released::Delayed`](crate::Released::Delayed)). Only for an exclusive grant.
    pub fn at_least_for(mut self, time: Duration) -> LockRequest {
        self.at_least_for = time;
        self
    }

    /// Puts the grant under an existing lease: the locks live and expire together. The client id and the time
    /// to live are those of that lease. A request for a lock that is already under that lease is a repeat: it
    /// returns a second guard of the same grant, and the first guard to be dropped releases it.
    pub fn under(mut self, lease: &Lease) -> LockRequest {
        let (key, client) = (*lease.lease_key(), lease.client_id().clone());
        self.under = Some(Parent {
            key,
            client,
            kept: lease.kept_by(&self.inner.keeper),
            lost: lease.check().err(),
        });
        self
    }

    /// Sends the request and turns every outcome except a grant into an error. It waits as long as
    /// [`LockRequest::wait`] says.
    ///
    /// Dropping the future, for example in a time-out, leaves no lock behind: a grant that was made, or is
    /// still made, is released in the background.
    ///
    /// # Errors
    /// [`Error::Held`] with the holder, the other denials, or a fault. After a fault with an unknown outcome
    /// it is safe to ask again: the former request is abandoned in the background.
    pub async fn acquire(self) -> Result<Lease, Error> {
        let lock = self.lock.clone();
        self.attempt().await?.granted(&lock)
    }

    /// Tries once without waiting; `None` if another client has the lock, or it is closed after its last grant.
    ///
    /// # Errors
    /// The same as [`LockRequest::acquire`], except [`Error::Held`], [`Error::Behind`] and [`Error::Delayed`].
    pub async fn try_acquire(self) -> Result<Option<Lease>, Error> {
        match self.wait(Duration::ZERO).acquire().await {
            Ok(lease) => Ok(Some(lease)),
            Err(Error::Held { .. } | Error::Behind { .. } | Error::Delayed { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Sends the request and returns denials as values. It is as cancel-safe as [`LockRequest::acquire`].
    ///
    /// # Errors
    /// Faults, and [`Error::Lost`] if the parent lease is lost or the grant arrived too late to be of use.
    pub async fn attempt(self) -> Result<Attempt, Error> {
        self.ask(|mut leases| leases.remove(0)).await
    }

    /// As [`LockRequest::attempt`], for all locks of a set.
    async fn attempt_all(self) -> Result<Attempt<Vec<Lease>>, Error> {
        self.ask(|leases| leases).await
    }

    /// Asks until there is an outcome that is of use. A grant that the process slept through is none: while there is time
    /// left to wait, the next request asks for what is left of it.
    async fn ask<L>(mut self, guards: fn(Vec<Lease>) -> L) -> Result<Attempt<L>, Error> {
        loop {
            let (request, t0, acquired, wait_until) = self.send().await?;
            // One that the same client id has taken over meanwhile is not taken back.
            let superseded = matches!(acquired, Acquired::Over(Some(Ending::Superseded)));
            let over = matches!(acquired, Acquired::Over(_)) && !superseded;
            let concluded = self.conclude(&request, t0, acquired, guards);
            let too_late = over || matches!(concluded, Err(Error::Lost(_)));
            if !too_late || self.under.is_some() {
                return concluded;
            }
            let left = wait_until.since(self.inner.keeper.core().clock.now());
            if left == Span::ZERO {
                return concluded;
            }
            self.wait = left.to_duration();
        }
    }

    async fn send(&self) -> Result<(AcquireRequest, Timestamp, Acquired, Timestamp), Error> {
        let request = self.checked()?;
        let keeper = Arc::clone(&self.inner.keeper);
        keeper.start()?;
        let pending = Pending::new(keeper, &request, self.reader.clone());
        let (t0, acquired, wait_until) = pending.resolve(&request).await?;
        Ok((request, t0, acquired, wait_until))
    }

    /// Checks the request and converts it to the authority's types.
    fn checked(&self) -> Result<AcquireRequest, Error> {
        let wait = wait(self.wait)?;
        let metadata = self.metadata.as_deref().map(Box::from);
        let (client, under) = self.client_and_lease()?;
        let (lock, also) = self.names()?;
        Ok(AcquireRequest {
            lock,
            client,
            mode: match self.mode {
                Mode::Plain(mode) => mode,
                Mode::Permits { wanted, of } => LockMode::Permits(Permits::new(wanted, of)?),
            },
            under,
            wait,
            request: RequestId::from_bytes(random::bytes()?),
            metadata,
            delays: Delays::new(
                whole_ms("a lock delay", self.lock_delay)?,
                whole_ms("at least for", self.at_least_for)?,
            )?,
            also,
        })
    }

    fn names(&self) -> Result<(LockName, Others), Invalid> {
        let lock = LockName::new(&self.lock)?;
        if self.also.is_empty() {
            return Ok((lock, Others::NONE));
        }
        let others = self.also.iter().map(|name| LockName::new(name));
        let all: Result<Vec<_>, _> = std::iter::once(Ok(lock)).chain(others).collect();
        palisade_core::set_of(all?)
    }

    fn client_and_lease(&self) -> Result<(ClientId, Under<()>), Error> {
        if let Some(parent) = &self.under {
            return match &parent.lost {
                Some(lost) => Err(lost.clone().into()),
                None => Ok((parent.client.clone(), Under::existing(parent.key))),
            };
        }
        let client = match &self.client {
            Some(client) => ClientId::new(client)?,
            None => self.inner.identity.next()?,
        };
        Ok((client, Under::new(ttl(self.ttl)?)))
    }

    fn conclude<L>(
        &self,
        request: &AcquireRequest,
        t0: Timestamp,
        acquired: Acquired,
        guards: impl FnOnce(Vec<Lease>) -> L,
    ) -> Result<Attempt<L>, Error> {
        Ok(match acquired {
            Acquired::Granted(granted) => {
                let keeper = Arc::clone(&self.inner.keeper);
                let parent = self.under.as_ref();
                let parent = parent.filter(|parent| parent.key == granted.key);
                let mut kept = parent.and_then(|parent| parent.kept.clone());
                let mode = match request.mode {
                    LockMode::Upgrade => LockMode::Exclusive,
                    mode => mode,
                };
                let mut leases = Vec::with_capacity(1 + request.also.len());
                for lock in std::iter::once(&request.lock).chain(&*request.also) {
                    let lease = Lease::new(
                        Arc::clone(&keeper),
                        (lock.clone(), mode),
                        request.client.clone(),
                        t0,
                        &granted,
                        kept,
                    );
                    // All of them are under one lease, which is renewed once.
                    kept = lease.kept_by(&keeper);
                    leases.push(lease);
                }
                // If the process slept through its grant, there is no lease to return, and the drop releases
                // the grant.
                for lease in &leases {
                    lease.check()?;
                }
                Attempt::Granted(guards(leases))
            }
            Acquired::Held(holder) => Attempt::Held(holder),
            Acquired::Behind(ahead) => Attempt::Behind(ahead),
            Acquired::Delayed(delayed) => Attempt::Delayed(delayed),
            Acquired::QueueFull(message) => Attempt::QueueFull(message),
            Acquired::TooManyLocks(message) => Attempt::TooManyLocks(message),
            Acquired::TokensExhausted => Attempt::TokensExhausted,
            Acquired::Over(how) => return Err(self.over(how.map_or(Loss::NotHeld, Loss::Ended))),
            Acquired::Abandoned => {
                return Err(Fault::unavailable("the request was abandoned").into());
            }
        })
    }

    fn over(&self, why: Loss) -> Error {
        let lock = &self.lock;
        if let Some(reader) = &self.reader {
            reader.hold.lose(why);
        }
        match self.under {
            Some(_) => Fault::invalid(format!("the lease given for {lock} is lost: {why}")).into(),
            // Nothing is held, so asking again is safe.
            None => Fault::unavailable(format!(
                "{lock} was granted, but the grant ended before the answer arrived: {why}"
            ))
            .into(),
        }
    }
}

impl<L> Attempt<L> {
    /// The guard, or the denial as an error that names the lock.
    fn granted(self, lock: &str) -> Result<L, Error> {
        match self {
            Attempt::Granted(guard) => Ok(guard),
            Attempt::Held(holder) => Err(Error::Held {
                lock: LockName::new(lock)?,
                holder,
            }),
            Attempt::Behind(ahead) => Err(Error::Behind {
                lock: LockName::new(lock)?,
                ahead,
            }),
            Attempt::Delayed(delayed) => Err(Error::Delayed {
                lock: LockName::new(lock)?,
                delayed,
            }),
            Attempt::QueueFull(message) => Err(Error::QueueFull {
                lock: LockName::new(lock)?,
                message,
            }),
            Attempt::TooManyLocks(message) => Err(Error::TooManyLocks(message)),
            Attempt::TokensExhausted => Err(Error::TokensExhausted),
        }
    }
}

/// A request for several locks at once, made by [`Client::locks`](crate::Client::locks): all or none, in one step, under
/// one lease and one fencing token. Nothing is held while it waits, so two such requests never wait for each other.
#[derive(Clone, Debug)]
#[must_use = "nothing is sent before `acquire` or `try_acquire`"]
pub struct SetRequest(LockRequest);

impl SetRequest {
    pub(crate) fn new(inner: Arc<Inner>, locks: Vec<String>) -> SetRequest {
        let mut locks = locks.into_iter();
        // Without any name the first one is empty, and is refused as such when the request is sent.
        let mut request = LockRequest::new(inner, &locks.next().unwrap_or_default());
        request.also = locks.collect();
        SetRequest(request)
    }

    /// As [`LockRequest::ttl`].
    pub fn ttl(self, ttl: Duration) -> SetRequest {
        SetRequest(self.0.ttl(ttl))
    }

    /// As [`LockRequest::wait`]. The set is granted when it is first in the queues of all its locks, and all are free.
    pub fn wait(self, wait: Duration) -> SetRequest {
        SetRequest(self.0.wait(wait))
    }

    /// As [`LockRequest::client_id`], for each of the locks.
    pub fn client_id(self, client: impl Into<String>) -> SetRequest {
        SetRequest(self.0.client_id(client))
    }

    /// As [`LockRequest::metadata`], for each of the locks.
    pub fn metadata(self, metadata: impl Into<String>) -> SetRequest {
        SetRequest(self.0.metadata(metadata))
    }

    /// As [`LockRequest::acquire`]: a guard for each lock, in the order of their names, all with one token. Each may be
    /// released early. Claim all resources before the first read.
    ///
    /// # Errors
    /// As [`LockRequest::acquire`]; the lock that an error names stands for the set.
    pub async fn acquire(self) -> Result<Vec<Lease>, Error> {
        let lock = self.0.lock.clone();
        self.0.attempt_all().await?.granted(&lock)
    }

    /// As [`LockRequest::try_acquire`].
    ///
    /// # Errors
    /// As [`LockRequest::try_acquire`].
    pub async fn try_acquire(self) -> Result<Option<Vec<Lease>>, Error> {
        match self.wait(Duration::ZERO).acquire().await {
            Ok(leases) => Ok(Some(leases)),
            Err(Error::Held { .. } | Error::Behind { .. } | Error::Delayed { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }
}

/// A request for permits that does not say yet how many the semaphore has.
#[derive(Clone, Debug)]
#[must_use = "say how many permits the semaphore has: `of`"]
pub struct PermitsRequest {
    request: LockRequest,
    wanted: u32,
}

impl PermitsRequest {
    /// Says how many permits the semaphore has: 1 – 64. The number is in force while the lock is in use, and a request
    /// with another one is refused, naming both.
    pub fn of(self, of: u32) -> LockRequest {
        let PermitsRequest { request, wanted } = self;
        LockRequest {
            mode: Mode::Permits { wanted, of },
            ..request
        }
    }
}

fn ttl(duration: Duration) -> Result<Ttl, Fault> {
    Ok(Ttl::from_millis(whole_ms("a lease", duration)?)?)
}

fn whole_ms(what: &str, duration: Duration) -> Result<u64, Fault> {
    let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    if Duration::from_millis(millis) != duration {
        return Err(Fault::invalid(format!(
            "{what} of {duration:?} is not a whole number of milliseconds"
        )));
    }
    Ok(millis)
}

/// The wait in milliseconds, rounded up, so that a wait of a microsecond does not become a try.
fn wait(duration: Duration) -> Result<Option<Span>, Invalid> {
    let millis = duration.as_nanos().div_ceil(1_000_000);
    let millis = u64::try_from(millis).unwrap_or(u64::MAX);
    if millis > limits::MAX_WAIT.as_millis() {
        return Err(Invalid::Wait { given_ms: millis });
    }
    Ok((millis > 0).then(|| Span::from_millis(millis)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_ttl_is_neither_clamped_nor_cut() {
        assert_eq!(ttl(Duration::from_millis(100)).unwrap(), Ttl::MIN);
        for refused in [99, 24 * 60 * 60 * 1_000 + 1] {
            let message = ttl(Duration::from_millis(refused)).unwrap_err().to_string();
            assert!(message.contains("100 ms ..= 86400000 ms"), "{message}");
        }
        assert!(ttl(Duration::from_micros(150_500)).is_err());
        assert!(ttl(Duration::MAX).is_err());
    }

    #[test]
    fn a_wait_is_rounded_up_and_bounded() {
        assert_eq!(wait(Duration::ZERO), Ok(None));
        assert_eq!(
            wait(Duration::from_nanos(1)),
            Ok(Some(Span::from_millis(1)))
        );
        assert_eq!(
            wait(Duration::from_secs(86_400)),
            Ok(Some(limits::MAX_WAIT))
        );
        assert!(wait(Duration::from_secs(86_401)).is_err());
        assert!(wait(Duration::MAX).is_err());
    }
}
