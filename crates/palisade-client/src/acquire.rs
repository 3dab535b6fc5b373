//! Requests for a lock. A request that is given up leaves no lock behind.

use std::sync::Arc;
use std::time::Duration;

use palisade_core::{
    Ahead, ClientId, Delayed, Ending, GrantOptions, Holder, Invalid, LeaseKey, LockMode, LockName,
    Others, Span, Timestamp, Ttl, limits,
};

use crate::error::{Error, Loss, Lost};
use crate::fault::Fault;
use crate::inner::Inner;
use crate::kind::{Exclusive, Kind, Semaphore, Set, Shared, Upgrade};
use crate::lease::Lease;
use crate::pending::Pending;
use crate::schedule::{KeptLease, Upgrading};
use crate::service::{AcquireRequest, Acquired, Under, fresh_request_id};

/// The default time to live of a lease. It outlasts a restart of the server, and is short enough to wait for when a
/// holder dies.
pub const DEFAULT_TTL: Duration = Duration::from_secs(15);

/// The default time that a request waits in the queue, as for `palisade run`. Like locking a mutex, `acquire` waits;
/// [`LockRequest::try_acquire`] does not. No wait is unbounded.
pub const DEFAULT_WAIT: Duration = Duration::from_secs(30);

/// A request for a lock of some [kind](crate::kind), made by [`Client::lock`](crate::Client::lock),
/// [`lock_shared`](crate::Client::lock_shared), [`semaphore`](crate::Client::semaphore) or
/// [`locks`](crate::Client::locks).
///
/// A value out of range is an error when the request is sent, and the message names the range. Nothing is clamped.
#[derive(Clone, Debug)]
#[must_use = "nothing is sent before `acquire`, `try_acquire` or `attempt`"]
pub struct LockRequest<K: Kind = Exclusive> {
    common: Common,
    pub(crate) kind: K,
}

/// The options of every kind of request.
#[derive(Clone, Debug)]
struct Common {
    inner: Arc<Inner>,
    /// The first lock by name, and the others of a set. An invalid name is an error when the request is sent.
    names: Result<(LockName, Others), Invalid>,
    ttl: Option<Duration>,
    wait: Duration,
    client: Option<String>,
    metadata: Option<String>,
    under: Option<Parent>,
    /// The reader to upgrade; set only for an upgrade.
    reader: Option<Arc<Upgrading>>,
}

/// The existing lease that the grant joins.
#[derive(Clone, Debug)]
struct Parent {
    key: LeaseKey,
    client: ClientId,
    /// The lease in this client's renewal schedule; `None` if another client renews it.
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
    /// Another client holds the lock; `remaining` says when to try again.
    Held(Holder),
    /// Another request is ahead in the queue; `remaining` says when to try again.
    Behind(Ahead),
    /// The lock is closed after its last grant: nobody holds it, and nobody gets it for `remaining`.
    Delayed(Delayed),
    /// Too many requests are waiting; the text names the bound.
    QueueFull(Box<str>),
    /// The authority holds as many locks as it allows; the text names the bound.
    TooManyLocks(Box<str>),
    /// The authority has issued its last token.
    TokensExhausted,
}

impl LockRequest<Shared> {
    /// Requests the lock in mode update: as a reader that may later become the writer
    /// ([`Client::upgrade`](crate::Client::upgrade)). It reads beside other readers; only one reader at a time is in
    /// this mode.
    pub fn for_update(mut self) -> Self {
        self.kind.for_update = true;
        self
    }
}

impl LockRequest<Semaphore> {
    /// Sets the number of permits to acquire, all or none; 1 by default.
    pub fn permits(mut self, wanted: u32) -> Self {
        self.kind.permits = wanted;
        self
    }
}

impl LockRequest<Upgrade> {
    /// Creates the request that upgrades a grant in mode update.
    pub(crate) fn upgrade(inner: &Arc<Inner>, reader: &Lease) -> Self {
        let mut request = LockRequest::new(inner, Ok(reader.lock().clone()), Upgrade);
        request.common.reader = Some(Arc::new(Upgrading::new(reader.kept())));
        request.under(reader)
    }
}

impl LockRequest<Set> {
    pub(crate) fn of_set(inner: &Arc<Inner>, names: Result<Vec<LockName>, Invalid>) -> Self {
        let common = Common::new(inner, names.and_then(palisade_core::set_of));
        LockRequest { common, kind: Set }
    }
}

impl<K: Kind> LockRequest<K> {
    pub(crate) fn new(inner: &Arc<Inner>, name: Result<LockName, Invalid>, kind: K) -> Self {
        let common = Common::new(inner, name.map(|name| (name, Others::NONE)));
        LockRequest { common, kind }
    }

    /// Sets how long the lease lasts without renewal: 100 ms – 24 h in whole milliseconds, [`DEFAULT_TTL`] by default.
    /// It limits how long others wait if this process dies.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.common.ttl = Some(ttl);
        self
    }

    /// Sets how long to wait in the lock's queue: up to 24 h, [`DEFAULT_WAIT`] by default, zero to try once. A set is
    /// granted once it is first in the queue of each of its locks and all of them are free.
    pub fn wait(mut self, wait: Duration) -> Self {
        self.common.wait = wait;
        self
    }

    /// Sets the client id: 1 – 255 bytes of printable ASCII. If this client id already holds the lock exclusively, the
    /// request gets it at once with a higher token, and the former grant ends. A restarted process thus gets its own
    /// lock back without waiting. Without a client id, every request counts as a separate client.
    pub fn client_id(mut self, client: impl Into<String>) -> Self {
        self.common.client = Some(client.into());
        self
    }

    /// Sets the text shown with the holder, at most 256 bytes.
    pub fn metadata(mut self, metadata: impl Into<String>) -> Self {
        self.common.metadata = Some(metadata.into());
        self
    }

    /// Adds the grant to an existing lease; its locks then expire together. The request takes the client id and the
    /// time to live from that lease, and it is an error to set them here. Requesting a lock that the lease already
    /// holds returns a second guard of the same grant; dropping either guard releases it.
    pub fn under(mut self, lease: &Lease) -> Self {
        let (key, client) = (*lease.lease_key(), lease.client_id().clone());
        self.common.under = Some(Parent {
            key,
            client,
            kept: lease.kept_by(&self.common.inner.keeper),
            lost: lease.check().err(),
        });
        self
    }

    /// Acquires the lock, waiting as long as [`LockRequest::wait`] allows. Every outcome except a grant is an error.
    ///
    /// Dropping the future, for example in a time-out, leaves no lock behind: if the grant was made or is still made,
    /// it is released in the background.
    ///
    /// # Errors
    /// [`Error::Held`] with the holder, the other denials, or a fault. For a set, the error names one of its locks.
    /// After a fault with an unknown outcome you can safely acquire again: the former request is abandoned in the
    /// background.
    pub async fn acquire(self) -> Result<K::Guard, Error> {
        let (attempt, lock) = self.ask().await?;
        attempt.granted(lock)
    }

    /// Tries once without waiting. Returns `None` if another client holds the lock or is ahead in the queue, or if the
    /// lock is closed after its last grant.
    ///
    /// # Errors
    /// The same as [`LockRequest::acquire`], except [`Error::Held`], [`Error::Behind`] and [`Error::Delayed`].
    pub async fn try_acquire(self) -> Result<Option<K::Guard>, Error> {
        match self.wait(Duration::ZERO).acquire().await {
            Ok(guard) => Ok(Some(guard)),
            Err(Error::Held { .. } | Error::Behind { .. } | Error::Delayed { .. }) => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Acquires the lock like [`LockRequest::acquire`], and is as cancel-safe, but returns denials as values.
    ///
    /// # Errors
    /// Faults, and [`Error::Lost`] if the parent lease is lost or the grant arrived after its deadline.
    pub async fn attempt(self) -> Result<Attempt<K::Guard>, Error> {
        Ok(self.ask().await?.0)
    }

    /// Returns the outcome, and the lock that an error names.
    async fn ask(self) -> Result<(Attempt<K::Guard>, LockName), Error> {
        let asks = self.kind.asks()?;
        let (attempt, lock) = self.common.ask(asks).await?;
        Ok((attempt.map(K::guard), lock))
    }
}

impl Common {
    fn new(inner: &Arc<Inner>, names: Result<(LockName, Others), Invalid>) -> Common {
        Common {
            inner: Arc::clone(inner),
            names,
            ttl: None,
            wait: DEFAULT_WAIT,
            client: None,
            metadata: None,
            under: None,
            reader: None,
        }
    }

    /// Requests until there is a usable outcome. If the process slept past the end of a grant, that grant is useless,
    /// and the next request uses the rest of the wait.
    async fn ask(
        mut self,
        asks: (LockMode, GrantOptions),
    ) -> Result<(Attempt<Vec<Lease>>, LockName), Error> {
        loop {
            let (request, t0, acquired, wait_until) = self.send(asks).await?;
            // If the same client id has taken the lock over meanwhile, do not take it back.
            let superseded = matches!(acquired, Acquired::Over(Some(Ending::Superseded)));
            let over = matches!(acquired, Acquired::Over(_)) && !superseded;
            let concluded = self.conclude(&request, t0, acquired);
            let too_late = over || matches!(concluded, Err(Error::Lost(_)));
            if !too_late || self.under.is_some() {
                return Ok((concluded?, request.lock));
            }
            let left = wait_until.since(self.inner.keeper.core().clock.now());
            if left == Span::ZERO {
                return Ok((concluded?, request.lock));
            }
            self.wait = left.to_duration();
        }
    }

    async fn send(
        &self,
        asks: (LockMode, GrantOptions),
    ) -> Result<(AcquireRequest, Timestamp, Acquired, Timestamp), Error> {
        let request = self.checked(asks)?;
        let keeper = Arc::clone(&self.inner.keeper);
        keeper.start()?;
        let pending = Pending::new(keeper, &request, self.reader.clone());
        let (t0, acquired, wait_until) = pending.resolve(&request).await?;
        Ok((request, t0, acquired, wait_until))
    }

    /// Checks the request and converts it to the authority's types.
    fn checked(&self, (mode, options): (LockMode, GrantOptions)) -> Result<AcquireRequest, Error> {
        let wait = wait(self.wait)?;
        let metadata = self.metadata.as_deref().map(Box::from);
        let (client, under) = self.client_and_lease()?;
        let (lock, also) = self.names.clone()?;
        Ok(AcquireRequest {
            lock,
            client,
            mode,
            under,
            wait,
            request: fresh_request_id()?,
            metadata,
            options,
            also,
        })
    }

    fn client_and_lease(&self) -> Result<(ClientId, Under<()>), Error> {
        if let Some(parent) = &self.under {
            if self.ttl.is_some() || self.client.is_some() {
                return Err(Fault::invalid(
                    "a request under a lease has the time to live and the client id of that lease: leave out ttl and \
                     client_id",
                )
                .into());
            }
            return match &parent.lost {
                Some(lost) => Err(lost.clone().into()),
                None => Ok((parent.client.clone(), Under::existing(parent.key))),
            };
        }
        let client = match &self.client {
            Some(client) => ClientId::new(client)?,
            None => self.inner.identity.next()?,
        };
        Ok((client, Under::new(ttl(self.ttl.unwrap_or(DEFAULT_TTL))?)))
    }

    fn conclude(
        &self,
        request: &AcquireRequest,
        t0: Timestamp,
        acquired: Acquired,
    ) -> Result<Attempt<Vec<Lease>>, Error> {
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
                        request,
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
                Attempt::Granted(leases)
            }
            Acquired::Held(holder) => Attempt::Held(holder),
            Acquired::Behind(ahead) => Attempt::Behind(ahead),
            Acquired::Delayed(delayed) => Attempt::Delayed(delayed),
            Acquired::QueueFull(message) => Attempt::QueueFull(message),
            Acquired::TooManyLocks(message) => Attempt::TooManyLocks(message),
            Acquired::TokensExhausted => Attempt::TokensExhausted,
            Acquired::Over(how) => {
                let why = how.map_or(Loss::NotHeld, Loss::Ended);
                return Err(self.over(&request.lock, why));
            }
            Acquired::Abandoned => {
                return Err(Fault::unavailable("the request was abandoned").into());
            }
        })
    }

    fn over(&self, lock: &LockName, why: Loss) -> Error {
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
    /// The same outcome with another guard.
    fn map<M>(self, guard: impl FnOnce(L) -> M) -> Attempt<M> {
        match self {
            Attempt::Granted(granted) => Attempt::Granted(guard(granted)),
            Attempt::Held(holder) => Attempt::Held(holder),
            Attempt::Behind(ahead) => Attempt::Behind(ahead),
            Attempt::Delayed(delayed) => Attempt::Delayed(delayed),
            Attempt::QueueFull(message) => Attempt::QueueFull(message),
            Attempt::TooManyLocks(message) => Attempt::TooManyLocks(message),
            Attempt::TokensExhausted => Attempt::TokensExhausted,
        }
    }

    /// The guard, or the denial as an error that names the lock.
    fn granted(self, lock: LockName) -> Result<L, Error> {
        match self {
            Attempt::Granted(guard) => Ok(guard),
            Attempt::Held(holder) => Err(Error::Held { lock, holder }),
            Attempt::Behind(ahead) => Err(Error::Behind { lock, ahead }),
            Attempt::Delayed(delayed) => Err(Error::Delayed { lock, delayed }),
            Attempt::QueueFull(message) => Err(Error::QueueFull { lock, message }),
            Attempt::TooManyLocks(message) => Err(Error::TooManyLocks(message)),
            Attempt::TokensExhausted => Err(Error::TokensExhausted),
        }
    }
}

fn ttl(duration: Duration) -> Result<Ttl, Fault> {
    Ok(Ttl::from_millis(whole_ms("a lease of", duration)?)?)
}

pub(crate) fn whole_ms(given: &str, duration: Duration) -> Result<u64, Fault> {
    let millis = u64::try_from(duration.as_millis()).unwrap_or(u64::MAX);
    if Duration::from_millis(millis) != duration {
        return Err(Fault::invalid(format!(
            "{given} {duration:?} is not a whole number of milliseconds"
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
