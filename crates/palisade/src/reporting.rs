//! Tells an authority of the late writes that a store or a gateway refused.

use std::sync::Arc;
use std::time::Duration;

use palisade_client::clock::BootClock;
use palisade_client::service::{AcquireRequest, Acquired, Operation};
use palisade_client::{
    AuthorityId, Client, Fault, GrantRef, LateWrite, LockName, LockService, LockView, Options,
    Released, Renewal, Ttl,
};
use palisade_core::RequestId;
use tokio::sync::OnceCell;
use tokio::time::timeout;

/// Returns the reporter for an authority. One that is away stops no start: it is connected with a later report.
///
/// # Errors
/// The URL, the certificates or the token cannot be used, or something else answers there.
pub(crate) async fn reporter(url: String, options: Options) -> Result<Client, Fault> {
    let service = Arc::new(Later {
        unnamed: AuthorityId::new("not-connected")
            .map_err(|bad| Fault::invalid(bad.to_string()))?,
        url,
        options,
        connected: OnceCell::new(),
    });
    match timeout(AT_THE_START, service.connected()).await {
        Ok(Err(fault @ Fault::Invalid(_))) => return Err(fault),
        Ok(Err(fault)) => away(&service.url, &format!("{fault:#}")),
        Err(_) => away(&service.url, "no answer yet"),
        Ok(Ok(_)) => {}
    }
    let options = Options::default();
    Client::with(service, Arc::new(BootClock), &options).map_err(|error| match error {
        palisade_client::Error::Fault(fault) => fault,
        other => Fault::invalid(other.to_string()),
    })
}

fn away(url: &str, why: &str) {
    let url = palisade_client::without_secrets(url);
    tracing::warn!(%url, why, "late writes cannot be reported yet; the fence works without that");
}

/// An authority that is connected with the first report.
struct Later {
    unnamed: AuthorityId,
    url: String,
    options: Options,
    connected: OnceCell<Arc<dyn LockService>>,
}

impl Later {
    async fn connected(&self) -> Result<&Arc<dyn LockService>, Fault> {
        let connect = || palisade_client::connect(&self.url, &self.options);
        self.connected.get_or_try_init(connect).await
    }
}

impl LockService for Later {
    fn authority(&self) -> &AuthorityId {
        let connected = self.connected.get();
        connected.map_or(&self.unnamed, |service| service.authority())
    }

    fn outlives_runtimes(&self) -> bool {
        true
    }

    fn report(&self, late: LateWrite) -> Operation<'_, ()> {
        Box::pin(async move { self.connected().await?.report(late).await })
    }

    fn acquire(&self, _: AcquireRequest) -> Operation<'_, Acquired> {
        reports_only()
    }

    fn renew(&self, _: GrantRef, _: Option<Ttl>) -> Operation<'_, Renewal> {
        reports_only()
    }

    fn release(&self, _: GrantRef) -> Operation<'_, Released> {
        reports_only()
    }

    fn abandon(&self, _: RequestId) -> Operation<'_, ()> {
        reports_only()
    }

    fn show(&self, _: LockName) -> Operation<'_, LockView> {
        reports_only()
    }
}

fn reports_only<'a, T: 'a>() -> Operation<'a, T> {
    Box::pin(async { Err(Fault::unsupported("anything but report late writes")) })
}

/// How long a start waits for the authority.
const AT_THE_START: Duration = Duration::from_secs(1);
