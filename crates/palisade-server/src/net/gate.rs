//! The gate authenticates callers and checks their rights. Every request passes it on the way to the pipeline.
//!
//! ```text
//!   token, certificate, uid ─► identify ─► Who ─┬─► permit(request) ─► Permitted ─► Pipeline::call, Session::submit
//!                                               ├─► observe_all()   ─► ObservedAll ─► metrics
//!                                               ├─► observe(prefix) ─► Observed  ─► watch
//!                                               └─► administer()    ─► Administered ─► changes of the cluster
//! ```
//!
//! Only the gate creates `Permitted`, `ObservedAll`, `ObservableLocks` and `Administered`, and the functions behind it accept
//! nothing else, so a handler that skips the check does not compile. Fields that would allow a way around it are private
//! to the gate's modules.
//!
//! Without an access file everybody who reaches the port may do everything. Identity is settled once for each session and
//! each HTTP request; while the file stays the same, a decision compares prefixes and nothing else.

mod admission;
mod caller;
mod observe;
mod operate;
mod permit;
mod pipeline;
mod view;
mod waiting;

use std::path::Path;
use std::pin::pin;
use std::sync::Arc;

use palisade_access::{Access, Denied, Principal};
use palisade_pipeline::Handle;
use palisade_proto::Code;
use tokio::signal::unix::{SignalKind, signal};
use tokio::time::interval;

pub(super) use caller::{FORWARDED, Who, by, goes_with, identify, is_known, who};
pub(super) use observe::{ObservableLocks, ObservedAll, Prefixes};
pub(super) use operate::Administered;
pub(super) use permit::Permitted;
pub(super) use pipeline::{GatedPipeline, GatedSession, PermittedBatch};
pub(super) use view::VisibleParts;

use super::audit::{Audit, AuditEvent};
use super::convert::Refusal;
use super::error::ServeError;
use super::lease_keys::LeaseKeys;
use super::places::Places;
use super::quota::QuotaUsage;
use super::rules::{LOOK, Rules};
use super::shares::Shares;

/// The rules in force, the use of quotas, and the audit file that records the decisions.
pub(super) struct Gate {
    /// `None` without a file.
    rules: Option<Rules>,
    audit: Audit,
    quotas: Arc<QuotaUsage>,
    waits: Arc<Shares>,
    lease_keys: LeaseKeys,
    places: Arc<Places>,
}

impl Gate {
    pub(super) fn new(
        path: Option<&Path>,
        audit: Audit,
        lease_keys: LeaseKeys,
        waits: Arc<Shares>,
        handle: Handle,
    ) -> Result<Gate, ServeError> {
        let rules = path.map(|path| Rules::open(path, &audit));
        Ok(Gate {
            rules: rules.transpose()?,
            audit,
            quotas: QuotaUsage::new(handle),
            waits,
            lease_keys,
            places: Arc::default(),
        })
    }

    pub(super) fn lease_keys(&self) -> &LeaseKeys {
        &self.lease_keys
    }

    pub(super) fn quotas(&self) -> &QuotaUsage {
        &self.quotas
    }

    pub(super) fn waits(&self) -> &Shares {
        &self.waits
    }

    /// Counts the locks of prefixes and principals that have a quota, before anything is served.
    pub(super) async fn count(&self) {
        if let Some(rules) = &self.rules {
            self.quotas.count(&rules.current()).await;
        }
    }

    /// Goes on counting. Does not end.
    pub(super) async fn keep_counting(&self) {
        match &self.rules {
            Some(rules) => self.quotas.follow(|| rules.current()).await,
            None => std::future::pending().await,
        }
    }

    /// Whether there are rules at all.
    pub(super) fn is_closed(&self) -> bool {
        self.rules.is_some()
    }

    /// The rules in force; `None` without a file.
    pub(super) fn rules(&self) -> Option<Arc<Access>> {
        self.rules.as_ref().map(Rules::current)
    }

    pub(super) fn audit(&self) -> &Audit {
        &self.audit
    }

    /// Records a refusal.
    fn recorded<T>(&self, who: &Who, decided: Result<T, Refusal>) -> Result<T, Refusal> {
        decided.inspect_err(|refusal| denied(&self.audit, Some(who.name()), refusal))
    }

    /// Reads the file again at SIGHUP, until the server stops. A file with a mistake leaves the old rules in force.
    pub(super) async fn keep_reloading(&self, stopping: impl Future<Output = ()>) {
        let Some(rules) = &self.rules else {
            return stopping.await;
        };
        let mut hangup = match signal(SignalKind::hangup()) {
            Ok(hangup) => hangup,
            Err(error) => {
                tracing::warn!(%error, "rules are not reloaded: SIGHUP cannot be received");
                return stopping.await;
            }
        };
        let mut stopping = pin!(stopping);
        let (mut look, mut seen) = (interval(LOOK), Vec::new());
        loop {
            tokio::select! {
                () = &mut stopping => return,
                _ = hangup.recv() => rules.reload(&self.audit),
                _ = look.tick() => rules.reload_keys(&mut seen, &self.audit),
            }
        }
    }
}

/// A principal's name in records.
fn name(principal: Option<&Principal>) -> &str {
    principal.map_or(palisade_access::ANONYMOUS, Principal::name)
}

fn unauthenticated(why: &impl ToString) -> Refusal {
    Refusal::new(Code::Unauthenticated, why.to_string())
}

fn forbidden(denied: &Denied) -> Refusal {
    Refusal::new(Code::Forbidden, denied.to_string())
}

/// Records that a caller was refused. `None` for one that nobody knows.
fn denied(audit: &Audit, principal: Option<&str>, refusal: &Refusal) {
    if audit.is_on()
        && let Some(left_out) = audit.refusal(principal)
    {
        audit.note(&AuditEvent::Denied {
            principal,
            code: refusal.code.name(),
            message: &refusal.message,
            left_out,
        });
    }
}
