//! The steps from which the checks are built.

use std::sync::Arc;
use std::time::Duration;

use palisade_core::holder::Caution;
use palisade_core::{ClientId, GrantRef, Granted, LockName, LockView, Span, Timestamp, Token, Ttl};

use crate::conformance::report::CheckOutcome;
use crate::conformance::{Habit, Subject};
use palisade_client::Client;
use palisade_client::clock::{BootClock, Clock as _};
use palisade_client::service::{
    AcquireRequest, Acquired, LockService, Released, Renewal, Under, fresh_request_id,
};

/// The reason why a check failed: the observation that contradicts the rule.
pub(super) type Failure = String;
pub(super) type Checked = Result<CheckOutcome, Failure>;

/// The time allowed for one hand-over on a busy machine.
const EACH_GRANT: Duration = Duration::from_millis(100);

/// The authority under test, as seen by one check.
pub(super) struct Context<S> {
    pub(super) subject: Arc<S>,
    pub(super) habit: Habit,
    /// The names of the locks are new in each run, also on a shared authority that is never emptied.
    prefix: String,
}

impl<S: Subject> Context<S> {
    pub(super) fn new(subject: &Arc<S>, habit: Habit) -> Context<S> {
        let run =
            fresh_request_id().map_or_else(|_| std::process::id().to_string(), |id| id.to_hex());
        Context {
            subject: Arc::clone(subject),
            habit,
            prefix: format!("conformance/{run}"),
        }
    }

    /// The name of a lock that only this check uses.
    pub(super) fn lock(&self, name: &str) -> String {
        format!("{}/{name}", self.prefix)
    }

    pub(super) async fn service(&self) -> Result<Arc<dyn LockService>, Failure> {
        self.subject
            .connect()
            .await
            .map_err(|fault| format!("cannot connect: {fault}"))
    }

    pub(super) async fn client(&self) -> Result<Client, Failure> {
        Client::new(self.service().await?).map_err(say)
    }

    /// Opens one connection that is driven one attempt at a time: nothing is repeated, renewed or released
    /// behind the check's back.
    pub(super) async fn hand(&self, lock: &str) -> Result<Hand, Failure> {
        Ok(Hand {
            service: self.service().await?,
            lock: LockName::new(lock).map_err(say)?,
            patience: self.habit.patience,
        })
    }

    /// The upper bound for the time of one check on a busy machine; more grants may take longer.
    pub(super) fn longest(&self) -> Duration {
        let grants = self.habit.racers.saturating_mul(self.habit.grants);
        self.habit.patience * 10 + EACH_GRANT * grants
    }

    pub(super) fn brief(&self) -> Result<Ttl, Failure> {
        ttl(self.habit.brief)
    }

    pub(super) fn long(&self) -> Result<Ttl, Failure> {
        ttl(self.habit.long)
    }
}

fn ttl(duration: Duration) -> Result<Ttl, Failure> {
    let millis = u64::try_from(duration.as_millis()).map_err(say)?;
    Ttl::from_millis(millis).map_err(say)
}

/// One connection and one lock.
#[derive(Clone)]
pub(super) struct Hand {
    pub(super) service: Arc<dyn LockService>,
    pub(super) lock: LockName,
    patience: Duration,
}

/// A grant that is not renewed in the background.
#[derive(Clone, Debug)]
pub(super) struct UnrenewedGrant {
    pub(super) granted: Granted,
    pub(super) grant: GrantRef,
    /// The instant until which its holder may believe in it, by the same rule as for every guard.
    pub(super) until: Timestamp,
}

impl UnrenewedGrant {
    pub(super) fn token(&self) -> Token {
        self.granted.token
    }

    pub(super) fn believes(&self) -> bool {
        BootClock.now() < self.until
    }
}

impl Hand {
    /// Returns a new request. A `wait` of zero is a try.
    pub(super) fn wish(&self, ttl: Ttl, wait: Duration) -> Result<AcquireRequest, Failure> {
        let request = fresh_request_id().map_err(say)?;
        Ok(AcquireRequest {
            wait: (wait > Duration::ZERO).then(|| Span::from(wait)),
            ..AcquireRequest::new(
                self.lock.clone(),
                ClientId::new(&format!("hand-{}", request.to_hex())).map_err(say)?,
                Under::new(ttl),
                request,
            )
        })
    }

    pub(super) async fn ask(&self, wish: &AcquireRequest) -> Result<Acquired, Failure> {
        self.service.acquire(wish.clone()).await.map_err(say)
    }

    /// Sends a request that must be granted.
    pub(super) async fn hold(&self, wish: &AcquireRequest) -> Result<UnrenewedGrant, Failure> {
        let t0 = BootClock.now();
        match self.ask(wish).await? {
            Acquired::Granted(granted) => Ok(self.held(t0, granted)),
            other => Err(format!("{} was not granted: {other:?}", self.lock)),
        }
    }

    fn held(&self, t0: Timestamp, granted: Granted) -> UnrenewedGrant {
        UnrenewedGrant {
            grant: GrantRef {
                lock: self.lock.clone(),
                key: granted.key,
                token: Some(granted.number()),
            },
            until: Caution::DEFAULT.deadline(t0, granted.valid_for),
            granted,
        }
    }

    pub(super) async fn renew(&self, held: &UnrenewedGrant) -> Result<Renewal, Failure> {
        let answer = self.service.renew(held.grant.clone(), None).await;
        answer.map_err(say)
    }

    pub(super) async fn release(&self, grant: &GrantRef) -> Result<Released, Failure> {
        self.service.release(grant.clone()).await.map_err(say)
    }

    pub(super) async fn show(&self) -> Result<LockView, Failure> {
        self.service.show(self.lock.clone()).await.map_err(say)
    }

    /// Polls until the lock is in the expected state; there is no event for a queue.
    pub(super) async fn until(
        &self,
        what: &str,
        wanted: impl Fn(&LockView) -> bool,
    ) -> Result<(), Failure> {
        let end = BootClock.now().after(Span::from(self.patience));
        loop {
            let view = self.show().await?;
            if wanted(&view) {
                return Ok(());
            }
            if BootClock.now() >= end {
                return Err(format!("never saw {what}; last {view:?}"));
            }
            pause().await;
        }
    }

    /// Fails unless exactly this grant holds the lock.
    pub(super) async fn is_held_by(&self, held: &UnrenewedGrant) -> Result<(), Failure> {
        let view = self.show().await?;
        match view.holder {
            Some(holder) if holder.token == held.token() => Ok(()),
            other => Err(format!(
                "the holder should have token {}, but the answer is {other:?}",
                held.token()
            )),
        }
    }
}

/// Waits between two polls.
pub(super) async fn pause() {
    tokio::time::sleep(Duration::from_millis(2)).await; // real time: another process has to make progress
}

/// Waits until the clock has reached an instant.
pub(super) async fn until(instant: Timestamp) {
    BootClock.alarm(instant).await;
}

/// Fails a check that hangs.
pub(super) async fn within<T>(
    what: &str,
    time: Duration,
    future: impl Future<Output = Result<T, Failure>>,
) -> Result<T, Failure> {
    match tokio::time::timeout(time, future).await {
        Ok(result) => result,
        Err(_) => Err(format!("{what} took longer than {time:?}")),
    }
}

pub(super) fn say(error: impl std::fmt::Display) -> Failure {
    format!("{error:#}")
}

/// Fails with the given text if the condition is false.
pub(super) fn ensure(holds: bool, saw: impl FnOnce() -> String) -> Result<(), Failure> {
    if holds { Ok(()) } else { Err(saw()) }
}

/// Runs checks one after another and records each one under its own name.
macro_rules! run_checks {
    ($context:expr, $report:expr, [$($check:ident),* $(,)?]) => {
        $(
            let found = $crate::conformance::steps::within(
                stringify!($check),
                $context.longest(),
                $check($context),
            );
            $report.note(stringify!($check), found.await);
        )*
    };
}
pub(super) use run_checks;
