//! One client with one lock.

use std::pin::Pin;
use std::sync::Arc;

use palisade_client::service::{AcquireRequest, Acquired, LockService, Released, Renewal, Under};
use palisade_core::{ClientId, GrantRef, LockName, RequestId, Span, Ttl};

/// An error ends the run.
pub(crate) type Error = Box<dyn std::error::Error + Send + Sync>;

pub(crate) type LaneFuture<'a, T> = Pin<Box<dyn Future<Output = Result<T, Error>> + Send + 'a>>;

/// Acquires its lock, however long that takes, and releases it.
pub(crate) trait Lane: Send {
    /// The token of the grant.
    fn acquire(&mut self) -> LaneFuture<'_, u64>;

    fn release(&mut self) -> LaneFuture<'_, ()>;
}

/// A lane whose lease can be renewed.
pub(crate) trait Renewing: Lane {
    /// Renews the current lease for its full time.
    fn renew(&mut self) -> LaneFuture<'_, ()>;
}

/// The time to live of leases.
pub(crate) const TTL_MS: u64 = 10_000;

/// A lane through palisade-client: one attempt per call, no guard, like the bare lanes.
pub(crate) struct Adapter {
    service: Arc<dyn LockService>,
    lock: LockName,
    client: ClientId,
    ttl: Ttl,
    /// The next request's id: only its beginning is random, as in real clients.
    request: u128,
    grant: Option<GrantRef>,
}

impl Adapter {
    pub(crate) fn new(
        service: Arc<dyn LockService>,
        client: ClientId,
        lock: &str,
    ) -> Result<Adapter, Error> {
        Ok(Adapter {
            service,
            lock: LockName::new(lock)?,
            client,
            ttl: Ttl::from_millis(TTL_MS)?,
            request: u128::from_le_bytes(random()?),
            grant: None,
        })
    }

    /// Sets the time to live of its leases.
    pub(crate) fn lasting(self, ttl_ms: u64) -> Result<Adapter, Error> {
        let ttl = Ttl::from_millis(ttl_ms)?;
        Ok(Adapter { ttl, ..self })
    }
}

impl Lane for Adapter {
    fn acquire(&mut self) -> LaneFuture<'_, u64> {
        Box::pin(async move {
            self.request = self.request.wrapping_add(1);
            let request = AcquireRequest {
                wait: Some(Span::from_millis(60_000)),
                ..AcquireRequest::new(
                    self.lock.clone(),
                    self.client.clone(),
                    Under::new(self.ttl),
                    RequestId::from_bytes(self.request.to_le_bytes()),
                )
            };
            match self.service.acquire(request).await? {
                Acquired::Granted(granted) => {
                    self.grant = Some(GrantRef {
                        lock: self.lock.clone(),
                        key: granted.key,
                        token: Some(granted.token),
                    });
                    Ok(granted.token.get())
                }
                other => Err(format!("not granted: {other:?}").into()),
            }
        })
    }

    fn release(&mut self) -> LaneFuture<'_, ()> {
        Box::pin(async move {
            let grant = self.grant.take().ok_or("nothing is held")?;
            match self.service.release(grant).await? {
                Released::Released | Released::Delayed { .. } => Ok(()),
                other => Err(format!("not released: {other:?}").into()),
            }
        })
    }
}

impl Renewing for Adapter {
    fn renew(&mut self) -> LaneFuture<'_, ()> {
        Box::pin(async move {
            let grant = self.grant.clone().ok_or("nothing is held")?;
            match self.service.renew(grant, None).await? {
                Renewal::Renewed(_) => Ok(()),
                other => Err(format!("not renewed: {other:?}").into()),
            }
        })
    }
}

/// A new client id.
pub(crate) fn new_client() -> Result<ClientId, Error> {
    let random = RequestId::from_bytes(random()?).to_hex();
    Ok(ClientId::new(&format!("lane-{random}"))?)
}

pub(crate) fn random() -> Result<[u8; 16], Error> {
    let mut bytes = [0; 16];
    getrandom::fill(&mut bytes)?;
    Ok(bytes)
}
