//! The words the checks are written in.

use std::sync::Arc;
use std::time::Duration;

use palisade_core::holder::Caution;
use palisade_core::{
    ClientId, GrantRef, Granted, LockName, LockView, RequestId, Span, Timestamp, Token, Ttl,
};

use crate::client::Client;
use crate::clock::{BootClock, Clock as _};
use crate::conformance::report::Finding;
use crate::conformance::{Habit, Subject};
use crate::random;
use crate::service::{AcquireRequest, Acquired, LockService, Released, Renewal, Under};

/// What a check saw that it should not have seen.
pub(super) type Saw = String;
pub(super) type Checked = Result<Finding, Saw>;

/// For a hand-over on a machine that has a lot else to do.
const EACH_GRANT: Duration = Duration::from_millis(100);

/// The authority under test, as one check sees it.
pub(super) struct Place<S> {
    pub(super) subject: Arc<S>,
    pub(super) habit: Habit,
    /// Locks are new in each run, also on an authority that is shared and never emptied.
    prefix: String,
}

impl<S: Subject> Place<S> {
    pub(super) fn new(subject: &Arc<S>, habit: Habit) -> Place<S> {
        let run = random::bytes().map_or_else(
            |_| std::process::id().to_string(),
            |bytes| RequestId::from_bytes(bytes).to_hex(),
        );
        Place {
            subject: Arc::clone(subject),
            habit,
            prefix: format!("conformance/{run}"),
        }
    }

    /// A lock that only this check uses.
    pub(super) fn lock(&self, name: &str) -> String {
        format!("{}/{name}", self.prefix)
    }

    pub(super) async fn service(&self) -> Result<Arc<dyn LockService>, Saw> {
        self.subject
            .connect()
            .await
            .map_err(|fault| format!("cannot connect: {fault}"))
    }

    pub(super) async fn client(&self) -> Result<Client, Saw> {
        Client::new(self.service().await?).map_err(say)
    }

    /// One connection, driven one attempt at a time: nothing is repeated, renewed or given back
    /// behind the check's back.
    pub(super) async fn hand(&self, lock: &str) -> Result<Hand, Saw> {
        Ok(Hand {
            service: self.service().await?,
            lock: LockName::new(lock).map_err(say)?,
            patience: self.habit.patience,
        })
    }

    /// What no check takes, however busy the machine is; more grants may take longer.
    pub(super) fn longest(&self) -> Duration {
        let grants = self.habit.racers.saturating_mul(self.habit.grants);
        self.habit.patience * 10 + EACH_GRANT * grants
    }

    pub(super) fn brief(&self) -> Result<Ttl, Saw> {
        ttl(self.habit.brief)
    }

    pub(super) fn long(&self) -> Result<Ttl, Saw> {
        ttl(self.habit.long)
    }
}

fn ttl(duration: Duration) -> Result<Ttl, Saw> {
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

/// A grant that nobody renews.
#[derive(Clone, Debug)]
pub(super) struct Held {
    pub(super) granted: Granted,
    pub(super) grant: GrantRef,
    /// Until when its holder may believe in it, by the rule every guard goes by.
    pub(super) until: Timestamp,
}

impl Held {
    pub(super) fn token(&self) -> Token {
        self.granted.token
    }

    pub(super) fn believes(&self) -> bool {
        BootClock.now() < self.until
    }
}

impl Hand {
    /// A wish nobody made before. `wait` of zero is a try.
    pub(super) fn wish(&self, ttl: Ttl, wait: Duration) -> Result<AcquireRequest, Saw> {
        let request = RequestId::from_bytes(random::bytes().map_err(say)?);
        Ok(AcquireRequest {
            lock: self.lock.clone(),
            client: ClientId::new(&format!("hand-{}", request.to_hex())).map_err(say)?,
            under: Under::New(ttl),
            wait: (wait > Duration::ZERO).then(|| Span::from(wait)),
            request,
            metadata: None,
        })
    }

    pub(super) async fn ask(&self, wish: &AcquireRequest) -> Result<Acquired, Saw> {
        self.service.acquire(wish.clone()).await.map_err(say)
    }

    /// Asks for a grant and gets it.
    pub(super) async fn hold(&self, wish: &AcquireRequest) -> Result<Held, Saw> {
        let t0 = BootClock.now();
        match self.ask(wish).await? {
            Acquired::Granted(granted) => Ok(self.held(t0, granted)),
            other => Err(format!("{} was not granted: {other:?}", self.lock)),
        }
    }

    fn held(&self, t0: Timestamp, granted: Granted) -> Held {
        Held {
            grant: GrantRef {
                lock: self.lock.clone(),
                key: granted.key,
                token: Some(granted.token),
            },
            until: Caution::DEFAULT.deadline(t0, granted.valid_for),
            granted,
        }
    }

    pub(super) async fn renew(&self, held: &Held) -> Result<Renewal, Saw> {
        let answer = self.service.renew(held.grant.clone(), None).await;
        answer.map_err(say)
    }

    pub(super) async fn release(&self, grant: &GrantRef) -> Result<Released, Saw> {
        self.service.release(grant.clone()).await.map_err(say)
    }

    pub(super) async fn show(&self) -> Result<LockView, Saw> {
        self.service.show(self.lock.clone()).await.map_err(say)
    }

    /// Asks again and again until the lock looks as wanted; there is no event for a queue.
    pub(super) async fn until(
        &self,
        what: &str,
        wanted: impl Fn(&LockView) -> bool,
    ) -> Result<(), Saw> {
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

    /// Fails unless exactly this grant is the one.
    pub(super) async fn is_held_by(&self, held: &Held) -> Result<(), Saw> {
        let view = self.show().await?;
        match view.holder {
            Some(holder) if holder.token == held.token() => Ok(()),
            other => Err(format!(
                "the holder should be the one with token {}, not {other:?}",
                held.token()
            )),
        }
    }
}

/// Between two looks.
pub(super) async fn pause() {
    tokio::time::sleep(Duration::from_millis(2)).await; // real time: another process has to move
}

/// Waits until the clock has reached an instant.
pub(super) async fn until(instant: Timestamp) {
    BootClock.alarm(instant).await;
}

/// Ends a check that hangs.
pub(super) async fn within<T>(
    what: &str,
    time: Duration,
    future: impl Future<Output = Result<T, Saw>>,
) -> Result<T, Saw> {
    match tokio::time::timeout(time, future).await {
        Ok(result) => result,
        Err(_) => Err(format!("{what} took longer than {time:?}")),
    }
}

pub(super) fn say(error: impl std::fmt::Display) -> Saw {
    error.to_string()
}

/// Fails with a text unless it holds.
pub(super) fn ensure(holds: bool, saw: impl FnOnce() -> String) -> Result<(), Saw> {
    if holds { Ok(()) } else { Err(saw()) }
}

/// Runs checks one after another and notes each under its own name.
macro_rules! run_checks {
    ($place:expr, $report:expr, [$($check:ident),* $(,)?]) => {
        $(
            let found = $crate::conformance::steps::within(
                stringify!($check),
                $place.longest(),
                $check($place),
            );
            $report.note(stringify!($check), found.await);
        )*
    };
}
pub(super) use run_checks;
