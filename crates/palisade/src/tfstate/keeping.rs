//! Keeps the grants: Terraform never renews, so this server does, from the `LOCK` to the `UNLOCK`.
//!
//! A grant is renewed with the password that it was acquired with, because an authority lets nobody else. That password is
//! in memory only. After a restart, the grants of callers without one are taken up at once, and each other one when its
//! owner comes back with an upload; until then its lease may end, and the fence decides about the upload.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use futures_util::stream::{self, StreamExt as _};
use palisade_client::{Client, Error, Released, Renewal};
use palisade_core::{GrantRef, Token};

use super::callers::StateCaller;
use super::record::{Grant, Record};
use super::{App, PREFIX, StatePlace};

/// The grants that are kept, by lock and lock ID.
#[derive(Debug, Default)]
pub(super) struct Keeping(Mutex<BTreeMap<(String, String), KeptLock>>);

#[derive(Clone, Debug)]
struct KeptLock {
    grant: GrantRef,
    token: Token,
    caller: StateCaller,
    /// It was released, and the authority does not know yet.
    releasing: bool,
}

impl Keeping {
    pub(super) fn add(&self, grant: &GrantRef, id: &str, token: Token, caller: StateCaller) {
        let kept = KeptLock {
            grant: grant.clone(),
            token,
            caller,
            releasing: false,
        };
        self.lock().insert(key(grant, id), kept);
    }

    pub(super) fn has(&self, grant: &GrantRef, id: &str) -> bool {
        self.lock().contains_key(&key(grant, id))
    }

    pub(super) fn forget(&self, grant: &GrantRef, id: &str) {
        self.lock().remove(&key(grant, id));
    }

    /// Releases it as soon as the authority answers, and renews it no more.
    pub(super) fn release_later(
        &self,
        grant: &GrantRef,
        id: &str,
        token: Token,
        caller: StateCaller,
    ) {
        self.add(grant, id, token, caller);
        if let Some(kept) = self.lock().get_mut(&key(grant, id)) {
            kept.releasing = true;
        }
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(String, String), KeptLock>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn key(grant: &GrantRef, id: &str) -> (String, String) {
    (grant.lock.as_str().to_owned(), id.to_owned())
}

impl App {
    /// Takes up the grants that a former run of this server kept, as far as no password is needed.
    ///
    /// # Errors
    /// The store's.
    pub(super) async fn resume(&self) -> palisade_fence::Result<()> {
        let mut after = None;
        loop {
            let page = self.store.list(PREFIX, after.as_deref(), PAGE).await?;
            for (resource, view) in &page {
                let Ok(place) = StatePlace::new(self, resource.as_str().trim_start_matches(PREFIX))
                else {
                    continue;
                };
                let highest = view.fence.highest();
                for grant in Record::read(&place.resource).await?.held() {
                    if grant.caller.is_nobody() && Some(grant.token) >= highest {
                        self.keep(&place, grant, &StateCaller::nobody());
                    }
                }
            }
            match page.last() {
                Some((last, _)) if page.len() == PAGE => after = Some(last.as_str().to_owned()),
                _ => return Ok(()),
            }
        }
    }

    /// Renews a grant from now on, if it was not released.
    pub(super) fn keep(&self, at: &StatePlace, grant: &Grant, caller: &StateCaller) {
        let named = grant.named(&at.lock).filter(|_| !grant.released);
        if let Some(named) = named.filter(|named| !self.keeping.has(&named.grant, &grant.id)) {
            self.keeping
                .add(&named.grant, &grant.id, grant.token, caller.clone());
        }
    }
}

/// Renews grants, and repeats failed releases, as long as this server runs.
pub(super) async fn keep(app: Arc<App>) {
    let every = Duration::from_millis(app.policy.ttl.as_millis().into()) / 3;
    let pause = every.clamp(SHORTEST, RELEASE_EVERY);
    let mut ticks = tokio::time::interval(pause);
    ticks.set_missed_tick_behavior(tokio::time::MissedTickBehavior::Delay);
    let mut since_renewal = every;
    loop {
        ticks.tick().await;
        since_renewal += pause;
        let renews = since_renewal >= every;
        if renews {
            since_renewal = Duration::ZERO;
        }
        let all = app.keeping.lock().clone().into_iter();
        let due: Vec<_> = all.filter(|(_, kept)| renews || kept.releasing).collect();
        stream::iter(due)
            .for_each_concurrent(AT_ONCE, |((lock, id), kept)| {
                let app = &app;
                async move {
                    let Some(why) = step(app, &kept).await else {
                        return;
                    };
                    app.keeping.forget(&kept.grant, &id);
                    if let Some(why) = why {
                        tracing::warn!(
                            %lock, lock_id = %id, token = %kept.token,
                            "a lock of Terraform ended before it was unlocked ({why}); if anybody locks the state now, a late upload is refused"
                        );
                    }
                }
            })
            .await;
    }
}

/// One attempt. `None` if the grant stays; otherwise the reason for its end, unless it was released.
async fn step(app: &App, kept: &KeptLock) -> Option<Option<String>> {
    let client = match app.callers.client(&kept.caller).await {
        Ok(client) => client,
        Err(problem) => {
            tracing::warn!(lock = %kept.grant.lock, "cannot renew: {}", problem.message());
            return None;
        }
    };
    if kept.releasing {
        match release(&client, &kept.grant).await {
            Ok(_) => Some(None),
            Err(_) => None,
        }
    } else {
        match client.renew(&kept.grant, None).await {
            Ok(Renewal::Renewed(_)) => None,
            Ok(Renewal::Ended(ending)) => Some(Some(format!("{ending:?}").to_lowercase())),
            Ok(Renewal::NotHeld) => Some(Some("the authority does not know it".to_owned())),
            Ok(Renewal::Stale { highest }) => {
                Some(Some(format!("the lock is held with token {highest}")))
            }
            Err(error) => {
                tracing::warn!(lock = %kept.grant.lock, "cannot renew: {error:#}");
                None
            }
        }
    }
}

/// Releases a grant. That it had ended already is a release, too.
pub(super) async fn release(client: &Client, grant: &GrantRef) -> Result<Released, Error> {
    client.release(grant).await
}

/// How many grants are renewed at a time.
const AT_ONCE: usize = 32;
/// How often it looks at most, whatever the lease.
const SHORTEST: Duration = Duration::from_millis(30);
/// How often a release is tried again.
const RELEASE_EVERY: Duration = Duration::from_secs(1);
const PAGE: usize = 1_000;
